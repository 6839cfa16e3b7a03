"""The page of a run: one file, no network, names stay text, and every node has its place."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.cli.data import write_starter
from gcn_lpa.cut import Rule
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.report import graph_view
from gcn_lpa.report.graph_view import positions, sample
from gcn_lpa.report.page import OpenRun, contents, page_of, wilson, write_report
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Plan, Source, make_plan
from gcn_lpa.runs.predictions import cut_of
from gcn_lpa.runs.train_run import train_run
from tests.helpers.ring_runs import HOSTILE, run_of
from tests.helpers.small_graphs import rare

SCHEMES = r"(?:https?:|wss?:|ftp:|url\(|@import|//[a-z0-9-]+\.)"


class Tags(HTMLParser):
    """The elements of a page, the text between them, and the JSON of its graph."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self.text, self.open = [], [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open == "script":
            self.scripts[-1] += data
        else:
            self.text.append(data)


def page_text(run):
    return page_of(OpenRun(run), trains=False).decode()


def data_of(page):
    return json.loads(Tags(page).scripts[0])


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.mark.long
def test_names_and_classes_that_look_like_html_stay_text(tmp_path):
    names = [*HOSTILE, *(f"n{k}" for k in range(8))]
    page = page_text(run_of(tmp_path, names, classes=("<b>good</b>", "</title><script>bad()")))
    found = Tags(page)
    assert [tag for tag, _ in found.tags].count("script") == 2  # the data and our own
    assert {tag for tag, _ in found.tags} & {"img", "b", "iframe", "object", "embed", "link", "base"} == set()
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    data = json.loads(found.scripts[0])
    assert data["names"] == names  # as they were
    assert data["classes"] == sorted(("<b>good</b>", "</title><script>bad()"))
    assert "<" not in found.scripts[0]
    assert {attributes["data-node"] for _, attributes in found.tags if "data-node" in attributes} <= set(names)


@pytest.mark.long
def test_the_page_names_no_address_and_allows_only_its_own_script_and_style(tmp_path):
    page = page_text(run_of(tmp_path))
    assert page.startswith("<!doctype html>")
    assert re.findall(SCHEMES, page) == []
    found = Tags(page)
    assert [name for _, attributes in found.tags for name in ("src", "srcset", "action") if name in attributes] == []
    assert {attributes["href"][0] for tag, attributes in found.tags if tag == "a"} == {"#"}
    policy = next(a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert not any("style" in attributes for _, attributes in found.tags)  # the policy would refuse them


@pytest.mark.long
def test_the_page_says_what_the_run_says(tmp_path):
    run = run_of(tmp_path)
    subject = OpenRun(run)
    found = contents(subject, trains=False)
    data = data_of(page_of(subject, trains=False).decode())
    table = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "--all", "--json"])
    rows = json.loads(table.stdout)
    assert data["names"] == [row["id"] for row in rows]
    labels = [data["classes"][k] for k in unpacked(data["label"], "<u2")]
    assert labels == [row["label"] for row in rows]
    said = unpacked(data["probability"], "<u2") / 65535
    np.testing.assert_allclose(said, [row["probability"] for row in rows], atol=1e-5)
    ends = {
        tuple(sorted(pair)) for pair in zip(*(unpacked(data[end], "<u2").tolist() for end in ("source", "target")), strict=True)
    }
    assert ends == {tuple(sorted((k, (k + 1) % 12))) for k in range(12)}
    why = data["explanations"]["n6"]
    votes = sum(vote[2] for vote in why["votes"]) + why["others"][1]
    assert votes == pytest.approx(sum(score for _, _, score in why["classes"]), abs=2e-3)
    assert [row["id"] for row in found["least_sure"]] == [row["id"] for row in sorted(rows[4:], key=lambda row: row["probability"])]
    assert found["class_rows"] == [(name, 2, labels[4:].count(name)) for name in ("bad", "good")]


@pytest.mark.long
def rare_run(tmp_path):
    """A run on 300 accounts, a tenth of them fraud, a split of which tests."""
    graph = rare(n=300, share=0.1)
    plan = Plan(Source("accounts"), graph.content_hash(64), METHODS["neighbour-lr"].fair(DEFAULT), split="stratified")
    return train_run(plan, graph, device="cpu")


