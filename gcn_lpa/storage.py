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

A checkpoint is a second state, kept in the same way in `checkpoint/`. One process writes to a folder at a time: it holds
a lock on it where the system has one. Where several train together, each writes a file of the checkpoint in step 1 (`begin`,
`write_part`), and when all have, one of them does the rest (`commit`).

People hand run folders on, so what is read is not trusted. Links inside a folder are refused, for reading and for writing. A
sha256 shows an accident; a person who changes a file can write a new sha256 too. So `decode_as`, and those who read what a
file says, check it, and whatever is wrong is one ValueError that names the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import platform
import re
import shlex
import stat
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from gcn_lpa.files import explained, holding, replace_file, sync, write_atomic, write_new

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
FILES = ("trained.json", "recipe.json", "model.safetensors", "labels.safetensors", "history.jsonl")  # of a model
MANIFEST = "manifest.json"
NEXT = ".next"
CHECKPOINT = "checkpoint"
Entry = dict[str, Any]  # what a manifest says of a file: {"sha256": ..., "size": ...}


@dataclass(frozen=True)
class RunFolder:
    """A run folder that has been read and checked; later saves do not change it."""

    folder: Path
    files: Mapping[str, bytes]

    def content(self, name: str) -> bytes:
        if name not in self.files:
            raise ValueError(f"{self.folder / MANIFEST} does not list {name}, which is needed here")
        return self.files[name]

    def json(self, name: str) -> Any:
        return decode_json(self.content(name), self.folder / name)

    def lines(self, name: str) -> list[Any]:
        """The rows of a .jsonl file."""
        return [decode_json(line, self.folder / name) for line in self.content(name).splitlines()]

    def tensors(self, name: str = "model.safetensors") -> dict[str, Tensor]:
        return decode_tensors(self.content(name), self.folder / name)

    def read(self, name: str, kind: Any) -> Any:
        """A JSON file as a type, such as a dataclass: see `decode_as`."""
        with self.explained(name):
            return decode_as(kind, self.json(name))

    @contextlib.contextmanager
    def explained(self, name: str) -> Iterator[None]:
        """Turn whatever goes wrong while a file is decoded into one sentence that names it."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
            said = " ".join(str(error).split())
            if isinstance(error, ValueError) and said.startswith(
                (str(self.folder / name), str(self.folder / MANIFEST))
            ):
                raise
            problem = said if isinstance(error, ValueError) else f"not as gcn-lpa writes it ({said})"
            raise ValueError(f"{self.folder / name}: {problem}") from error

    def finite_tensors(self, name: str) -> dict[str, Tensor]:
        tensors = self.tensors(name)
        if broken := [key for key, tensor in tensors.items() if not tensor.isfinite().all()]:
            raise ValueError(f"{self.folder / name}: {broken[0]} holds numbers that are not finite")
        return tensors


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
    with contextlib.ExitStack() as held, explained(folder):
        os.makedirs(folder, exist_ok=True)
        held.enter_context(holding(folder))
        _recover(folder)
        known = _listed(folder)
        for name in files:
            if name not in known and os.path.lexists(folder / name):
                raise ValueError(
                    f"{folder / name} is not from a saved run and would be overwritten; choose another folder"
                )
        _replace(folder, files)


def load(folder: str | Path) -> RunFolder:
    """The state of a run folder, every file compared with its sha256. Changes nothing on disk."""
    folder = Path(folder)
    files = _read(folder)
    if files is None and not os.path.lexists(folder):
        raise ValueError(f"{folder} is not a run folder: there is nothing of that name")
    if files is None:
        unfinished = f"; it holds a {CHECKPOINT} of a run that did not finish" if (folder / CHECKPOINT).is_dir() else ""
        raise ValueError(f"{folder} is not a run folder: it has no {MANIFEST}{unfinished}")
    if "trained.json" not in files and "recipe.json" in files:
        raise ValueError(f"{folder} was kept by an older version of gcn-lpa, {anew(folder, files)}")
    if absent := [name for name in FILES if name not in files]:
        raise ValueError(f"{folder / MANIFEST} does not list {', '.join(absent)}, which a run folder needs")
    return RunFolder(folder, files)


def anew(folder: Path, files: Mapping[str, bytes]) -> str:
    """The end of a sentence about a folder of an older version: the command that makes a new one, as far as its files tell."""
    said: dict[str, Any] = {"name": "NAME_OR_FOLDER"}
    for name in ("data.json", "run.json"):
        found = decode_json(files.get(name, b"{}"), folder / name)
        said |= found if isinstance(found, dict) else {}
    words = [str(said["name"])]
    for name in ("root", "method", "seed", "split"):
        words += [] if said.get(name) is None else [f"--{name}", str(said[name])]
    options = said.get("options")
    for key, value in options.items() if isinstance(options, dict) else ():
        words += ["-o", f"{key}={value}"]
    command = shlex.join(["gcn-lpa", "train", *words, "--out", str(folder), "--overwrite"])
    return f"which this one does not read; train it anew: {command}"


def save_checkpoint(folder: str | Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Replaces the checkpoint of a run; the previous one can be read until the new one is complete."""
    folder = inside(folder, CHECKPOINT)
    files = {"tensors.safetensors": encode_tensors(tensors), "meta.json": encode_json(meta)}
    with explained(folder):
        _recover(folder)
        _replace(folder, files)


