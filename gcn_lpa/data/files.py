"""Files on disk: written whole or not at all, where a user says, and by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def check_output(path: str | Path, *, overwrite: bool) -> None:
    """Refuse a place where `write_output` could not write, or would replace a file unasked: before the work, not after."""
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
    """Replace a file: a reader finds the whole old content or the whole new one, at any time.

    Links are followed, devices and pipes written through, and a file keeps its mode.
    """
    path = Path(path)
    with writing(path):
        if _is_stream(path):
            path.write_bytes(data)
            return
        target = Path(os.path.realpath(path))
        remove_stale(target.parent, f".{glob.escape(target.name)}.*.tmp")
        replace_file(target, data, mode=stat.S_IMODE(target.stat().st_mode) if target.exists() else None)
        sync(target.parent)


def write_figure(figure: Any, path: str | Path, **options: Any) -> None:
    """Write a figure of matplotlib like `write_output`, in the format that the ending names; without one, as .png."""
    path, drawn = Path(path), io.BytesIO()
    path = path if path.suffix else path.with_suffix(".png")
    figure.savefig(drawn, format=path.suffix[1:], **options)
    write_output(path, drawn.getvalue())


def _is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or one of the process's own files, such as /dev/stdout, in place of a file."""
    is_own = path.is_absolute() and path.parts[1] in ("dev", "proc")
    return path.exists() and not path.is_dir() and (is_own or not path.is_file())


def replace_file(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Give a file its content by one rename, which outlasts a power cut once the folder is synced."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # a name for which no link can wait
    try:
        with open(unfinished, "xb") as file:
            lock(file.fileno())  # until it is in its place: so that it is not taken for stale
            if mode is not None:
                os.chmod(unfinished, mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def remove_stale(folder: Path, pattern: str) -> None:
    """Remove what killed writers left in a folder; the file of one that still writes is locked."""
    for leftover in folder.glob(pattern):
        with contextlib.suppress(OSError):
            descriptor = os.open(leftover, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would keep us waiting
            try:
                if lock(descriptor):
                    os.unlink(leftover)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def holding(folder: str | Path) -> Iterator[None]:
    """Make a folder where there is none, and hold it against other processes while the block runs.

    The operating system lets go of it when its holder ends, however it ends. Where there are no locks nothing is held.
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
    """Lock a file or folder until it is closed; False if another process, or another place of this one, holds it."""
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
