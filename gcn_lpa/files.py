"""Files on disk: written whole or not at all, where a user says, and by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def write_atomic(path: str | Path, data: bytes) -> None:
    """Replaces a file: a reader finds the whole old content or the whole new one, at any time."""
    path = Path(path)
    with explained(path):
        replace_file(path, data)


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
    """Write a file that a user named: links are followed, devices and pipes written through, a file keeps its mode."""
    path = Path(path)
    with explained(path):
        if _is_stream(path):
            path.write_bytes(data)
        else:
            replace_file(Path(os.path.realpath(path)), data, keep_mode=True)


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


def replace_file(path: Path, data: bytes, *, keep_mode: bool = False) -> None:
    remove_stale(path)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # a name for which no link can wait
    try:
        with open(unfinished, "xb") as file:
            lock(file.fileno())  # until it is in its place: so that it is not taken for stale
            if keep_mode and path.exists():
                os.chmod(unfinished, stat.S_IMODE(path.stat().st_mode))
            _fill(file, data)
            os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


_held: dict[tuple[int, int], int] = {}  # device and inode of what this process holds, and the thread that does


@contextlib.contextmanager
def holding(path: str | Path) -> Iterator[None]:
    """Hold a file or folder against other processes while the block runs; if one holds it, that is a ValueError.

    The operating system lets go of it when its holder ends, however it ends. Where there are no locks nothing is held.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        place, thread = (status.st_dev, status.st_ino), threading.get_ident()
        is_ours = _held.get(place) == thread
        if not is_ours and not lock(descriptor):
            raise ValueError(f"{path} is in use by {_holder(status.st_ino)}; wait until it is done, or choose another")
        _held[place] = thread
        try:
            yield
        finally:
            if not is_ours:
                del _held[place]
    finally:
        os.close(descriptor)


def _holder(inode: int) -> str:
    """The process that holds a lock, where the system tells."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5].endswith(f":{inode}"):
                return f"process {words[4]}"
    return "another process"


def remove_stale(path: Path) -> None:
    """Remove what killed writers of a file left beside it; the file of one that still writes is locked."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError), open(leftover, "rb") as file:
            if lock(file.fileno()):
                leftover.unlink()


def lock(descriptor: int) -> bool:
    """Lock a file or folder until it is closed; False if another process, or another place of this one, holds it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)  # others: a file system without locks
    return True


def write_new(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        _fill(file, data)


def _fill(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def sync(folder: Path) -> None:
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


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
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
