"""Write the tables of the pages that are those of a result, such as `<!-- table 2 of results/table2.md -->`.

    python benchmarks/pages.py

Below such a mark stands the table, as the command that made the result wrote it; `tests/test_numbers.py` compares the two.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
MARK = re.compile(r"(<!-- table (\d+) of (\S+) -->\n)((?:\|.*\n)*)")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def filled(text: str) -> str:
    """A page with every marked table as its result has it."""

    def table(mark: re.Match[str]) -> str:
        tables = TABLE.findall((ROOT / mark[3]).read_text(encoding="utf-8"))
        if not int(mark[2]) <= len(tables):
            raise ValueError(f"{mark[3]} has {len(tables)} tables, no table {mark[2]}")
        return mark[1] + tables[int(mark[2]) - 1]

    return MARK.sub(table, text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