def test_a_rare_class_has_curves_and_a_slider_over_its_cuts(tmp_path):
    """The counts of the slider are those of `cut_of`, its marks lie in the charts, and the curves end where they must."""
    run = rare_run(tmp_path)
    subject = OpenRun(run)
    page = contents(subject, trains=False)["rare"]
    assert (page["name"], page["num_nodes"], page["num_held_out"]) == ("fraud", 60, 60)
    tops = [row["cut"][0] for row in page["rows"]]
    assert tops == sorted(tops) and (tops[0], tops[-1]) == (1, 60)
    for row in page["rows"][:: len(tops) // 3]:
        cut = cut_of(run.trained, "the run", subject.prediction, ~run.used, Rule(top=row["cut"][0]))
        assert row["cut"][2:5] == pytest.approx([cut.hits.mean, cut.hits.low, cut.hits.high], rel=1e-3)
        assert row["cut"][8:] == pytest.approx([cut.recall.mean, cut.recall.low, cut.recall.high], rel=1e-3)
        assert all(46 <= x <= 428 and 14 <= y <= 186 for x, y in (row["spots"][:2], row["spots"][2:]))
    gain = [tuple(map(float, point.split(","))) for point in page["charts"][1]["lines"][0][2].split(" ")]
    assert gain[-1] == (428.0, 14.0)  # all nodes hold all hits
    assert [y for _, y in gain] == sorted((y for _, y in gain), reverse=True)
    text = page_text(run)
    assert 'id="cut" type="range"' in text and "Where to cut: fraud" in text
    assert data_of(text)["cuts"] == page["rows"]
    assert contents(OpenRun(run_of(tmp_path)), trains=False)["rare"] is None


def test_a_page_is_the_same_at_every_writing(tmp_path):
    run = run_of(tmp_path)
    assert page_text(run) == page_text(load_run(tmp_path / "run"))


@pytest.mark.long
def test_a_large_graph_is_sampled_around_the_nodes_that_are_listed_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_view, "MOST_NODES", 6)
    monkeypatch.setattr(graph_view, "MOST_EDGES", 4)
    subject = OpenRun(run_of(tmp_path))
    view = graph_view.graph_view(subject, [9])
    assert view["names"] == ["n6", "n7", "n8", "n9", "n10", "n11"]  # three on one side of n9, two on the other
    assert (
        view["note"] == "Drawn: a sample of 6 of the 12 nodes, around those that this page lists "
        "and the 4 of 5 edges between them that weigh most."
    )
    assert len(unpacked(view["source"], "<u2")) == 4


def test_a_layout_is_repeatable_inside_the_square_and_keeps_communities_apart():
    clique = np.kron(np.eye(2), np.ones((20, 20))) - np.eye(40)
    clique[0, 20] = clique[20, 0] = 1
    found = positions(scipy.sparse.csr_array(clique))
    assert np.array_equal(found, positions(scipy.sparse.csr_array(clique)))
    assert found.min() >= 0
    assert found.max() <= 1
    centres = found[:20].mean(axis=0), found[20:].mean(axis=0)
    spread = max(np.linalg.norm(found[:20] - centres[0], axis=1).max(), np.linalg.norm(found[20:] - centres[1], axis=1).max())
    assert np.linalg.norm(centres[0] - centres[1]) > spread
    apart = np.linalg.norm(found[:, None] - found[None], axis=2) + np.eye(40)
    assert apart.min() > 0.005  # no two nodes on one spot


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_graph_without_edges_has_a_layout(n):
    found = positions(scipy.sparse.csr_array((n, n)))
    assert found.shape == (n, 2)
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == n


def test_the_push_on_the_grid_is_that_of_all_pairs():
    from gcn_lpa.report.graph_view import _push

    rng = np.random.default_rng(0)
    place, mass = rng.random((200, 2)), rng.random(200) + 0.5
    away = place[:, None] - place[None]
    square = (away**2).sum(axis=2) + np.eye(200)
    exact = (mass[None, :, None] * away / square[:, :, None]).sum(axis=1)
    error = np.linalg.norm(_push(place, mass) - exact, axis=1) / np.linalg.norm(exact, axis=1).mean()
    assert np.median(error) < 0.05  # pairs in one cell or the next are the rest


def test_a_sample_takes_the_nearest_first_and_all_where_there_is_room():
    path = scipy.sparse.csr_array((np.ones(9), (np.arange(9), np.arange(1, 10))), shape=(10, 10))
    assert sample(path, [7], 3).tolist() == [6, 7, 8]
    assert sample(path, [], 3).tolist() == [0, 1, 2]
    assert sample(path, [7], 10).tolist() == list(range(10))


