"""How the command line behaves: quiet, with a traceback on request, and with a hint where something is nearly right."""

import json

import pytest
from test_report import run_of
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.graph import Graph
from gcn_lpa.learning import learn
from gcn_lpa.predict import predictions


def said(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("manners")).folder


def doubtful(tmp_path):
    """A folder whose labels differ in case alone, which is doubted on stderr."""
    (tmp_path / "nodes.csv").write_text("id,label\na,Red\nb,red\nc,blue\nd,blue\ne,\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nc,d\nd,e\n")
    return tmp_path


def test_quiet_leaves_doubts_out_and_keeps_errors(tmp_path):
    aloud = said("train", doubtful(tmp_path), "--epochs", 1)
    quiet = said("--quiet", "train", tmp_path, "--epochs", 1)
    assert "check:" in aloud.stderr
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert said("-q", "evaluate", "nowhere").stderr.startswith("gcn-lpa: nowhere is not a run folder")


def test_debug_shows_where_an_error_comes_from():
    assert isinstance(said("--debug", "evaluate", "nowhere").exception, ValueError)
    assert isinstance(said("evaluate", "nowhere").exception, SystemExit)  # one line, and no longer in debug


def test_completion_is_offered():
    assert "--install-completion" in said("--help").stdout


@pytest.mark.long
def test_every_class_has_its_probability_on_request(folder):
    rows = json.loads(said("predict", folder, "--all-classes", "--json").stdout)
    assert len(rows) == 8
    for row in rows:
        assert row["p:good"] + row["p:bad"] == pytest.approx(1)
        assert row[f"p:{row['label']}"] == pytest.approx(row["probability"])
    assert said("predict", folder, "--all-classes", "--on", "x").exit_code == 2


@pytest.mark.long
def test_suggest_says_when_there_are_fewer(folder):
    assert said("suggest", folder, "-n", 500).stdout.endswith(
        "8 of the 500 asked for: no other node may be suggested\n"
    )
    assert "asked for" not in said("suggest", folder, "-n", 3).stdout


@pytest.mark.long
def test_a_model_that_abstains_keeps_unreachable_nodes_apart():
    graph = Graph.from_edges([(0, 1), (2, 3), (4, 5)], y=[0, -1, 1, -1, -1, -1])
    trained = learn(graph, [0, 2], [])
    table = predictions(trained, graph, abstain=1.0)
    assert table["status"].tolist() == ["labeled", "abstain", "labeled", "abstain", "unreachable", "unreachable"]
    assert table["label"].tolist()[4:] == ["", ""]


def test_an_id_that_lost_its_zeros_is_named():
    graph = Graph.from_edges([("007", "0012"), ("0012", "100")])
    with pytest.raises(ValueError, match="has no node '7'; did you mean 007"):
        graph.index_of("7")
    with pytest.raises(ValueError, match="has no node '012'; did you mean 0012"):
        graph.index_of("012")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"PK\x03\x04\x14\x00\x06", "nodes.csv is a zip archive or an Excel workbook"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "nodes.csv is an old Excel workbook"),
        (b"\n  <!DOCTYPE html><html><body>Log in", "nodes.csv is a web page"),
        (b"<HTML><head>", "nodes.csv is a web page"),
        (b"%PDF-1.7\n", "nodes.csv is a PDF"),
        (b"PAR1\x15\x04", "nodes.csv is a Parquet file"),
        (b"\x1f\x8b\x08\x00", "nodes.csv is compressed by gzip"),
    ],
)
def test_a_file_that_is_no_table_is_called_what_it_is(tmp_path, content, expected):
    (tmp_path / "nodes.csv").write_bytes(content)
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    done = said("info", tmp_path)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert expected in done.stderr


def test_a_missing_run_folder_is_called_missing(tmp_path):
    assert "there is nothing of that name" in said("predict", tmp_path / "none").stderr
    assert "it has no manifest.json" in said("predict", tmp_path).stderr
