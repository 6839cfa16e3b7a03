"""Files on disk: written whole or not at all, where a user says, and by one process at a time.

JSON is strict when written and checked when read; whatever is wrong is one ValueError that names the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import glob
import io
import json
import math
import os
import secrets
import stat
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def check_output(path: str | Path, *, overwrite: bool) -> None:
    """Refuse a path that `write_output` could not write, or would replace unasked: before the work, not after."""
    path = Path(path)
    if _is_stream(path):
        return
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to write {target.name} in")
    if target.exists() and not overwrite:
        raise ValueError(f"{path} exists; choose another file, or --overwrite to replace it")


def write_output(path: str | Path, data: bytes) -> None:
    """Replace a file: a reader finds the whole old content or the whole new one, at any time, also after a power cut.

    Links are followed, devices and pipes written through, and a file keeps its mode. What killed writers left is removed.
    """
    path = Path(path)
    with writing(path):
        if _is_stream(path):
            path.write_bytes(data)
            return
        target = Path(os.path.realpath(path))
        for leftover in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
            with contextlib.suppress(OSError):
                no_wait = getattr(os, "O_NONBLOCK", 0)  # a pipe would keep us waiting
                descriptor = os.open(leftover, os.O_RDONLY | no_wait)
                try:
                    if lock(descriptor):  # nobody writes it any more
                        os.unlink(leftover)
                finally:
                    os.close(descriptor)
        unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")  # a name for which no link can wait
        try:
            with open(unfinished, "xb") as file:
                lock(file.fileno())  # until it is in its place: so that it is not taken for a leftover
                if target.exists():
                    os.chmod(unfinished, stat.S_IMODE(target.stat().st_mode))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                os.replace(unfinished, target)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        sync(target.parent)


def write_figure(figure: Any, path: str | Path, **options: Any) -> None:
    """Write a figure of matplotlib like `write_output`, in the format that the ending names; without one, as .png."""
    path, drawn = Path(path), io.BytesIO()
    path = path if path.suffix else path.with_suffix(".png")
    figure.savefig(drawn, format=path.suffix[1:], **options)
    write_output(path, drawn.getvalue())


def _is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or an entry of /dev or /proc such as /dev/stdout, not a file."""
    is_own = path.is_absolute() and path.parts[1] in ("dev", "proc")
    return path.exists() and not path.is_dir() and (is_own or not path.is_file())


@contextlib.contextmanager
def holding(folder: str | Path) -> Iterator[None]:
    """Make a folder where there is none, and hold it against other processes while the block runs.

    The operating system frees it when its holder ends, however it ends. Where there are no locks nothing is held.
    """
    if Path(folder).is_file():
        raise ValueError(f"{folder} is a file; choose another place")
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None and not lock(descriptor):
            raise ValueError(f"{folder} is in use by another process; wait until it is done, or choose another")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock a file or folder until it is closed; False if another process, or another descriptor of this one, holds it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)  # others: a file system without locks
    return True


def sync(folder: Path) -> None:
    """Make the names in a folder outlast a power cut, where the system can: Windows and some network drives cannot."""
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


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Add to an OSError of writing what was to be written and what the user can do."""
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


class FileError(ValueError):
    """What is wrong with a file, in one sentence that begins with its name."""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a file is decoded into one sentence that names it."""
    try:
        yield
    except FileError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        problem = " ".join(str(error).split())
        if not isinstance(error, ValueError):
            problem = f"not as gcn-lpa writes it ({problem})"
        raise FileError(f"{path}: {problem}") from error


def write_json(path: str | Path, value: Any) -> None:
    with naming(Path(path)):
        data = encode_json(value)
    write_output(path, data)


def read_json(path: str | Path) -> Any:
    path = Path(path)
    return decode_json(path.read_bytes(), path)


def encode_json(value: Any, *, indent: int | None = 2) -> bytes:
    """JSON as the standard has it: NaN, infinities and halves of characters are a ValueError."""
    text = json.dumps(value, indent=indent, allow_nan=False)
    _require_characters(text, value)
    return (text + "\n").encode()


def decode_json(data: bytes, path: Path) -> Any:
    """The value of some JSON; what is wrong with it is a ValueError that names `path`."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        text = data.decode()
        value = json.loads(text, parse_constant=refuse)
        _require_characters(text, value)
        return value
    except RecursionError:
        raise FileError(f"{path}: not valid JSON: nested too deeply") from None
    except ValueError as error:  # also what UnicodeDecodeError and JSONDecodeError are
        raise FileError(f"{path}: not valid JSON: {error}") from None


def _require_characters(text: str, value: Any) -> None:
    """Refuse half of a surrogate pair, which JSON can spell (\\ud800) and no file or terminal can show."""
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()


WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def decode_as(kind: Any, value: Any, name: str = "") -> Any:
    """A JSON value as a type: int, float, str, bool, `X | None`, list[X], tuple[X, ...], dict[str, X] or a dataclass of such.

    What does not fit is a ValueError that says where; `name` says what the value is. A dataclass checks ranges itself, in
    its `__post_init__`.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        wanted = [option for option in inner if option is not types.NoneType]
        # of several dataclasses the one that has all fields of the value
        if isinstance(value, dict) and all(map(dataclasses.is_dataclass, wanted)):
            wanted = [option for option in wanted if value.keys() <= _hints(option).keys()] or wanted
        return None if value is None else decode_as(wanted[0], value, name)
    json_kind = dict if dataclasses.is_dataclass(kind) else list if origin is tuple else origin or kind
    is_number = math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < 2**63
    fits = {int: is_number and type(value) is int, float: is_number}.get(json_kind, type(value) is json_kind)
    if not fits:
        raise ValueError(f"{name or 'it'} is {value!r:.40}; it is {WORDS[json_kind]}")
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if unknown := [key for key in value if key not in hints]:
            raise ValueError(f"{name or 'it'} has a field {unknown[0]!r:.40}; there are {', '.join(hints)}")
        fields = {key: decode_as(hints[key], item, f"{name}.{key}" if name else key) for key, item in value.items()}
        for spec in dataclasses.fields(kind):
            if spec.name not in fields and spec.default is spec.default_factory is dataclasses.MISSING:
                raise ValueError(f"{name or 'it'} has no field {spec.name!r}")
        return kind(**fields)
    if json_kind is list:
        items = [decode_as(inner[0], item, f"{name}[{k}]") for k, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if json_kind is dict:
        return {key: decode_as(inner[1], item, f"{name}[{key!r:.40}]") for key, item in value.items()}
    return kind(value)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {spec.name: hints[spec.name] for spec in dataclasses.fields(kind)}
