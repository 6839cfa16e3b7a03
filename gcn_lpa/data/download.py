"""Fetch a file over verified TLS: into memory, checked, then written whole."""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from gcn_lpa.data.files import write_output

TIMEOUT_SECONDS = 30
MAX_SECONDS = 900
MAX_BYTES = 64 * 2**20


def download(url: str, path: Path, check: Callable[[bytes], None]) -> None:
    """Write what `url` serves to `path`, if `check` accepts it; else nothing is left behind.

    Only https is spoken, also after a redirect, with certificates checked against the system's authorities
    (and those in $SSL_CERT_FILE).
    """
    blocks, size, start = [], 0, time.monotonic()
    with _https_only().open(url, timeout=TIMEOUT_SECONDS) as response:
        while block := response.read(2**16):
            blocks.append(block)
            size += len(block)
            if size > MAX_BYTES:
                raise ValueError(f"{url} serves more than {MAX_BYTES:,} bytes")
            if time.monotonic() - start > MAX_SECONDS:  # a server may send a byte now and then, for ever
                raise ValueError(f"{url} was not served within {MAX_SECONDS} seconds")
    received = b"".join(blocks)
    check(received)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, received)


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
