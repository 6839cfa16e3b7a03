"""The command line as a user meets it: what it prints, where, and the exit code."""

import json
import os
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.cli.options import load_graph, recipe_fields
from gcn_lpa.data.datasets import DATASETS

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.long
def test_datasets_without_files_are_null_in_json(tmp_path):
    result = run("info", "--root", tmp_path, "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert result.exit_code == 0
    assert list(rows) == list(DATASETS)
    absent = dict.fromkeys(("nodes", "edges", "features", "classes"))
    assert rows["cora"] == {"name": "cora", "summary": "machine-learning papers", **absent}
    assert [rows["karate"][count] for count in absent] == [34, 78, 34, 2]


@pytest.mark.long
def test_datasets_counts_the_files_that_are_here(datasets, tmp_path):
    lines = run("info", "--root", datasets).stdout.splitlines()
    line = next(line for line in lines if line.startswith("coauthor-phy"))
    assert line.split() == ["coauthor-phy", "34,493", "247,962", "8,415", "5", "physicists"]
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)
    said = " ".join(run("info", "--root", tmp_path).stdout.split())
    assert "cora – – – – machine-learning papers (files not found)" in said


def test_info_says_what_a_user_wants_to_know():
    assert run("info", "karate").stdout.splitlines() == [
        "karate: 34 nodes, 78 undirected edges, 0 self-loops",
        "  features     34 (identity, sparse), 34 non-zero",
        "    graph      degrees, PageRank, neighbours' too -> 4 features, for trees, LR",
        "  labels       34 of 34 nodes, 2 classes (Mr. Hi: 17, Officer: 17)",
        "  intra-class  85.9 % of all edges as the paper counts (no label = first class),",
        "               85.9 % of the 78 edges between labelled nodes",
        "  homophily    edge 0.859, node 0.888, adjusted 0.718",
        "  reach        components 1, isolated nodes 0, nodes that no label can reach 0",
        "  note         no features: the identity matrix stands in",
    ]


