"""The page of a run on 127.0.0.1, with answers: why any node has its label, and what would change it.

Ten questions cost one start-up. Whoever is not the page is refused: the address holds a token of 256 bits that is drawn
anew at each start; the Host header must name this server, which keeps other sites from reaching it by a name of their own
(DNS rebinding); a request that says it comes from another origin is refused; bodies are small, and every connection has a
time limit. Nothing is read from disk after the start, so no path can name a file.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from gcn_lpa.insight.what_if import Asked

if TYPE_CHECKING:
    from gcn_lpa.report.page import OpenRun

LARGEST_BODY = 64 * 1024
SECONDS = 20  # for a client to send its request, and to take the answer
MOST_CHANGES = 1000  # in one what-if
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class RefusedError(Exception):
    """A request that gets no answer but this."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answers:
    """What the server can say: its page, and answers about one run, one at a time."""

    page: bytes
    subject: OpenRun
    lock: threading.Lock = field(default_factory=threading.Lock)

    def explain(self, query: str) -> dict[str, Any]:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=4).get("node", [])
        if len(found) != 1:
            raise ValueError("name one node, as explain?node=ID")
        with self.lock:
            return self.subject.explain(found[0])

    def what_if(self, body: Any) -> dict[str, Any]:
        asked = asked_of(body)
        with self.lock:
            return self.subject.what_if(asked)


def asked_of(body: Any) -> Asked:
    """The changes that a request names: label and relabel as [[node, class], …], unlabel as [node, …], remove_edges as pairs."""
    if not isinstance(body, dict) or not body or not body.keys() <= {"label", "relabel", "unlabel", "remove_edges"}:
        raise ValueError("a question is an object with some of label, relabel, unlabel and remove_edges")
    for name, value in body.items():
        is_each = _is_text if name == "unlabel" else _is_pair
        if not isinstance(value, list) or len(value) > MOST_CHANGES or not all(map(is_each, value)):
            what = "node ids" if name == "unlabel" else "pairs of texts"
            raise ValueError(f"{name} is a list of at most {MOST_CHANGES:,} {what}")
    return Asked(
        label=dict(body.get("label", ())),
        relabel=dict(body.get("relabel", ())),
        unlabel=body.get("unlabel", ()),
        remove_edges=[(a, b) for a, b in body.get("remove_edges", ())],
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_text, value))


class AskServer(ThreadingHTTPServer):
    """Serves `answers` on 127.0.0.1 under a token."""

    daemon_threads = True
    request_queue_size = 128  # five, as it comes, make a sixth client wait for seconds

    def __init__(self, answers: Answers, port: int = 0) -> None:
        self.answers, self.token = answers, secrets.token_urlsafe(32)
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def hosts(self) -> tuple[str, ...]:
        return f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.hosts[0]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()[1]
        if not isinstance(error, OSError):  # a client that went away is no mistake of ours
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: AskServer
    timeout = SECONDS
    server_version, sys_version = "gcn-lpa", ""

    def do_GET(self) -> None:
        self._answer({"": self._page, "explain": self._explain})

    def do_POST(self) -> None:
        self._answer({"what-if": self._what_if})

    def _answer(self, paths: dict[str, Callable[[str], tuple[str, bytes]]]) -> None:
        try:
            path, query = self._allowed()
            if path not in paths:
                raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")
            kind, content = paths[path](query)
            self._send(HTTPStatus.OK, kind, content)
        except RefusedError as refused:
            self._send(refused.status, "application/json", _json({"error": str(refused)}))
        except ValueError as error:  # of the question: an unknown node, class or edge
            self._send(HTTPStatus.BAD_REQUEST, "application/json", _json({"error": " ".join(str(error).split())}))

    def _allowed(self) -> tuple[str, str]:
        """What is asked under the token, path and query; whoever may not ask is refused."""
        if self.headers.get("Host", "") not in self.server.hosts:
            raise RefusedError(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 alone")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        if origin not in (None, *(f"http://{host}" for host in self.server.hosts)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "another origin may not ask")
        if site not in ("same-origin", "none"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "another site may not ask")
        parts = urlsplit(self.path)
        _, token, *rest = f"{parts.path}/".split("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise RefusedError(HTTPStatus.FORBIDDEN, "the token is not the one this server printed")
        return "/".join(rest).rstrip("/"), parts.query

    def _page(self, query: str) -> tuple[str, bytes]:
        return "text/html; charset=utf-8", self.server.answers.page

    def _explain(self, query: str) -> tuple[str, bytes]:
        return "application/json", _json(self.server.answers.explain(query))

    def _what_if(self, query: str) -> tuple[str, bytes]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 9:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "the length of the question is missing")
        if int(length) > LARGEST_BODY:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question has at most {LARGEST_BODY:,} bytes")
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question is application/json")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise ValueError("the question is not valid JSON") from None
        return "application/json", _json(self.server.answers.what_if(body))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the token is in every address and belongs in no log."""


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
