"""What is on disk between commands: files that are one state of a folder, replaced all together or not at all.

manifest.json lists the files of a state, each with its size and sha256. A run, the plan of an unfinished one, a checkpoint
and a graph in parts are states, each in a folder of its own. A new state takes the place of the old one in three steps:

1. Each new file is written and synced under a hidden name, .NAME.SHA256.new. Files that only the old state has are renamed
   to such names.
2. One rename replaces manifest.json. This is the commit.
3. `settle`: hidden files that the manifest lists get their plain names, all others are removed.

A reader takes each file that the manifest lists from under its hidden name or else its plain one. So it finds one whole
state whenever the writer was killed, and repairs nothing; the next writer begins with step 3. A power cut adds nothing: each
step is synced before the next begins. One process writes to a folder at a time (`holding`). Where several train together,
each writes a file (`begin`, `write_part`), and when all have, one of them does the rest (`commit`).

A file that no manifest lists is not ours: it is never removed, and where it would be overwritten, that is refused. Of the
files in OUTPUTS, which people edit, the same holds once they were changed.

People hand run folders on, so what is read is not trusted. Links inside a folder are refused. A sha256 shows an accident; a
person who changes a file can write a new sha256 too. So those who read what a file says check it (`RunFolder.explained`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcn_lpa.data.files import (
    FileError,
    decode_as,
    decode_json,
    encode_json,
    holding,
    naming,
    remove_stale,
    replace_file,
    sync,
    writing,
)

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
MANIFEST = "manifest.json"
FILES = ("trained.json", "recipe.json", "model.safetensors", "labels.safetensors", "history.jsonl")  # of a model
PREDICTIONS, PAGE = "predictions.csv", "report.html"
OUTPUTS = (PREDICTIONS, PAGE)  # for people: listed, and never read back
CHECKPOINT = "checkpoint"  # the folder of what only an unfinished run needs
DIGITS = 16  # of the sha256 in a hidden name
LEFTOVERS = [
    f".?*.{'[0-9a-f]' * DIGITS}.{ending}" for ending in ("new", "tmp")
]  # hidden names; those of `replace_file`
Entry = dict[str, Any]  # what a manifest says of a file: {"sha256": ..., "size": ...}


@dataclass(frozen=True)
class RunFolder:
    """The files of a folder, read and compared with their sha256; later saves do not change it."""

    folder: Path
    files: Mapping[str, bytes]

    def content(self, name: str) -> bytes:
        if name not in self.files:
            raise FileError(f"{self.folder / MANIFEST} does not list {name}, which is needed here")
        return self.files[name]

    def json(self, name: str) -> Any:
        return decode_json(self.content(name), self.folder / name)

    def lines(self, name: str) -> list[Any]:
        """The rows of a .jsonl file."""
        return [decode_json(line, self.folder / name) for line in self.content(name).splitlines()]

    def tensors(self, name: str) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        data = self.content(name)
        try:
            return load(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{self.folder / name}: not a safetensors file: {error}") from error

    def read(self, name: str, kind: Any) -> Any:
        """A JSON file as a type, such as a dataclass: see `decode_as`."""
        with self.explained(name):
            return decode_as(kind, self.json(name))

    def explained(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Turn whatever goes wrong while a file is decoded into one sentence that names it."""
        return naming(self.folder / name)


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


# read


def read(folder: Path, names: Collection[str] | None = None) -> RunFolder | None:
    """The state of a folder, each file compared with its sha256; None where no state was ever committed.

    Args:
        names: the files to read; None: all but OUTPUTS.
    """
    while (seen := _seen(folder)) is not None:
        try:
            entries = _entries(folder / MANIFEST, seen[0])
            wanted = entries.keys() - OUTPUTS if names is None else names
            return RunFolder(
                folder, {name: _content(folder, name, entries[name]) for name in entries if name in wanted}
            )
        except ValueError:
            if _seen(folder) == seen:  # else a save went on meanwhile: read what it left
                raise
    return None


