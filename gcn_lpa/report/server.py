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


class PageServer(ThreadingHTTPServer):
    """Serves the page of a run on 127.0.0.1 under a token, and answers questions about the run, one at a time."""

    daemon_threads = True
    request_queue_size = 128  # five, as it comes, make a sixth client wait for seconds

    def __init__(self, page: bytes, subject: OpenRun, port: int = 0) -> None:
        self.page, self.subject, self.lock = page, subject, threading.Lock()
        self.token = secrets.token_urlsafe(32)
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
    server: PageServer
    timeout = SECONDS
    server_version, sys_version = "gcn-lpa", ""

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def _respond(self) -> None:
        content_type, status = "application/json", HTTPStatus.OK
        try:
            path, query = self._allowed()
            if (self.command, path) == ("GET", ""):
                content_type, content = "text/html; charset=utf-8", self.server.page
            else:
                content = self._answer(path, query)
        except RefusedError as refused:
            status, content = refused.status, _json({"error": str(refused)})
        except ValueError as error:  # of the question: an unknown node, class or edge
            status, content = HTTPStatus.BAD_REQUEST, _json({"error": " ".join(str(error).split())})
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": content_type, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

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

    def _answer(self, path: str, query: str) -> bytes:
        """The answer to a question, as JSON."""
        if (self.command, path) == ("GET", "explain"):
            nodes = parse_qs(query, keep_blank_values=True, max_num_fields=4).get("node", [])
            if len(nodes) != 1:
                raise ValueError("name one node, as explain?node=ID")
            with self.server.lock:
                return _json(self.server.subject.explain(nodes[0]))
        if (self.command, path) == ("POST", "what-if"):
            asked = asked_of(self._body())
            with self.server.lock:
                return _json(self.server.subject.what_if(asked))
        raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _body(self) -> Any:
        """The JSON that came with a request."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 9:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "the length of the question is missing")
        if int(length) > LARGEST_BODY:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question has at most {LARGEST_BODY:,} bytes")
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question is application/json")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise ValueError("the question is not valid JSON") from None

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the token is in every address and belongs in no log."""


def asked_of(body: Any) -> Asked:
    """The changes that a request names: label and relabel as [[node, class], …], unlabel as [node, …], remove_edges as pairs."""
    if not isinstance(body, dict) or not body or not body.keys() <= {"label", "relabel", "unlabel", "remove_edges"}:
        raise ValueError("a question is an object with some of label, relabel, unlabel and remove_edges")
    for name, value in body.items():
        rows = [[one] if name == "unlabel" else one for one in value] if isinstance(value, list) else []
        size, what = (1, "node ids") if name == "unlabel" else (2, "pairs of texts")
        fits = all(isinstance(row, list) and len(row) == size and all(isinstance(one, str) for one in row) for row in rows)
        if not isinstance(value, list) or len(value) > MOST_CHANGES or not fits:
            raise ValueError(f"{name} is a list of at most {MOST_CHANGES:,} {what}")
    return Asked(
        label=dict(body.get("label", ())),
        relabel=dict(body.get("relabel", ())),
        unlabel=body.get("unlabel", ()),
        remove_edges=[(a, b) for a, b in body.get("remove_edges", ())],
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
