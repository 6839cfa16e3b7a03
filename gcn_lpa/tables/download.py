"""Fetch a file over verified TLS: to a temporary file, checked, then moved into place."""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from gcn_lpa.files import lock, remove_stale

TIMEOUT_SECONDS = 30
MAX_SECONDS = 900
MAX_BYTES = 64 * 2**20


def download(url: str, path: Path, check: Callable[[Path], None]) -> None:
    """Write what `url` serves to `path`, if `check` accepts it; else nothing is left behind.

    Only https is spoken, also after a redirect, with certificates checked against the system's authorities
    (and those in $SSL_CERT_FILE).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    lock(descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file, _https_only().open(url, timeout=TIMEOUT_SECONDS) as response:
            received, start = 0, time.monotonic()
            while block := response.read(2**16):
                received += len(block)
                if received > MAX_BYTES:
                    raise ValueError(f"{url} serves more than {MAX_BYTES:,} bytes")
                if time.monotonic() - start > MAX_SECONDS:  # a server may send a byte now and then, for ever
                    raise ValueError(f"{url} was not served within {MAX_SECONDS} seconds")
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        check(Path(temporary))
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def require_sha256(path: Path, expected: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise ValueError(f"its sha256 is {found[:16]}…, the published file has {expected[:16]}…")


def _https_only() -> urllib.request.OpenerDirector:
    """urllib's opener without http, ftp and file, so that no redirect leads to them."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener
