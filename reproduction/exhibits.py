"""An exhibit is a finished table or figure: text, data, pictures, and the trainings it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcn_lpa.data.files import read_json, write_json, write_output
from gcn_lpa.engine.devices import environment
from reproduction.code_version import study_hash

LedgerLine = dict[str, Any]  # a job of the ledger and its outcome, with the name of its row


@dataclass
class Exhibit:
    """A table or figure: the text for people, the data behind it, and every training it is made of.

    The trainings of one exhibit are of one code version.
    """

    name: str
    title: str
    text: str  # Markdown, without the title
    data: dict[str, Any] = field(default_factory=dict)
    runs: list[LedgerLine] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)  # pictures
    reduced: list[str] = field(default_factory=list)  # what is smaller than in the full study
    code: str = ""  # the version of it; without trainings this code computed it

    def __post_init__(self) -> None:
        codes = sorted({str(run["code"]) for run in self.runs if "code" in run} | ({self.code} if self.code else set()))
        if len(codes) > 1:
            raise ValueError(f"{self.name} would mix trainings of the code versions {', '.join(codes)}; choose one")
        self.code = codes[0] if codes else study_hash()

    def markdown(self) -> str:
        pictures = [f"![{self.title}]({path.name})" for path in self.files if path.suffix == ".png"]
        reduced = [f"Reduced for a quick run: {'; '.join(self.reduced)}."] if self.reduced else []
        return "\n\n".join([f"# {self.title}", *reduced, self.text.strip(), *pictures, *self.origin()]) + "\n"

    def origin(self) -> list[str]:
        """Where the numbers come from."""
        if not self.runs:
            return []
        devices, versions = (sorted({str(run[key]) for run in self.runs}) for key in ("device", "versions"))
        hours = sum(run["seconds"] for run in self.runs) / 3600
        return [
            f"{len(self.runs):,} trainings, {hours:.2f} hours one after the other, on {', '.join(devices)}; "
            f"{'; '.join(versions)}; code {self.code}."
        ]

    def write(self, out: Path) -> list[Path]:
        text, facts = out / f"{self.name}.md", out / f"{self.name}.json"
        write_output(text, self.markdown().encode())
        content = {
            "name": self.name,
            "title": self.title,
            "reduced": self.reduced,
            "data": self.data,
            "environment": environment(),
            "code": self.code,
            "runs": self.runs,
        }
        write_json(facts, content)
        return [text, facts, *self.files]

    @classmethod
    def read(cls, out: Path, name: str) -> Exhibit | None:
        """What `write` left in a folder, without its text and pictures; None where there is nothing."""
        path = out / f"{name}.json"
        if not path.is_file():
            return None
        found = read_json(path)
        kept = {key: found[key] for key in ("data", "runs", "reduced", "code")}
        return cls(name, found["title"], text="", **kept)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(header), "|".join(["---", *["---:"] * (len(header) - 1)]), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)
