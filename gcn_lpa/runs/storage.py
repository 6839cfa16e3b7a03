"""What is on disk between commands: files that are one state of a folder, replaced all together or not at all.

manifest.json lists the files of a state, each with its size and sha256. A run, the plan of an unfinished one, a checkpoint
and a graph in parts are states, each in a folder of its own. A new state takes the place of the old one in three steps:

1. The new files are written and synced in a hidden folder, .RANDOM.new, the new manifest last. The folder is then named after
   the sha256 of that manifest.
2. One rename moves the manifest to its place. This is the commit.
3. `settle`: the files move from the hidden folder to their places, and those that only the old state had are removed.

A reader takes each file that the manifest lists from the hidden folder of that name, or else from its place. So it finds one
whole state whenever the writer was killed, and repairs nothing; the next writer begins with step 3. A power cut adds nothing:
each step is synced before the next begins, and a hidden folder goes only once it is empty. One process writes to a folder at
a time (`holding`).

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
import secrets
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcn_lpa.data.files import FileError, decode_as, decode_json, encode_json, holding, naming, sync, writing

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
MANIFEST = "manifest.json"
REPLACED = "replaced.json"  # in a hidden folder: the manifest of what goes
FILES = ("trained.json", "recipe.json", "model.safetensors", "labels.safetensors")  # of a model
PREDICTIONS, PAGE = "predictions.csv", "report.html"
PARTS = "parts.json"  # of a graph in parts
OUTPUTS = (PREDICTIONS, PAGE)  # for people: listed, and never read back
CHECKPOINT = "checkpoint"  # the folder of what only an unfinished run needs
PLAIN = re.compile(r"(?!(?:manifest|replaced)\.json\Z)\w[\w.-]*", re.ASCII)  # a name that a file of a state can have
HIDDEN = f".{'[0-9a-f]' * 16}.new"
Entry = dict[str, Any]  # what a manifest says of a file: {"sha256": ..., "size": ...}


@dataclass(frozen=True)
class RunFolder:
    """The files of a folder, read and compared with their sha256; later saves do not change it."""

    folder: Path
    files: Mapping[str, bytes]

    def read(self, name: str, kind: Any = Any) -> Any:
        """What a file says: of a .safetensors file its tensors, else as a type (see `decode_as`)."""
        if name not in self.files:
            raise FileError(f"{self.folder / MANIFEST} does not list {name}, which is needed here")
        data, path = self.files[name], self.folder / name
        if path.suffix == ".safetensors":
            return _decode_tensors(data, path)
        with naming(path):
            return decode_as(kind, decode_json(data, path))

    def explained(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Turn whatever goes wrong while a file is decoded into one sentence that names it."""
        return naming(self.folder / name)


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


