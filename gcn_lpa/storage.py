"""What is on disk between commands: the run folder and its checkpoint.

A run folder holds the files of `FILES` and manifest.json, which has the size and the sha256 of each. `save` replaces
all of them or none, in three steps:

1. The new files are written to `.next/` and synced. Nobody looks at them yet.
2. One rename puts `.next/manifest.json` there. This is the commit: from now on the new state is the state.
3. The files are renamed from `.next/` into place, files that only the old state had are removed, all this is synced,
   and as the last act `.next/manifest.json` is renamed to `manifest.json`.

Whenever the writer is killed, one whole state can be read. In step 1 `.next/` has no manifest, and nothing of the old
state has been touched. In step 3 each file of the new state is either still in `.next/` or already in place; a reader
that finds `.next/manifest.json` looks in both, in this order. The next `save` repeats step 3, which does no harm, and
clears away what is left of `.next/`. A power cut adds nothing: each step is synced before the next begins.

A checkpoint is a second state, kept in the same way in `checkpoint/`. One process writes to a folder at a time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shlex
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
FILES = ("trained.json", "recipe.json", "model.safetensors", "labels.safetensors", "history.jsonl")  # of a model
MANIFEST = "manifest.json"
NEXT = ".next"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class RunFolder:
    """A run folder that has been read and checked; later saves do not change it."""

    folder: Path
    files: Mapping[str, bytes]

    def json(self, name: str) -> Any:
        return decode_json(self.files[name], self.folder / name)

    def lines(self, name: str) -> list[Any]:
        """The rows of a .jsonl file."""
        return [decode_json(line, self.folder / name) for line in self.files[name].splitlines()]

    def tensors(self, name: str = "model.safetensors") -> dict[str, Tensor]:
        return decode_tensors(self.files[name], self.folder / name)

    @contextlib.contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn whatever goes wrong while the files are decoded into one sentence that names the folder."""
        try:
            yield
        except (
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            AssertionError,
        ) as error:
            problem = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{self.folder} does not hold {what} that this version of gcn-lpa wrote ({problem})"
            ) from error


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Makes `files` the whole state of a run folder: at least those of `FILES`, and any others under plain names.

    Files that the folder's last state had and `files` lacks are removed; files that no save put there are left alone,
    and refused where they would have to be overwritten.
    """
    folder = Path(folder)
    if absent := [name for name in FILES if name not in files]:
        raise ValueError(f"a run folder needs {', '.join(absent)}")
    if odd := [name for name in files if not _is_plain(name)]:
        raise ValueError(
            f"{odd[0]!r} cannot be a file of a run folder: letters, digits, '_', '-' and '.' make its name"
        )
    with _explained(folder):
        _recover(folder)
        known = _listed(folder)
        for name in files:
            if name not in known and (folder / name).exists():
                raise ValueError(
                    f"{folder / name} is not from a saved run and would be overwritten; choose another folder"
                )
        _replace(folder, files)


def load(folder: str | Path) -> RunFolder:
    """The state of a run folder, every file compared with its sha256. Changes nothing on disk."""
    folder = Path(folder)
    files = _read(folder)
    if files is None:
        unfinished = f"; it holds a {CHECKPOINT} of a run that did not finish" if (folder / CHECKPOINT).is_dir() else ""
        raise ValueError(f"{folder} is not a run folder: it has no {MANIFEST}{unfinished}")
    if "trained.json" not in files and "recipe.json" in files:
        raise ValueError(
            f"{folder} was kept by an older version of gcn-lpa, which this one does not read; train it anew: "
            f"gcn-lpa train {_source(folder, files)} --out {folder} --overwrite"
        )
    if absent := [name for name in FILES if name not in files]:
        raise ValueError(f"{folder / MANIFEST} does not list {', '.join(absent)}, which a run folder needs")
    return RunFolder(folder, files)


def _source(folder: Path, files: Mapping[str, bytes]) -> str:
    """What an old run was trained on, for a command line."""
    if "data.json" not in files:
        return "NAME_OR_FOLDER"
    said = decode_json(files["data.json"], folder / "data.json")
    return shlex.quote(str(said.get("name", "NAME_OR_FOLDER"))) if isinstance(said, dict) else "NAME_OR_FOLDER"


def save_checkpoint(folder: str | Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Replaces the checkpoint of a run; the previous one can be read until the new one is complete."""
    folder = Path(folder) / CHECKPOINT
    files = {"tensors.safetensors": encode_tensors(tensors), "meta.json": encode_json(meta)}
    with _explained(folder):
        _recover(folder)
        _replace(folder, files)