def test_info_of_ones_own_graph_leaves_out_what_only_the_paper_counts(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label\na,red\nb,red\nc,\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    assert "  intra-class  100.0 % of the 1 edge between labelled nodes\n" in run("info", tmp_path).stdout
    (tmp_path / "nodes.csv").write_text("id,label\na,red\nb,\nc,red\n")
    assert "  intra-class  no edge between labelled nodes\n" in run("info", tmp_path).stdout


def test_a_message_of_the_library_says_how_to_answer_it_here(tmp_path):
    (tmp_path / "nodes.csv").write_text("who,label\na,red\n")
    result = run("info", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.endswith("Say with option id=… which it is, or header=false if that row is data\n")


def test_info_of_a_folder_in_json(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,b\nc,d\n")
    (tmp_path / "labels.csv").write_text("id,label\na,red\n")
    result = run("info", tmp_path, "--json")
    info = json.loads(result.stdout)
    assert result.stderr == ""
    assert (info["nodes"], info["edges"], info["self_loops"], info["components"], info["unreachable"]) == (
        4,
        2,
        1,
        2,
        2,
    )
    assert info["class_sizes"] == {"red": 1}
    assert info["adjusted_homophily"] is None


def test_options_are_those_of_the_reader(tmp_path):
    (tmp_path / "nodes.csv").write_text("who,group,n1,n2\nb,x,1,2\na,y,3,4\n")
    (tmp_path / "edges.csv").write_text("giver,taker\na,b\n")
    options = ["id=who", "label=group", "features=n2,n1", "source=giver", "target=taker", "directed=yes"]
    graph = load_graph(str(tmp_path), None, options)
    assert graph.x.tolist() == [[2, 1], [4, 3]]
    (tmp_path / "nodes.csv").write_text('who,group,"n1, in m",n2\nb,x,1,2\na,y,3,4\n')
    options[2] = "features=n1, in m"
    assert load_graph(str(tmp_path), None, options).x.tolist() == [[1], [3]]
    assert graph.directed
    assert graph.node_names == ("b", "a")
    assert load_graph("random", None, ["n=50", "degree=2.0"]).num_edges == 50


def test_settings_have_the_types_of_the_fields():
    settings = recipe_fields(["edge_lr=0.1", "votes=no", "hidden=8", "lpa_weight=1", "edges=agnn"])
    assert settings == {"edge_lr": 0.1, "votes": False, "hidden": 8, "lpa_weight": 1.0, "edges": "agnn"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "random", "-o", "n=many"], "n is 'many'; it takes a whole number"),
        (
            ["info", "random", "-o", "nodes=5"],
            "'nodes=5' is not KEY=VALUE with a key of: n, degree, classes, hubs, seed",
        ),
        (["info", "random", "-o", "n"], "'n' is not KEY=VALUE"),
        (["info", "."], None),
        (["predict"], "Missing argument"),
        (["inform"], "No such command"),
        (["info", "--xml"], "No such option"),
    ],
)
def test_a_mistyped_command_is_exit_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == (2 if message else 1)
    assert (message or "needs nodes.csv and edges.csv") in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("source,target,weight\na,b,-1\n", "edges.csv, row 2, column 'weight' is '-1'; a weight is a positive number"),
        ("source,target\na\n", "edges.csv, row 2 has 1 cells; the first row has 2"),
        ("source,target\n\0,b\n", "edges.csv, line 2 holds a NUL character"),
    ],
)
def test_bad_data_is_one_line_on_stderr_and_exit_code_1(tmp_path, edges, message):
    (tmp_path / "edges.csv").write_text(edges)
    result = run("info", tmp_path, "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"gcn-lpa: {message}")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
def test_help_takes_less_than_half_a_second_of_cpu_time():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    help_text = subprocess.run([sys.executable, "-m", "gcn_lpa", "--help"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
    assert all(name in help_text.stdout for name in ("train", "info", "demo"))


def test_the_help_says_in_a_line_what_each_command_does(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help").stdout.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["init", "info", "demo", "train"]
    assert all(len(line) <= 80 and not line.endswith("...") for line in lines)


def test_the_version_is_that_of_the_package():
    assert run("--version").stdout == f"gcn-lpa {tomllib.loads(PYPROJECT.read_text())['project']['version']}\n"


def test_the_command_line_imports_nothing_heavy():
    heavy = "torch numpy scipy pandas sklearn networkx matplotlib jinja2 http.server rich"
    check = f"import gcn_lpa.cli.app, sys; print([name for name in {heavy.split()} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


INTERRUPTED = """
import os, signal, sys
import gcn_lpa.data.datasets
gcn_lpa.data.datasets.load = lambda *arguments: os.kill(os.getpid(), signal.SIGINT)
sys.argv[1:] = ["info", "karate"]
from gcn_lpa.cli.app import main
main()
"""


@pytest.mark.long
def test_an_interrupt_is_exit_code_130():
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (130, "")
    assert "Traceback" not in result.stderr


@pytest.mark.long
def test_a_terminal_without_unicode_shows_question_marks(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\nü,b\n")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = [sys.executable, "-m", "gcn_lpa", "info", str(tmp_path)]
    result = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "homophily    edge ?, node ?, adjusted ?" in result.stdout


@pytest.mark.parametrize(("device", "said"), [("foo", "unknown device 'foo'"), ("cuda", "torch sees no GPU")])
def test_a_device_that_is_not_there_is_one_line(device, said, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("train", "karate", "--device", device)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr


@pytest.mark.parametrize("seed", [-1, 2**63])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_seed_out_of_range_is_named(command, seed):
    result = run(command, "karate", "--seed", seed)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"seed = {seed}; it is at least 0" in result.stderr


def test_a_graph_of_ones_own_can_be_named(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    result = run("info", tmp_path, "-o", "name=club")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("club: 2 nodes")