def latest_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The last complete checkpoint of a run, checked against its sha256s; None if there was none."""
    folder = inside(folder, CHECKPOINT)
    files = _read(folder)
    if files is None:
        return None
    found = RunFolder(folder, files)
    if shard_name(0) in files:
        raise ValueError(f"{folder} was saved by several processes: start them again, with torchrun and --resume")
    return Checkpoint(found.finite_tensors("tensors.safetensors"), found.read("meta.json", dict[str, Any]))


def shard_name(rank: int) -> str:
    """The file of a checkpoint that one of several processes writes."""
    return f"rank-{rank}.safetensors"


def discard_checkpoint(folder: str | Path) -> None:
    """Removes the checkpoint of a run, if there is one; killed on the way, it leaves a whole one or none."""
    folder = inside(folder, CHECKPOINT)
    with explained(folder):
        if folder.is_dir():
            _recover(folder)
            if (folder / MANIFEST).exists():
                os.unlink(folder / MANIFEST)
                sync(folder)
            _remove(folder)


def inside(folder: str | Path, name: str) -> Path:
    """A folder or file of a run folder, which may be absent but is not a link to somewhere else."""
    path = Path(folder) / name
    if path.is_symlink():
        raise ValueError(f"{path} is a link; there are none in a run folder. Remove it, or choose another folder")
    return path


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


KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def decode_as(kind: Any, value: Any, name: str = "") -> Any:
    """A JSON value as a type: int, float, str, bool, `X | None`, list[X], tuple[X, ...], dict[str, X] or a dataclass of such.

    What does not fit is a ValueError that says where: `name` is the place of the value.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        some = next(one for one in inner if one is not types.NoneType)
        return None if value is None else decode_as(some, value, name)
    json_kind = dict if dataclasses.is_dataclass(kind) else list if origin is tuple else origin or kind
    is_number = type(value) in (int, float) and abs(value) < 2**63 and math.isfinite(value)
    fits = {int: is_number and type(value) is int, float: is_number}.get(json_kind, type(value) is json_kind)
    if not fits:
        raise ValueError(f"{name or 'it'} is {value!r:.40}; it is {KINDS[json_kind]}")
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, name)
    if json_kind is list:
        items = [decode_as(inner[0], item, f"{name}[{k}]") for k, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if json_kind is dict:
        return {key: decode_as(inner[1], item, f"{name}[{key!r:.40}]") for key, item in value.items()}
    return kind(value)


def _decode_dataclass(kind: Any, value: dict[str, Any], name: str) -> Any:
    hints = _hints(kind)
    if unknown := [key for key in value if key not in hints]:
        raise ValueError(f"{name or 'it'} has a field {unknown[0]!r:.40}; there are {', '.join(hints)}")
    fields = {key: decode_as(hints[key], item, f"{name}.{key}" if name else key) for key, item in value.items()}
    for spec in dataclasses.fields(kind):
        is_optional = spec.default is not dataclasses.MISSING or spec.default_factory is not dataclasses.MISSING
        if spec.name not in fields and not is_optional:
            raise ValueError(f"{name or 'it'} has no field {spec.name!r}")
    return kind(**fields)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return {spec.name: get_type_hints(kind)[spec.name] for spec in dataclasses.fields(kind)}


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
    os.makedirs(folder / NEXT)
    try:
        _commit(folder, dict(_written(folder, name, data) for name, data in files.items()))
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            if not (folder / NEXT / MANIFEST).exists():
                _remove(folder / NEXT)
        raise


def begin(folder: Path) -> None:
    """Make room for a state that is written file by file."""
    with explained(folder):
        _recover(folder)
        os.makedirs(folder / NEXT)


def write_part(folder: Path, name: str, data: bytes) -> tuple[str, Entry]:
    """Step 1 for one file: its name and what the manifest says of it."""
    with explained(folder):
        return _written(folder, name, data)


def commit(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Steps 2 and 3, once all files are written."""
    with explained(folder):
        _commit(folder, entries)


def _written(folder: Path, name: str, data: bytes) -> tuple[str, Entry]:
    write_new(folder / NEXT / name, data)
    return name, {"sha256": _sha256(data), "size": len(data)}


def _commit(folder: Path, entries: Mapping[str, Entry]) -> None:
    sync(folder / NEXT)
    sync(folder)
    listed = {name: entries[name] for name in sorted(entries)}
    replace_file(folder / NEXT / MANIFEST, encode_json({"format": FORMAT, "files": listed}))  # the commit
    _finish(folder)


def read_some(folder: Path, names: Sequence[str]) -> RunFolder | None:
    """Some files of the current state, each compared with its sha256; None where no state was ever committed."""
    files = _read(folder, names)
    return None if files is None else RunFolder(folder, files)


def _recover(folder: Path) -> None:
    """Completes what a killed writer had committed, clears away what it had not."""
    if not (folder / NEXT).is_symlink() and (folder / NEXT / MANIFEST).exists():
        _finish(folder)
    elif os.path.lexists(folder / NEXT):
        _remove(folder / NEXT)


def _finish(folder: Path) -> None:
    """Step 3: moves a committed state into place. Can be repeated from any point at which it was stopped."""
    coming = _listed(folder / NEXT)
    for name in coming:
        if os.path.lexists(folder / NEXT / name):
            os.replace(inside(folder / NEXT, name), folder / name)
    for name in _listed(folder):
        if name not in coming and os.path.lexists(folder / name):
            os.unlink(folder / name)
    sync(folder / NEXT)
    sync(folder)
    os.replace(folder / NEXT / MANIFEST, folder / MANIFEST)
    sync(folder)
    _remove(folder / NEXT)


def _read(folder: Path, names: Sequence[str] = ()) -> dict[str, bytes] | None:
    """The files of the current state, or those of these names; None where no state was ever committed."""
    while True:
        current = _manifest(folder)
        if current is None:
            return None
        try:
            listed = _entries(*current)
            return {
                name: _content(folder, current[0], name, entry)
                for name, entry in listed.items()
                if not names or name in names
            }
        except ValueError:
            if _manifest(folder) == current:  # else a save went on meanwhile: read what it left
                raise


def _manifest(folder: Path) -> tuple[Path, bytes] | None:
    for place in (inside(folder, NEXT), folder):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return place / MANIFEST, read_plain(place / MANIFEST)
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
        return list(_entries(folder / MANIFEST, read_plain(folder / MANIFEST)))
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
    if (size := _plain_size(path)) != entry["size"]:
        raise ValueError(
            f"{path}: {size} bytes, but {MANIFEST} says {entry['size']}: cut short or changed after saving"
        )
    data = read_plain(path)
    if (found := _sha256(data)) != entry["sha256"]:
        raise ValueError(f"{path}: sha256 {found}, but {MANIFEST} says {entry['sha256']}: changed after saving")
    return data


def read_plain(path: Path) -> bytes:
    """The content of a file of a run folder: not a link, and not a named pipe, which would keep us waiting."""
    _plain_size(path)
    return path.read_bytes()


def _plain_size(path: Path) -> int:
    status = inside(path.parent, path.name).stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: not a file")
    return status.st_size


def _is_entry(name: str, entry: object) -> bool:
    return _is_plain(name) and isinstance(entry, dict) and entry.keys() == {"sha256", "size"}


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*", name, re.ASCII) is not None and name != MANIFEST


def sha256_of(value: Any) -> str:
    """The sha256 of a value as JSON."""
    return _sha256(encode_json(value))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _remove(folder: Path) -> None:
    """Removes a folder of ours, in which there are only files. A link in its place is not followed."""
    if folder.is_symlink():
        os.unlink(folder)
        return
    for name in os.listdir(folder):
        os.unlink(folder / name)
    os.rmdir(folder)