def _decode_tensors(data: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: not a safetensors file: {error}") from error


# read


def read(folder: Path, names: Collection[str] | None = None) -> RunFolder | None:
    """The state of a folder, each file compared with its sha256; None where no state was ever committed.

    Args:
        names: the files to read; None: all but OUTPUTS.
    """
    manifest = _manifest(folder)
    while manifest is not None:
        try:
            entries, hidden = _entries(manifest, folder / MANIFEST), _hidden(folder, manifest)
            wanted = entries.keys() - OUTPUTS if names is None else names
            kept = {name: _content((hidden / name, folder / name), entries[name]) for name in entries if name in wanted}
            return RunFolder(folder, kept)
        except ValueError:
            before, manifest = manifest, _manifest(folder)
            if manifest == before:  # else a save went on meanwhile: read what it left
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
    if absent := [name for name in FILES if name not in found.files]:
        raise ValueError(f"{folder / MANIFEST} does not list {', '.join(absent)}, which a run folder needs")
    return found


def listed(folder: Path) -> dict[str, Entry]:
    """What the manifest of a folder lists: {name: {"sha256": ..., "size": ...}}; nothing where there is none."""
    manifest = _manifest(folder)
    return {} if manifest is None else _entries(manifest, folder / MANIFEST)


def has_file(folder: Path, name: str) -> bool:
    """Whether a folder holds a file of a state, or what a process left of it that was killed while it wrote."""
    return (folder / name).is_file() or any(folder.glob(f"{HIDDEN}/{name}"))


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


def _manifest(folder: Path) -> bytes | None:
    try:
        return _read_plain(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _entries(data: bytes, path: Path) -> dict[str, Entry]:
    manifest = decode_json(data, path)
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise FileError(f"{path}: not a manifest: it names no format")
    if manifest["format"] != FORMAT:
        ours = f"this version of gcn-lpa reads format {FORMAT}; train it anew, in another folder or after removing this one"
        ours += ", which --overwrite does not replace"
        raise FileError(f"{path}: format {manifest['format']!r}, but {ours}")
    entries: dict[str, Entry] = manifest.get("files", {})
    is_whole = isinstance(entries, dict) and all(
        PLAIN.fullmatch(name)
        and isinstance(entry, dict)
        and entry.keys() == {"sha256", "size"}
        and re.fullmatch("[0-9a-f]{64}", str(entry["sha256"]))
        for name, entry in entries.items()
    )
    if not is_whole or data != _encode_manifest(entries):
        raise FileError(f"{path}: changed after it was written: expected 'format' and 'files' as gcn-lpa writes them")
    return entries


def _encode_manifest(entries: Mapping[str, Entry]) -> bytes:
    return encode_json({"format": FORMAT, "files": dict(sorted(entries.items()))})


def _hidden(folder: Path, manifest: bytes) -> Path:
    """The folder from which a save moves the files of a manifest into `folder`."""
    return inside(folder, f".{hashlib.sha256(manifest).hexdigest()[:16]}.new")


def _content(paths: Collection[Path], entry: Entry) -> bytes:
    """A file of the state, from the first of its places; a ValueError says how it differs from its entry in the manifest."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            data = _read_plain(path)
            if len(data) != (size := entry["size"]):
                raise FileError(f"{path}: {len(data)} bytes, not {size} as {MANIFEST} says: cut short or changed")
            if (found := hashlib.sha256(data).hexdigest()) != entry["sha256"]:
                raise FileError(f"{path}: sha256 {found}, but {MANIFEST} says {entry['sha256']}: changed after saving")
            return data
    raise FileError(f"{path}: missing; {MANIFEST} lists it with {entry['size']} bytes")


# write


def save(folder: str | Path, files: Mapping[str, bytes], *, is_addition: bool = False) -> None:
    """`replace`, of a folder that nobody holds."""
    with holding(folder):
        replace(Path(folder), files.items(), is_addition=is_addition)


def replace(folder: Path, files: Iterable[tuple[str, bytes]], *, is_addition: bool = False) -> None:
    """Make `files` the state of a folder, or a part of it; a failure leaves the state before."""
    known = settle(folder)
    entries, hidden = dict(known) if is_addition else {}, folder / f".{secrets.token_hex(8)}.new"
    try:
        with writing(folder):
            os.mkdir(hidden)
            for name, data in files:
                check_free(folder, [name], known)
                _write(hidden / name, data)
                entries[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            if known.keys() - entries:
                _write(hidden / REPLACED, _encode_manifest(known))
            manifest = _encode_manifest(entries)
            _write(hidden / MANIFEST, manifest)
            sync(hidden)
            os.replace(hidden, hidden := _hidden(folder, manifest))
            sync(folder)
            os.replace(hidden / MANIFEST, folder / MANIFEST)  # the commit
            sync(folder)
            _finish(hidden, entries, known)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):  # the first error is the one to tell
            settle(folder)
        raise


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def check_free(folder: Path, names: Collection[str], known: Mapping[str, Entry] | None = None) -> None:
    """Refuse names that no file of a state can have, and those under which a folder holds files that are not ours.

    Args:
        known: what the folder lists, where that was read already.
    """
    known = listed(folder) if known is None else known
    for name in names:
        if not PLAIN.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a file of a run: letters, digits, '_', '-' and '.' make one")
        if os.path.lexists(folder / name) and not _is_ours(folder, name, known):
            how = "was changed after saving" if name in known else "is not from a saved run"
            raise FileError(f"{folder / name} {how} and would be overwritten; choose another folder, or move it away")


def _is_ours(folder: Path, name: str, known: Mapping[str, Entry]) -> bool:
    """Whether the manifest lists a file and, if people edit it, nobody has."""
    if name not in OUTPUTS or name not in known:
        return name in known
    with contextlib.suppress(FileError):
        _content([folder / name], known[name])
        return True
    return False


def discard(folder: Path, of: Collection[str]) -> None:
    """Remove a state that has a file of these names, and the folder if nothing else is in it.

    Killed on the way, it leaves a whole state or none.
    """
    if not folder.is_dir() or ((known := settle(folder)) and not known.keys() & set(of)):
        return
    with writing(folder):
        if known:
            os.mkdir(hidden := folder / f".{secrets.token_hex(8)}.new")
            os.replace(folder / MANIFEST, hidden / REPLACED)
            sync(folder)
            _finish(hidden, {}, known)
        if not os.listdir(folder):
            os.rmdir(folder)


def settle(folder: Path) -> dict[str, Entry]:
    """Step 3 for whatever killed writers left, from any point at which they were stopped; gives what the folder lists."""
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
        manifest = _manifest(folder)
        entries = {} if manifest is None else _entries(manifest, folder / MANIFEST)
        for hidden in folder.glob(HIDDEN):
            replaced, gone = hidden / REPLACED, dict[str, Entry]()
            if hidden.is_symlink() or not hidden.is_dir():
                os.unlink(hidden)
            elif manifest is None or hidden == _hidden(folder, manifest):
                if replaced.exists():
                    gone = _entries(_read_plain(replaced), replaced)
                _finish(hidden, entries, gone)
            else:  # it was not committed, and may hold half a file
                _finish(hidden, {}, {})
    return entries


def _finish(hidden: Path, entries: Mapping[str, Entry], gone: Mapping[str, Entry]) -> None:
    """Step 3 for one hidden folder: the state that it holds is that of `entries`, and `gone` was the one before."""
    folder = hidden.parent
    for name in entries:
        with contextlib.suppress(FileNotFoundError):
            os.replace(hidden / name, folder / name)
    for name in gone.keys() - entries:
        if os.path.lexists(folder / name) and _is_ours(folder, name, gone):
            os.unlink(folder / name)
    for path in hidden.iterdir():
        os.unlink(path)
    os.rmdir(hidden)
