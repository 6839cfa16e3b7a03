"""The paper's tables: which trainings they are made of, what is computed once, and what the statistics say."""

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.learning.learn import learn, learn_many
from gcn_lpa.predict import evaluate
from gcn_lpa.recipes import LAYERS, OFFICIAL, PAPER
from gcn_lpa.train import DivergedError
from reproduction import code_version, tables, verdicts
from reproduction import study as study_module
from reproduction.claims import CLAIMS, TABLE2
from reproduction.exhibits import Exhibit, markdown_table
from reproduction.methods import study_methods
from reproduction.reproduce import PARTS, WITH_ROWS, reproduce
from reproduction.study import PAPER_DATASETS, Cell, Grid, Study, job_of, summary


def run_of(row, seed, test, dataset="cora", train=1.0, val=0.8, **changes):
    accuracies = {"test_accuracy": test, "train_accuracy": train, "val_accuracy": val}
    settings = {"row": row, "dataset": dataset, "recipe": "paper", "changes": changes, "seed": seed}
    return {**settings, "split_hash": f"s{seed}", **accuracies}


def test_table2_has_the_papers_eight_methods_with_the_papers_settings():
    for dataset in PAPER_DATASETS:
        cells = {cell.row: cell for cell in tables.table2_cells(dataset)}
        assert set(TABLE2[dataset]) <= set(cells)
        assert cells["gcn-lpa"].settings().of_library == PAPER[dataset].replace(method="gcn-lpa")
        assert cells["official"].settings().of_library == OFFICIAL[dataset]
        assert cells["gcn-same"].settings().edges == "fixed"
        assert cells["λ = 0"].settings().of_library == PAPER[dataset].replace(lpa_weight=0.0)


def test_tables_that_share_a_cell_share_its_trainings():
    one = Cell("cora", "free + λ", "gcn-lpa")
    two = Cell("cora", "gcn-lpa", "gcn-lpa")
    assert job_of(one, "uniform", 3) == job_of(two, "uniform", 3)
    assert job_of(one, "uniform", 3) != job_of(one, "uniform", 4)
    assert job_of(one, "authors", 3)["split_seed"] is None


def test_the_full_study_has_as_many_splits_as_promised(tmp_path):
    full = Study(tmp_path, device="cpu")
    assert [full.num_splits(name) for name in PAPER_DATASETS] == [20, 20, 10, 10, 10]
    assert [full.num_splits(name, most=10) for name in PAPER_DATASETS] == [10] * 5
    assert full.num_splits("cora", most=5) == 5
    assert Study(tmp_path, device="cpu", quick=True).num_splits("cora") == 1
    assert Study(tmp_path, device="cpu", splits=3, quick=True).num_splits("cora", most=2) == 3
    assert Study(tmp_path, device="cpu", split="authors").num_splits("cora") == 10


def test_quick_says_what_it_reduces(tmp_path):
    quick = Study(tmp_path, device="cpu", quick=True)
    assert quick.shortened(Cell("coauthor-cs", "gcn", "gcn"), None).changes == {"epochs": 20}
    assert quick.shortened(Cell("cora", "gcn", "gcn"), None).changes == {}
    assert quick.shortened(Cell("coauthor-cs", "lpa", "lpa"), None).changes == {}
    trained, drawn = Exhibit("a", "", "", runs=[{}]), Exhibit("b", "", "")
    assert quick.reductions(trained) == ["one split", "20 epochs on coauthor-cs"]
    assert quick.reductions(drawn) == ["20 epochs on coauthor-cs"]  # it has no splits
    assert Study(tmp_path, device="cpu").shortened(Cell("coauthor-cs", "gcn", "gcn"), None).changes == {}