def latest_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The last complete checkpoint of a run, checked against its sha256s; None if there was none."""
    folder = Path(folder) / CHECKPOINT
    files = _read(folder)
    if files is None:
        return None
    return Checkpoint(
        decode_tensors(files["tensors.safetensors"], folder / "tensors.safetensors"),
        decode_json(files["meta.json"], folder / "meta.json"),
    )


def discard_checkpoint(folder: str | Path) -> None:
    """Removes the checkpoint of a run, if there is one; killed on the way, it leaves a whole one or none."""
    folder = Path(folder) / CHECKPOINT
    with _explained(folder):
        if folder.is_dir():
            _recover(folder)
            if (folder / MANIFEST).exists():
                os.unlink(folder / MANIFEST)
                _sync(folder)
            _remove(folder)


def environment() -> dict[str, Any]:
    """The versions and the machine that a result belongs to."""
    import torch

    return {
        "gcn_lpa": version_of("gcn-lpa"),
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("torch", "numpy", "scipy", "numba")},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def version_of(package: str) -> str:
    """The version of an installed package; ours may also run from a source tree. "unknown" where nothing says."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    source = Path(__file__).parents[1] / "pyproject.toml"
    if package == "gcn-lpa" and source.is_file():
        project = tomllib.loads(source.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == package:
            return str(project.get("version", "unknown"))
    return "unknown"


def write_atomic(path: str | Path, data: bytes) -> None:
    """Replaces a file so that whoever opens it, whenever, finds the old content or the new, whole."""
    path = Path(path)
    with _explained(path):
        _write_atomic(path, data)


def write_json(path: str | Path, value: Any) -> None:
    try:
        data = encode_json(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    write_atomic(path, data)


def read_json(path: str | Path) -> Any:
    path = Path(path)
    return decode_json(path.read_bytes(), path)


def encode_json(value: Any, *, indent: int | None = 2) -> bytes:
    """JSON as the standard has it: NaN and infinities are a ValueError."""
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def encode_lines(rows: Iterable[Any]) -> bytes:
    """JSON lines, one row each."""
    return b"".join(encode_json(row, indent=None) for row in rows)


def decode_json(data: bytes, path: Path) -> Any:
    """The value of some JSON; what is wrong with it is a ValueError that names `path`."""
    try:
        return json.loads(data.decode(), parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{path}: not valid JSON: nested too deeply") from None
    except ValueError as error:  # also what UnicodeDecodeError and JSONDecodeError are
        raise ValueError(f"{path}: not valid JSON: {error}") from None


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


def decode_tensors(data: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from error


def _replace(folder: Path, files: Mapping[str, bytes]) -> None:
    """Steps 1 to 3 of the module's docstring; a failure before the commit leaves no trace."""
    entries = {name: {"sha256": _sha256(files[name]), "size": len(files[name])} for name in sorted(files)}
    os.makedirs(folder / NEXT)
    try:
        for name, data in files.items():
            _write(folder / NEXT / name, data)
        _sync(folder / NEXT)
        _sync(folder)
        _write_atomic(folder / NEXT / MANIFEST, encode_json({"format": FORMAT, "files": entries}))  # the commit
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            if not (folder / NEXT / MANIFEST).exists():
                _remove(folder / NEXT)
        raise
    _finish(folder)


def _recover(folder: Path) -> None:
    """Completes what a killed writer had committed, clears away what it had not."""
    if (folder / NEXT / MANIFEST).exists():
        _finish(folder)
    elif os.path.lexists(folder / NEXT):
        _remove(folder / NEXT)


def _finish(folder: Path) -> None:
    """Step 3: moves a committed state into place. Can be repeated from any point at which it was stopped."""
    coming = _listed(folder / NEXT)
    for name in coming:
        if (folder / NEXT / name).exists():
            os.replace(folder / NEXT / name, folder / name)
    for name in _listed(folder):
        if name not in coming and (folder / name).exists():
            os.unlink(folder / name)
    _sync(folder / NEXT)
    _sync(folder)
    os.replace(folder / NEXT / MANIFEST, folder / MANIFEST)
    _sync(folder)
    _remove(folder / NEXT)


def _read(folder: Path) -> dict[str, bytes] | None:
    """The files of the current state; None where no state was ever committed."""
    while True:
        current = _manifest(folder)
        if current is None:
            return None
        try:
            return {name: _content(folder, current[0], name, entry) for name, entry in _entries(*current).items()}
        except ValueError:
            if _manifest(folder) == current:  # else a save went on meanwhile: read what it left
                raise


def _manifest(folder: Path) -> tuple[Path, bytes] | None:
    for path in (folder / NEXT / MANIFEST, folder / MANIFEST):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return path, path.read_bytes()
    return None


def _entries(path: Path, data: bytes) -> dict[str, dict[str, Any]]:
    """What a manifest lists: {name: {"sha256": ..., "size": ...}}."""
    manifest = decode_json(data, path)
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise ValueError(f"{path}: not a manifest: it names no format")
    if manifest["format"] != FORMAT:
        raise ValueError(f"{path}: format {manifest['format']!r}, but this version of gcn-lpa reads format {FORMAT}")
    entries = manifest.get("files")
    as_written = encode_json({"format": FORMAT, "files": entries}) == data
    if not as_written or not isinstance(entries, dict) or not all(map(_is_entry, entries, entries.values())):
        raise ValueError(f"{path}: changed after it was written: expected 'format' and 'files' as gcn-lpa writes them")
    return entries


def _listed(folder: Path) -> list[str]:
    """The names in a folder's manifest; none where there is no manifest."""
    try:
        return list(_entries(folder / MANIFEST, (folder / MANIFEST).read_bytes()))
    except FileNotFoundError:
        return []


def _content(folder: Path, manifest: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """One file of the state that `manifest` describes."""
    places = [folder] if manifest.parent == folder else [folder / NEXT, folder]  # in the order in which files move
    for place in places:
        with contextlib.suppress(FileNotFoundError):
            return _checked(place / name, entry)
    raise ValueError(f"{folder / name}: missing; {MANIFEST} lists it with {entry['size']} bytes")


def _checked(path: Path, entry: Mapping[str, Any]) -> bytes:
    """The content of a file, or a ValueError that says how it differs from its entry in the manifest."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a named pipe would not end
        raise ValueError(f"{path}: not a file; {MANIFEST} lists it with {entry['size']} bytes")
    if status.st_size != entry["size"]:
        raise ValueError(
            f"{path}: {status.st_size} bytes, but {MANIFEST} says {entry['size']}: cut short or changed after saving"
        )
    data = path.read_bytes()
    if (found := _sha256(data)) != entry["sha256"]:
        raise ValueError(f"{path}: sha256 {found}, but {MANIFEST} says {entry['sha256']}: changed after saving")
    return data


def _is_entry(name: str, entry: object) -> bool:
    return _is_plain(name) and isinstance(entry, dict) and entry.keys() == {"sha256", "size"}


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*", name, re.ASCII) is not None and name != MANIFEST


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _write_atomic(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(unfinished, data)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Makes the names in a folder outlast a power cut, where the system can: Windows and some network drives cannot."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Removes a folder of ours, in which there are only files. A link in its place is not followed."""
    if folder.is_symlink():
        os.unlink(folder)
        return
    for name in os.listdir(folder):
        os.unlink(folder / name)
    os.rmdir(folder)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Adds to an OSError of writing what was to be written and what the user can do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space or choose another folder"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            advice = "choose a folder that can be written to"
        else:
            advice = "choose another folder"
        message = f"{error.strerror}; {advice}; what was saved before is intact"
        raise OSError(error.errno, message, str(path)) from error