def load(folder: str | Path) -> RunFolder:
    """The state of a run folder. Changes nothing on disk."""
    folder = Path(folder)
    found = read(folder)
    if found is None:
        why = f"it has no {MANIFEST}" if os.path.lexists(folder) else "there is nothing of that name"
        unfinished = f"; it holds a {CHECKPOINT} of a run that did not finish" if (folder / CHECKPOINT).is_dir() else ""
        raise ValueError(f"{folder} is not a run folder: {why}{unfinished}")
    if "data.json" in found.files:
        raise ValueError(
            f"{folder} was kept by an older version of gcn-lpa, which this one does not read; train it anew: {_anew(found)}"
        )
    if absent := [name for name in FILES if name not in found.files]:
        raise ValueError(f"{folder / MANIFEST} does not list {', '.join(absent)}, which a run folder needs")
    return found


def _anew(old: RunFolder) -> str:
    """The command that makes a new folder of one of an older version, as far as its files tell."""
    facts: dict[str, Any] = {"name": "NAME_OR_FOLDER"}
    for name in ("data.json", "run.json"):
        facts |= old.read(name, dict[str, Any]) if name in old.files else {}
    words = [str(facts["name"])]
    for name in ("root", "method", "seed", "split"):
        words += [] if facts.get(name) is None else [f"--{name}", str(facts[name])]
    for key, value in decode_as(dict[str, Any], facts.get("options") or {}, "options").items():
        words += ["-o", f"{key}={value}"]
    return shlex.join(["gcn-lpa", "train", *words, "--out", str(old.folder), "--overwrite"])


def listed(folder: Path) -> dict[str, Entry]:
    """What the manifest of a folder lists: {name: {"sha256": ..., "size": ...}}; nothing where there is none."""
    seen = _seen(folder)
    return {} if seen is None else _entries(folder / MANIFEST, seen[0])


def inside(folder: str | Path, name: str) -> Path:
    """A folder or file of a run folder, which may be absent but is not a link to somewhere else."""
    path = Path(folder) / name
    if path.is_symlink():
        raise FileError(f"{path} is a link; there are none in a run folder. Remove it, or choose another folder")
    return path


def _read_plain(path: Path) -> bytes:
    """The content of a file that is not a link, and not a named pipe, which would keep us waiting."""
    if not stat.S_ISREG(inside(path.parent, path.name).stat().st_mode):
        raise FileError(f"{path}: not a file")
    return path.read_bytes()


def _seen(folder: Path) -> tuple[bytes, list[str]] | None:
    """The manifest, and what changes with every step of a save; None where there is no manifest."""
    try:
        return _read_plain(folder / MANIFEST), sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _entries(path: Path, data: bytes) -> dict[str, Entry]:
    manifest = decode_json(data, path)
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise FileError(f"{path}: not a manifest: it names no format")
    if manifest["format"] != FORMAT:
        raise FileError(f"{path}: format {manifest['format']!r}, but this version of gcn-lpa reads format {FORMAT}")
    entries = manifest.get("files")
    as_written = encode_json({"format": FORMAT, "files": entries}) == data
    if not as_written or not isinstance(entries, dict) or not all(map(_is_entry, entries, entries.values())):
        raise FileError(f"{path}: changed after it was written: expected 'format' and 'files' as gcn-lpa writes them")
    return entries


def _is_entry(name: str, entry: object) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"sha256", "size"}:
        return False
    return _is_plain(name) and re.fullmatch("[0-9a-f]{64}", str(entry["sha256"])) is not None


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*", name, re.ASCII) is not None and name != MANIFEST


def _hidden(folder: Path, name: str, entry: Entry) -> Path:
    return folder / f".{name}.{entry['sha256'][:DIGITS]}.new"


def _content(folder: Path, name: str, entry: Entry) -> bytes:
    """A file of the state, or a ValueError that says how it differs from its entry in the manifest."""
    for path in (_hidden(folder, name, entry), folder / name):  # in the order in which `settle` moves it
        with contextlib.suppress(FileNotFoundError):
            data = _read_plain(path)
            if len(data) != (size := entry["size"]):
                raise FileError(
                    f"{path}: {len(data)} bytes, but {MANIFEST} says {size}: cut short or changed after saving"
                )
            if (found := hashlib.sha256(data).hexdigest()) != entry["sha256"]:
                raise FileError(f"{path}: sha256 {found}, but {MANIFEST} says {entry['sha256']}: changed after saving")
            return data
    raise FileError(f"{folder / name}: missing; {MANIFEST} lists it with {entry['size']} bytes")


