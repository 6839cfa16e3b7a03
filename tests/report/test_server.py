"""The server of a page: who may ask, what it answers, and that nobody stops it."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from gcn_lpa.insight.explain import explain
from gcn_lpa.insight.what_if import what_if
from gcn_lpa.report.page import OpenRun
from gcn_lpa.report.server import LARGEST_BODY, PageServer, asked_of
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run():
    plan, graph = make_plan(Source("karate"), changes={"epochs": 5})
    return train_run(plan, graph)


@pytest.fixture(scope="module")
def server(run):
    with PageServer(b"<!doctype html>", OpenRun(run)) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def asked(server, path="", method="GET", body=None, token=None, **headers):
    """The status and the JSON or text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, f"/{server.token if token is None else token}/{path}", body=body, headers=headers)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, json.loads(text) if reply.headers.get_content_type() == "application/json" else text


def posted(server, body, **headers):
    return asked(server, "what-if", "POST", json.dumps(body), **{"Content_Type": "application/json", **headers})


def test_the_page_and_the_answers_are_those_of_the_library(server, run):
    assert asked(server) == (200, "<!doctype html>")
    status, why = asked(server, f"explain?node={quote('5')}")
    expected = explain(run.trained, run.graph, 5, top=6)
    assert status == 200
    assert [(vote[0], vote[1]) for vote in why["votes"]] == [(str(vote.node), vote.label) for vote in expected.votes]
    assert [vote[2] for vote in why["votes"]] == pytest.approx([vote.share for vote in expected.votes], rel=1e-3)
    source, target = int(run.graph.row[0]), int(run.graph.col[0])
    status, found = posted(server, {"remove_edges": [[str(source), str(target)]]})
    expected = what_if(run.trained, run.graph, remove_edges=[(source, target)])
    assert status == 200
    assert found["model"]["largest_move"] == pytest.approx(expected.model.largest_move)
    assert found["lpa"]["num_changes"] == len(expected.lpa.changes)


STRANGERS = [
    ({"token": "wrong"}, 403),
    ({"token": ""}, 403),
    ({"token": "é"}, 403),
    ({"Host": "evil.example"}, 403),
    ({"Host": "127.0.0.1"}, 403),  # without the port
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec_Fetch_Site": "cross-site"}, 403),
    ({"Sec_Fetch_Site": "same-site"}, 403),
    ({"path": "../../etc/passwd"}, 404),
    ({"path": "..%2f..%2fetc%2fpasswd"}, 404),
    ({"path": "/etc/passwd"}, 404),
    ({"path": "report.html"}, 404),
    ({"path": "what-if"}, 404),  # is asked by POST
    ({"path": "explain"}, 400),
    ({"path": "explain?node=1&node=2"}, 400),
    ({"path": "explain?node=nobody"}, 400),
    ({"method": "DELETE"}, 501),
    ({"method": "OPTIONS", "Origin": "http://evil.example"}, 501),
]


@pytest.mark.parametrize(("request_", "status"), STRANGERS, ids=str)
def test_a_stranger_is_refused_and_the_server_goes_on(server, request_, status):
    options = {**request_}
    if options.get("token") == "é":
        options["token"] = quote("é")
    found, said = asked(server, options.pop("path", ""), **options)
    assert found == status
    assert "<!doctype html>" not in str(said)
    assert asked(server)[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{", {"Content_Type": "application/json"}, 400),
        ("[" * 60_000, {"Content_Type": "application/json"}, 400),
        ("{}", {"Content_Type": "application/json"}, 400),
        ('{"label": [["5", "no such class"]]}', {"Content_Type": "application/json"}, 400),
        ('{"unlabel": "5"}', {"Content_Type": "application/json"}, 400),
        ('{"open": ["/etc/passwd"]}', {"Content_Type": "application/json"}, 400),
        ('{"unlabel": ["5"]}', {"Content_Type": "text/plain"}, 415),  # what a form of another site can send
        ('{"unlabel": ["5"]}', {"Content_Type": "application/json", "Origin": "http://evil.example"}, 403),
        ("x" * (LARGEST_BODY + 1), {"Content_Type": "application/json"}, 413),
        ("", {"Content_Type": "application/json", "Content_Length": "-1"}, 411),
        ("", {"Content_Type": "application/json", "Content_Length": "9" * 5000}, 411),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_question_that_is_none_gets_a_sentence(server, body, headers, status):
    found, said = asked(server, "what-if", "POST", body, **headers)
    assert (found, set(said)) == (status, {"error"})


def test_the_answer_may_not_be_read_or_framed_by_others(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", f"/{server.token}/")
    headers = connection.getresponse().headers
    connection.close()
    assert headers["Access-Control-Allow-Origin"] is None
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert (headers["X-Frame-Options"], headers["Cache-Control"]) == ("DENY", "no-store")


def test_it_listens_on_this_machine_alone_and_draws_a_new_token_each_time(server):
    assert server.server_address[0] == "127.0.0.1"
    with PageServer(server.page, server.subject) as other:
        assert other.token != server.token
        assert len(other.token) == 43  # 32 bytes


def test_a_client_that_says_nothing_keeps_nobody_waiting(server):
    silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(20)]
    silent[0].sendall(b"GET / HT")
    silent[1].close()
    assert asked(server)[0] == 200
    for one in silent:
        one.close()


@pytest.mark.slow
def test_ten_thousand_requests_of_a_stranger_leave_it_answering(server):
    for _ in range(10_000):
        assert asked(server, token="wrong")[0] == 403
    assert asked(server)[0] == 200


def test_a_question_is_read_as_it_was_meant():
    found = asked_of({"label": [["a", "x"]], "unlabel": ["b"], "remove_edges": [["a", "b"]]})
    assert (found.label, list(found.unlabel), list(found.remove_edges)) == ({"a": "x"}, ["b"], [("a", "b")])
    with pytest.raises(ValueError, match="relabel is a list of at most 1,000 pairs"):
        asked_of({"relabel": [["a", "b"]] * 1001})


@pytest.mark.long
def test_the_command_prints_its_address_answers_and_ends_with_ctrl_c(run, tmp_path):
    plan, graph = make_plan(Source("karate"), changes={"epochs": 2})
    train_run(plan, graph, tmp_path / "run")
    command = [sys.executable, "-m", "gcn_lpa", "report", str(tmp_path / "run"), "--serve", "--quick"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url, told = (process.stdout.readline().strip() for _ in range(2))
        host, token = url.removeprefix("http://").rstrip("/").split("/")
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("GET", f"/{token}/")
        page = connection.getresponse().read().decode()
        connection.close()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, told, out, errors) == (0, "Ctrl-C ends it", "", "")
    assert "connect-src &#39;self&#39;" in page