def test_rows_are_chosen_by_name_and_else_by_method(tmp_path):
    cells = tables.table2_cells("cora") + tables.table2_cells("citeseer")
    few = Study(tmp_path, device="cpu", datasets=("cora",), methods=("gcn-lpa",))
    assert [cell.row for cell in few.chosen(cells)] == ["gcn-lpa"]
    with pytest.raises(ValueError, match=r"unknown row .gnc.; there are .*gcn-lpa"):
        Study(tmp_path, device="cpu", methods=("gnc",)).chosen(cells)
    with pytest.raises(ValueError, match="unknown data set 'core'; the paper has cora"):
        Study(tmp_path, device="cpu", datasets=("core",))
    with pytest.raises(ValueError, match="unknown split 'random'"):
        Study(tmp_path, device="cpu", split="random")


@pytest.mark.parametrize(
    ("what", "choice", "message"),
    [
        ("table9", {}, "cannot reproduce 'table9'; there are all, table1"),
        ("all", {"methods": ("lpa",)}, "--method lpa chooses a row of table2, .*; all has none to choose"),
        ("table3", {"methods": ("gcn",)}, "table3 has none to choose"),
        ("figure3", {"datasets": ("cora",)}, "figure3 is about citeseer; with --dataset cora nothing is left of it"),
        ("claims", {"datasets": ("cora",)}, "the claims are about all five data sets"),
    ],
)
def test_a_choice_that_leaves_too_little_is_refused_before_anything_is_computed(what, choice, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        next(reproduce(what, Study(tmp_path / "out", device="cpu", **choice)))
    assert not (tmp_path / "out").exists()


def test_all_of_one_data_set_leaves_out_what_is_about_others(tmp_path, monkeypatch):
    for name in PARTS:
        monkeypatch.setitem(PARTS, name, lambda study, name=name: Exhibit(name, name, ""))
    found = [result.name for result in reproduce("all", Study(tmp_path, device="cpu", datasets=("cora",)))]
    assert found == [name for name in PARTS if name not in ("table3", "figure3", "figure4")]


def test_a_summary_is_paired_by_split():
    cell = Cell("cora", "a", "gcn")
    runs = [run_of("a", k, 0.8 + 0.01 * k) for k in range(3)] + [run_of("b", k, 0.79 + 0.01 * k) for k in range(3)]
    found = summary(cell, runs, "b")
    assert found.accuracy.mean == pytest.approx(0.81)
    assert found.accuracy.interval == pytest.approx(4.302653 * 0.01 / math.sqrt(3))  # t of two degrees of freedom
    assert found.difference.mean == pytest.approx(0.01)
    assert found.difference.interval == pytest.approx(0, abs=1e-12)
    assert found.difference.p_value == pytest.approx(0.25)  # 2 / 2³
    assert summary(cell, runs, "a").difference is None


def test_a_summary_refuses_other_splits():
    runs = [run_of("a", 0, 0.8), run_of("b", 1, 0.8)]
    with pytest.raises(AssertionError, match="same splits"):
        summary(Cell("cora", "a", "gcn"), runs, "b")


def test_an_exhibit_is_written_as_text_and_json(tmp_path):
    runs = [{**run_of("a", 0, 0.8), "seconds": 3.6, "device": "cpu", "versions": "torch 2", "code": "abc"}]
    exhibit = Exhibit("t", "A table", markdown_table(["", "x"], [["a", "1"]]), {"rows": [1]}, runs)
    exhibit.reduced = ["one split"]
    exhibit.write(tmp_path)
    text = (tmp_path / "t.md").read_text()
    assert text.startswith("# A table\n\nReduced for a quick run: one split.\n\n|  | x |\n|---|---:|\n| a | 1 |\n")
    assert "1 trainings, 0.00 hours one after the other, on cpu; torch 2; code abc." in text
    assert json.loads((tmp_path / "t.json").read_text())["runs"] == runs


def test_a_training_that_diverges_counts_with_its_best_epoch(two_cliques, monkeypatch):
    """The same training, ended by hand before the loss is not finite, has the same accuracies."""
    monkeypatch.setattr(study_module, "graph_of", lambda dataset, root: two_cliques)
    monkeypatch.setattr(study_module, "recipe_of_paper", lambda name, dataset: LAYERS)
    changes = {"features": "raw", "lr": 1e18, "edges": "fixed", "lpa_weight": 0.0}
    job = {"dataset": "citeseer", "method": "gcn-lpa", "recipe": "paper", "changes": changes, "split": "uniform"}
    outcome = study_module.train_once({**job, "split_seed": 0, "seed": 0}, device="cpu", root=None, threads=1)
    assert outcome["best_epoch"] is None
    parts, recipe = split(two_cliques, seed=0), LAYERS.replace(**changes)
    with pytest.raises(DivergedError) as diverged:
        learn(two_cliques, parts.train, parts.val, recipe, device="cpu")
    epochs, given = len(diverged.value.run.history), [(parts.train, parts.val)]
    (last,) = learn_many(two_cliques, given, recipe, device="cpu", stop_at=epochs)
    assert all(torch.isfinite(parameter).all() for parameter in last.model.parameters())
    assert outcome["test_accuracy"] == evaluate(last, two_cliques, parts.test).accuracy
    assert outcome["val_accuracy"] == evaluate(last, two_cliques, parts.val).accuracy


@pytest.mark.long
def test_a_cell_is_trained_once_and_then_read(datasets, tmp_path, monkeypatch):
    wanted = {"device": "cpu", "workers": 1, "splits": 2, "root": str(datasets), "datasets": ("cora",)}
    first = tables.table2(Study(tmp_path, methods=("lpa",), **wanted))
    monkeypatch.setattr(study_module, "train_once", lambda job, **where: pytest.fail("trained twice"))
    again = tables.table2(Study(tmp_path, methods=("lpa",), **wanted))
    assert again.text == first.text
    assert again.runs == first.runs
    fields = "dataset method recipe_hash split_seed split_hash seed best_epoch val_accuracy test_accuracy seconds device versions"
    assert set(fields.split()) <= set(first.runs[0])
    rows = {row["row"]: row for row in first.data["rows"]}
    assert 0.8 < rows["lpa"]["accuracy"] < 0.9
    assert rows["lpa"]["paper"] == pytest.approx(0.853)


RESULTS = Path(__file__).parents[2] / "results"


def committed_runs():
    return [json.loads(line) for line in (RESULTS / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


(EDITION,) = {entry["result"]["code"] for entry in committed_runs()}  # one code version trained all of results/


def test_the_committed_runs_have_the_recipes_they_say():
    entries = [entry for entry in committed_runs() if "study" not in entry["task"]]
    assert len(entries) > 2000
    hashes = {}
    for job, outcome in ((entry["task"], entry["result"]) for entry in entries):
        settings = job["dataset"], job["method"], job["recipe"], json.dumps(job["changes"])
        hashes.setdefault(settings, set()).add(outcome["recipe_hash"])
        assert outcome["code"] == EDITION
    for (dataset, method, recipe, changes), found in hashes.items():
        assert found == {Cell(dataset, "", method, recipe, json.loads(changes)).settings().hash()}


@pytest.mark.long
def test_no_training_of_the_study_runs_what_its_hash_leaves_out(monkeypatch):
    """Every setting on Cora, on a small graph and for two epochs: no function of these files is called."""
    random = np.random.default_rng(0)
    words = scipy.sparse.csr_array((random.random((60, 12)) < 0.3).astype(np.float32))
    links = scipy.sparse.csr_array(random.random((60, 60)) < 0.1)
    graph = Graph.from_scipy(((links + links.T) > 0).astype(np.float32), x=words, y=np.arange(60) % 7)
    monkeypatch.setattr(study_module, "graph_of", lambda dataset, root: graph)
    left_out = {str(code_version.ROOT / f"{name}.py") for name in code_version.NOT_IN_STUDY}
    assert left_out <= {str(path) for path in code_version.hashed_files()}
    jobs = {}
    for job in (entry["task"] for entry in committed_runs() if "study" not in entry["task"]):
        if job["dataset"] == "cora" and job["split"] == "uniform":
            jobs.setdefault((job["method"], job["recipe"], json.dumps(job["changes"])), job)
    called = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename in left_out:
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    assert len({job["method"] for job in jobs.values()}) > 10
    for job in jobs.values():
        short = {"epochs": 2} if "epochs" in study_methods()[job["method"]].fields else {}
        sys.setprofile(note)
        try:
            study_module.train_once({**job, "changes": {**job["changes"], **short}}, device="cpu", root=None, threads=1)
        finally:
            sys.setprofile(None)
    assert called == set()


def lines_of_tables(text):
    return [line for line in text.splitlines() if line.startswith(("#", "|", "Against "))]


@pytest.mark.parametrize("name", ["table3", *WITH_ROWS])
def test_a_committed_table_is_made_of_the_committed_runs(name):
    """The same trainings, read under the code that did them, give the same tables, digit by digit."""
    exhibit = PARTS[name](Study(RESULTS, device="cpu", code=EDITION))
    assert exhibit.code == EDITION
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert "|" in text
    assert lines_of_tables(exhibit.markdown()) == lines_of_tables(text)
    committed = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert exhibit.runs == committed["runs"]


def test_an_earlier_edition_is_read_as_far_as_it_goes(tmp_path, monkeypatch):
    """A ledger of other code: a cell on three splits, one on two, one on none. All cells of a table have the same splits."""
    cells = [Cell("citeseer", name, "gcn", changes={"epochs": k}) for k, name in enumerate("abc", 1)]
    jobs = [job_of(cells[0], "uniform", k) for k in range(3)] + [job_of(cells[1], "uniform", k) for k in range(2)]
    lines = [json.dumps({"task": job, "result": {"code": "old", "test_accuracy": 0.5}}) for job in jobs]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines) + "\n")
    study = Study(tmp_path, device="cpu", code="old")
    assert [cell.row for cell in study.available(cells)] == ["a", "b"]
    runs = study.run(Grid(study.available(cells)))
    assert [(run["row"], run["split_seed"]) for run in runs] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert study.ledger.missing([job_of(cells[2], "uniform", 0)])
    with pytest.raises(ValueError, match="by code old, and 1 of 3 jobs are missing"):
        Study(tmp_path, device="cpu", code="old", splits=3).run(Grid(cells[1:2]))


def copied(tmp_path, *names):
    for name in names:
        shutil.copy(RESULTS / name, tmp_path)
    return tmp_path


def test_the_committed_claims_follow_from_the_committed_exhibits(tmp_path):
    copied(tmp_path, "runs.jsonl", *(f"{name}.json" for name in {claim.study for claim in CLAIMS}))
    (claims,) = reproduce("claims", Study(tmp_path, device="cpu", code=EDITION))
    assert claims.markdown() == (RESULTS / "claims.md").read_text(encoding="utf-8")
    assert claims.code == json.loads((tmp_path / "claims.json").read_text())["code"] == EDITION


def test_claims_are_not_scored_by_exhibits_of_another_code(tmp_path):
    copied(tmp_path, "table3.json")
    message = rf"table3.json is of code {EDITION}, not another; --code {EDITION} scores"
    with pytest.raises(ValueError, match=message):
        next(reproduce("claims", Study(tmp_path, device="cpu", code="another")))


def test_an_exhibit_has_one_code_version():
    with pytest.raises(ValueError, match="t would mix trainings of the code versions a, b"):
        Exhibit("t", "", "", runs=[{"code": "b"}, {"code": "a"}, {"code": "b"}])
    exhibits = {name: Exhibit(name, "", "", runs=[{"code": code}]) for name, code in (("table2", "a"), ("table3", "b"))}
    with pytest.raises(ValueError, match="the claims would mix trainings of several code versions: table2 of a, table3 of b"):
        verdicts.score_claims(exhibits)


@pytest.mark.long
def test_the_committed_runs_have_the_splits_they_say(datasets):
    graph = load("cora", datasets)
    runs = [{**entry["task"], **entry["result"]} for entry in committed_runs()]
    cora = [run for run in runs if run["dataset"] == "cora" and run.get("split") == "uniform"]
    found = {run["split_seed"]: run["split_hash"] for run in cora}
    assert len(found) == 20
    assert all(split(graph, seed=seed).hash == name for seed, name in found.items())