# write


def save(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Make `files` the whole state of a run folder: at least those of FILES, and any others under plain names."""
    if absent := [name for name in FILES if name not in files]:
        raise ValueError(f"a run folder needs {', '.join(absent)}")
    with holding(folder):
        replace(Path(folder), files)


def add(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put further files into the state of a run folder."""
    with holding(folder):
        replace(folder, files, kept=listed(folder))


def replace(folder: Path, files: Mapping[str, bytes], *, kept: Mapping[str, Entry] | None = None) -> None:
    """Make `files` the state of a folder; a failure leaves the state before.

    Args:
        kept: what else is in the new state, as `listed` gave it.
    """
    begin(folder)
    check_free(folder, files)
    try:
        commit(folder, {**(kept or {}), **{name: write_part(folder, name, data) for name, data in files.items()}})
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            settle(folder)
        raise


def check_free(folder: Path, names: Collection[str]) -> None:
    """Refuse names that no file of a state can have, and those under which a folder holds files that are not ours."""
    known = listed(folder)
    for name in names:
        if not _is_plain(name):
            raise ValueError(
                f"{name!r} cannot be a file of a run folder: letters, digits, '_', '-' and '.' make its name"
            )
        if os.path.lexists(folder / name) and not _is_ours(folder, name, known):
            how = "was changed after saving" if name in known else "is not from a saved run"
            raise FileError(f"{folder / name} {how} and would be overwritten; choose another folder, or move it away")


def _is_ours(folder: Path, name: str, known: Mapping[str, Entry]) -> bool:
    """Whether the manifest lists a file and, if people edit it, nobody has."""
    if name not in OUTPUTS or name not in known:
        return name in known
    with contextlib.suppress(FileError):
        _content(folder, name, known[name])
        return True
    return False


def begin(folder: Path) -> None:
    """Make a folder ready for the files of a new state: what a killed writer left is settled first."""
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
        settle(folder)


def write_part(folder: Path, name: str, data: bytes) -> Entry:
    """Step 1 for one file; what the manifest is to say of it."""
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    with writing(folder):
        replace_file(_hidden(folder, name, entry), data)
    return entry


def commit(folder: Path, entries: Mapping[str, Entry]) -> None:
    """The rest, once all files are written."""
    with writing(folder):
        _hide(folder, entries)
        manifest = {"format": FORMAT, "files": {name: entries[name] for name in sorted(entries)}}
        replace_file(folder / MANIFEST, encode_json(manifest))  # the commit
        sync(folder)
        settle(folder)


def discard(folder: Path) -> None:
    """Remove a state, and its folder if nothing else is in it; killed on the way, it leaves a whole state or none."""
    if not folder.is_dir():
        return
    with writing(folder):
        settle(folder)
        _hide(folder, ())
        if (folder / MANIFEST).exists():
            os.unlink(folder / MANIFEST)
            sync(folder)
        settle(folder)
        if not os.listdir(folder):
            os.rmdir(folder)


def _hide(folder: Path, names: Collection[str]) -> None:
    """Give the files of the state that have other names hidden ones, under which a reader still finds them."""
    known = listed(folder)
    for name in known.keys() - names:
        if os.path.lexists(folder / name) and _is_ours(folder, name, known):
            os.replace(folder / name, _hidden(folder, name, known[name]))
    sync(folder)


def settle(folder: Path) -> None:
    """Step 3: make the names in a folder those of its manifest. Can be repeated from any point at which it was stopped."""
    for name, entry in listed(folder).items():
        with contextlib.suppress(FileNotFoundError):
            os.replace(_hidden(folder, name, entry), folder / name)
    for pattern in LEFTOVERS:
        remove_stale(folder, pattern)