def test_wilsons_interval_is_that_of_the_textbook():
    low, high = wilson(8 / 10, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)  # Agresti & Coull 1998
    assert wilson(1.0, 6)[1] == pytest.approx(1.0)


@pytest.mark.long
def test_one_command_gives_labels_and_page_and_the_command_of_the_page_repeats_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init", "mine"]).exit_code == 0
    done = CliRunner().invoke(app, ["train", "mine", "--epochs", "3", "--out", "run", "--report"])
    assert done.exit_code == 0, done.stderr
    labels = Path("run/predictions.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in labels] == ["id", "carla", "eva", "farid", "hugo", "jan", "lena"]
    page = Path("run/report.html").read_text()
    text = " ".join(" ".join(Tags(page).text).split())
    assert "6 of 12 nodes came with a label" in text
    assert "about text" in text  # what was made of a column
    assert "labels are more likely wrong than right" in text
    command = re.search(r"<pre><code>(.*?)</code>", page)[1].split()
    again = CliRunner().invoke(app, [*command[1:], "--out", "again"])
    assert again.exit_code == 0, again.stderr
    ours, theirs = (json.loads(Path(run, "manifest.json").read_text())["files"] for run in ("run", "again"))
    assert ours["model.safetensors"] == theirs["model.safetensors"]
    assert ours["model.safetensors"]["sha256"] in page
    replaced = CliRunner().invoke(app, ["train", "mine", "--epochs", "2", "--out", "run", "--overwrite"])
    assert replaced.exit_code == 0, replaced.stderr
    assert not Path("run/report.html").exists()  # it was about another run


def test_init_overwrites_nothing(tmp_path):
    (tmp_path / "edges.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"edges.csv is there already and would be overwritten"):
        write_starter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["edges.csv"]
    with pytest.raises(ValueError, match="is a file; name a folder"):
        write_starter(tmp_path / "edges.csv")


@pytest.mark.long
def test_a_report_goes_where_there_is_a_folder(tmp_path):
    run = run_of(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_report(run, tmp_path / "none" / "page.html", trains=False)
    assert write_report(run, tmp_path / "page.html", trains=False).stat().st_size > 10_000


TABLE = """id,label,age,plan,active,joined
a,x,30.5,free,yes,2020-01-01
b,y,41,pro,no,2021-06-30
c,x,,free,yes,2020-03-01
d,y,44,pro,no,2021-07-01
e,,31,free,yes,2020-02-01
f,,45,,no,2021-05-05
"""


def test_the_page_tells_the_likeliest_of_each_class_and_the_own_columns_of_a_node(tmp_path):
    (tmp_path / "nodes.csv").write_text(TABLE)
    (tmp_path / "edges.csv").write_text("source,target\na,c\nb,d\na,e\nc,e\nb,f\nd,f\n")
    plan, graph = make_plan(Source(str(tmp_path)), method="lpa")
    subject = OpenRun(train_run(plan, graph))
    assert [(name, [node for node, _ in rows]) for name, rows in subject.likeliest(None)] == [
        ("x", ["e"]),
        ("y", ["f"]),
    ]
    ((name, rows),) = subject.likeliest("y")
    assert (name, [node for node, _ in rows]) == ("y", ["f", "e"])
    p = subject.prediction.probabilities[:, graph.class_names.index("y")]
    assert [value for _, value in rows] == [float(p[5]), float(p[4])]
    cells = {
        "b": [("age", "41"), ("plan", "pro"), ("active", "no"), ("joined", "2021-06-30")],
        "c": [("age", ""), ("plan", "free"), ("active", "yes"), ("joined", "2020-03-01")],
        "f": [("age", "45"), ("plan", ""), ("active", "no"), ("joined", "2021-05-05")],
    }
    for node, expected in cells.items():
        assert subject.explain(node)["columns"] == expected
    page = " ".join(" ".join(Tags(page_of(subject, trains=False).decode()).text).split())
    assert "Likeliest, by class x e" in page
    assert "Edge width: given weight." in page


def test_lists_hold_no_unsuspicious_rows(tmp_path):
    run = run_of(tmp_path)
    page = contents(OpenRun(run), trains=True, device="cpu")
    for listed, audit in (("doubted", "labels"), ("strange", "edges")):
        found = page[audit].value
        expected = [] if found is None else [row for row in found.findings[:15] if row.suspicion >= 4 * found.rate]
        assert page[listed] == expected
    sure = {row["id"]: row["probability"] for row in page["least_sure"]}
    assert all(probability < 0.9 for probability in sure.values())
