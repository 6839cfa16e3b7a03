"""The trainings of a study: stacks, initialisations, the authors' split, earlier editions, and runs cut into pieces."""

import json

import numpy as np
import pytest
import torch

from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import Split
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import LAYERS, PAPER
from reproduction import own_tables, sweeps, tables
from reproduction import reproduce as reproduction
from reproduction import study as study_module
from reproduction.claims import TABLE2
from reproduction.recipes import StudyRecipe
from reproduction.study import STACKED, Cell, Grid, Study, by_split, job_of, stacks_of, train_once, train_stack

WHERE = {"device": "cpu", "root": None, "threads": 1}


@pytest.fixture
def small(monkeypatch, karate):
    """Every data set of the paper is the karate club, and a training has five epochs."""
    monkeypatch.setattr(study_module, "graph_of", lambda dataset, root: karate)
    short = {name: recipe.replace(epochs=5) for name, recipe in PAPER.items()}
    monkeypatch.setattr(study_module, "recipe_of_paper", lambda name, dataset: short[dataset])
    monkeypatch.setattr(Study, "threads", 1)
    return karate


def jobs_of(cell, count=4):
    return [job_of(cell, "uniform", k) for k in range(count)]


@pytest.mark.long
def test_the_methods_that_are_stacked_are_those_that_can_be():
    graph = load("karate").with_features("row").with_self_loops()
    names = {cell.method for part in (own_tables.two_step_cells, own_tables.lpa_cells, own_tables.edge_cells) for cell in part()}
    names |= {cell.method for cell in tables.table2_cells("cora")}
    ours = {name: METHODS[name] for name in names if name in METHODS}
    trained = {name: own for name, own in ours.items() if not own.at_once}
    found = {name for name, own in trained.items() if own.build(own.settings(PAPER["cora"]), graph, 0).stackable}
    assert found == set(STACKED)


def test_what_differs_in_split_and_seed_alone_is_one_stack():
    one, two = Cell("cora", "a", "gcn"), Cell("cora", "b", "gcn", changes={"epochs": 7})
    direct = Cell("cora", "c", "lr")
    found = stacks_of([*jobs_of(one, 2), *jobs_of(two, 1), *jobs_of(direct, 2), job_of(one, "uniform", 5, 1005)])
    assert sorted(map(len, found)) == [1, 1, 1, 3]


@pytest.mark.parametrize("row", [("gcn-lpa", "paper"), ("gcn-lpa", "official"), ("gcn", "paper")])
def test_a_stack_has_the_accuracies_of_its_models_alone(row, karate, monkeypatch):
    """Karate members, 60 % labelled: the same epoch is chosen and the same nodes are right."""
    monkeypatch.setattr(study_module, "graph_of", lambda dataset, root: karate)
    cell = Cell("citeseer", "x", *row, changes={"epochs": 30})
    together = train_stack(jobs_of(cell), **WHERE)
    alone = [train_once(job, **WHERE) for job in jobs_of(cell)]
    names = [name for name in together[0] if name not in ("seconds", "versions")]
    assert [[one[name] for name in names] for one in together] == [[one[name] for name in names] for one in alone]


@pytest.mark.long
def test_a_model_of_a_stack_that_diverges_is_trained_alone(two_cliques, monkeypatch):
    monkeypatch.setattr(study_module, "graph_of", lambda dataset, root: two_cliques)
    monkeypatch.setattr(study_module, "recipe_of_paper", lambda name, dataset: LAYERS)
    steep = {"features": "raw", "lr": 1e18, "edges": "fixed", "lpa_weight": 0.0}
    cell = Cell("citeseer", "x", "gcn-lpa", "paper", steep)
    together = train_stack(jobs_of(cell), **WHERE)
    alone = [train_once(job, **WHERE) for job in jobs_of(cell)]
    assert [one["best_epoch"] for one in together] == [None] * 4
    assert [one["test_accuracy"] for one in together] == [one["test_accuracy"] for one in alone]


def test_deep_networks_on_cora_have_three_initialisations_a_split(tmp_path):
    study = Study(tmp_path, device="cpu")
    assert study.seeds(Cell("cora", "gcn-lpa", "gcn-lpa"), 4) == [4, 1004, 2004]  # five layers
    assert study.seeds(Cell("cora", "gcn", "gcn"), 4) == [4]  # two
    assert study.seeds(Cell("citeseer", "x", "gcn-lpa", changes={"gcn_layers": 6}), 4) == [4]
    jobs = study.trainings(Grid([Cell("cora", "gcn-lpa", "gcn-lpa")], most=2))
    assert [(job["split_seed"], job["seed"]) for _, job in jobs] == [
        *((0, seed) for seed in (0, 1000, 2000)),
        *((1, seed) for seed in (1, 1001, 2001)),
    ]


def test_initialisations_of_a_split_are_one_number():
    runs = [
        {"row": "a", "dataset": "cora", "split": "uniform", "split_hash": name, "test_accuracy": value}
        for name, value in (("s", 0.7), ("s", 0.9), ("t", 0.5))
    ]
    hashes, found = by_split(runs, "a", "cora")
    assert hashes == ["s", "t"]
    assert found.tolist() == pytest.approx([0.8, 0.5])
    on_theirs = [{**run, "split": "authors", "split_hash": "s"} for run in runs]
    assert by_split(on_theirs, "a", "cora")[1].tolist() == [0.7, 0.9, 0.5]


def test_unlabelled_nodes_of_the_authors_split_teach_nothing_and_are_scored_as_class_0(monkeypatch):
    """A path whose nodes 0 and 9 have no label: 0 is a training node, 9 a test node."""
    y = [-1, 0, 0, 1, 1, 1, 0, 1, 0, -1]
    graph = Graph.from_edges([(i, i + 1) for i in range(9)], y=y, name="path")
    masks = [torch.zeros(10, dtype=torch.bool) for _ in range(3)]
    for mask, nodes in zip(masks, ([0, 1, 2, 3, 4, 8], [5, 6], [7, 9]), strict=True):
        mask[nodes] = True
    monkeypatch.setattr(study_module, "graph_of", lambda dataset, root: graph)
    monkeypatch.setattr(study_module, "authors_split", lambda num_nodes: Split(*masks, "authors"))
    job = job_of(Cell("citeseer", "x", "lpa"), "authors", 0)
    task = study_module.Task.of(job, None)
    assert task.train.nonzero().squeeze(1).tolist() == [1, 2, 3, 4, 8]
    assert task.graph.y.tolist() == [-1, 0, 0, 1, 1, 1, 0, 1, 0, 0]
    outcome = train_once(job, **WHERE)  # labels spread from 8 to 9 and 7, and from 4 along the path
    assert outcome["test_accuracy"] == 0.5  # 9 is right as class 0; 7, class 1, hears 8 first
    assert outcome["train_accuracy"] == 1.0


def test_a_run_can_be_cut_into_pieces(small, tmp_path):
    """No time at all trains nothing; the rest is trained by the next call, and the table needs no more."""
    where = {"device": "cpu", "workers": 1, "splits": 1, "datasets": ("cora", "citeseer")}
    study = Study(tmp_path, **where)
    lines = reproduction.plan("table-two-step", study)
    assert {line["part"] for line in lines} == {"table-two-step"}
    cells = [(line["dataset"], line["method"], line["recipe"], str(line["changes"])) for line in lines]
    assert len(cells) == len(set(cells))
    total = sum(line["left"] for line in lines)
    assert reproduction.train("table-two-step", study, minutes=-1) == total
    assert reproduction.train("table-two-step", study, minutes=5, skip=["gcn-same"]) == 0
    left = {line["method"]: line["left"] for line in reproduction.plan("table-two-step", Study(tmp_path, **where))}
    assert left["gcn-lpa"] == 0
    assert left["gcn-same"] > 0
    (exhibit,) = reproduction.reproduce("table-two-step", Study(tmp_path, **where))
    assert "## cora, 1 splits" in exhibit.text
    assert not any(line["left"] for line in reproduction.plan("table-two-step", Study(tmp_path, **where)))


def test_a_plan_counts_a_training_that_two_parts_share_once(tmp_path):
    study = Study(tmp_path, device="cpu", quick=True)
    found = reproduction.trainings_of("all", study)
    keys = [study_module.job_key(job) for jobs in found.values() for job in jobs]
    assert len(keys) == len(set(keys))
    assert {"table2", "figure3", "influence", "table-why"} <= set(found)
    with pytest.raises(ValueError, match="unknown method 'gnc'"):
        reproduction.trainings_of("all", study, ["gnc"])


@pytest.mark.long
def test_both_readings_of_a_sweep(small, tmp_path, monkeypatch):
    figure = sweeps.Sweep("figure4", "Figure 4: weight, Citeseer", "lpa_weight", (0, 1), "λ")
    monkeypatch.setattr(sweeps, "FIGURE_LAYERS", (1, 2))
    exhibit = figure(Study(tmp_path, device="cpu", workers=1, splits=1))
    assert [path.name for path in exhibit.files] == [
        *("figure4-official.png", "figure4-official.svg", "figure4.png", "figure4.svg"),
    ]
    assert "## By the authors' code" in exhibit.text
    assert "## By the text" in exhibit.text
    assert len(exhibit.data["points"]) == 8


def test_tuned_rows_come_from_a_file_of_the_folder(tmp_path):
    settings = {"cora": {"gcn": {"hidden": 32, "lr": 0.05, "method": "gcn", "origin": "a search"}, "official": {"l2": 1e-3}}}
    (tmp_path / "tuned.json").write_text(json.dumps(settings))
    found = tables.read_tuned(Study(tmp_path, device="cpu"))
    cells = {cell.row: cell for cell in tables.table2_cells("cora", found)}
    assert cells["gcn, tuned"].changes == {"hidden": 32, "lr": 0.05}
    assert cells["official, tuned"].settings().l2 == 1e-3
    assert cells["official, tuned"].recipe == "official"
    assert "gat, tuned" not in cells
    assert not any("tuned" in cell.row for cell in tables.table2_cells("citeseer", found))
    with pytest.raises(ValueError, match="method 'gcn' does not use lpa_weight"):
        tables.table2_cells("cora", {"cora": {"gcn": {"lpa_weight": 3.0}}})


def test_rows_are_trained_to_the_end():
    cells = {cell.row: cell for cell in tables.table2_cells("coauthor-cs")}
    for row in ("gcn", "gat", "jk-net", "graphsage", "gcn-lpa", "official"):
        own, longer = cells[row].settings(), cells[f"{row}, converged"].settings()
        assert longer == own.replace(epochs=3000, patience=100)
    assert cells["mlp, converged"].settings().epochs == 3000
    assert cells["lpa, converged"].settings().propagation_steps == 1000


@pytest.mark.parametrize(("dataset", "labeled"), [("cora", 1625), ("pubmed", 11830), ("coauthor-phy", 20696)])
def test_sampled_graphsage_takes_as_many_batches_everywhere(dataset, labeled):
    settings = next(cell for cell in tables.table2_cells(dataset) if cell.row == "graphsage, sampled").settings()
    assert 750 <= settings.epochs * -(-labeled // settings.batch_size) <= 1000


def test_the_study_of_the_text_changes_one_thing_at_a_time():
    for dataset in PAPER:
        own = StudyRecipe.of(PAPER[dataset]).to_dict()
        for cell in own_tables.why_cells():
            if cell.dataset == dataset and cell.recipe == "paper" and cell.method == "gcn-lpa":
                new = cell.settings().to_dict()
                assert sum(new[name] != own[name] for name in own) == (cell.row != "the text"), cell.row


def test_equal_values_share_their_places():
    assert tables.ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]


def summed_runs(order):
    """Two equal splits on which the methods of Table 2 have these accuracies, in per cent."""
    each = {"dataset": "cora", "split": "uniform", "train_accuracy": 1.0}
    return [
        {**each, "row": row, "split_hash": name, "test_accuracy": value / 100}
        for row, value in order.items()
        for name in ("s", "t")
    ]


def test_the_order_of_the_methods_is_compared_by_rank():
    paper = {name: cell.mean for name, cell in TABLE2["cora"].items()}
    names = list(paper)
    assert tables.rank_agreement(summed_runs(paper), names, "cora") == "1.00 [1.00, 1.00]"
    backwards = {name: -value for name, value in paper.items()}
    assert tables.rank_agreement(summed_runs(backwards), names, "cora") == "-1.00 [-1.00, -1.00]"
    best, second = sorted(paper, key=paper.__getitem__)[-2:]
    swapped = {**paper, best: paper[second], second: paper[best]}
    assert tables.rank_agreement(summed_runs(swapped), names, "cora").startswith(f"{1 - 6 * 2 / (8 * 63):.2f} ")


def test_the_effect_of_the_lpa_term_has_its_sign_and_both_intervals():
    runs = [
        {"row": row, "dataset": "cora", "split": "uniform", "split_hash": f"s{k}", "test_accuracy": value}
        for row, values in (("gcn-lpa", (0.81, 0.83)), ("λ = 0", (0.80, 0.79)))
        for k, value in enumerate(values)
    ]
    cells = [Cell("cora", row, "gcn-lpa") for row in ("gcn-lpa", "λ = 0")]
    title, table, _ = tables.effects_of(tables.LPA_TERM, "The LPA term", cells, runs)
    assert title == "## The LPA term"
    # differences 1 and 4: mean 2.5, s = 3/√2, t of one degree of freedom 12.7062; 1/2, and 1/2 + 1/3
    assert "| the text: with the LPA loss, minus without | +2.50 ± 19.06 (24.61) |" in table
    assert "fixed edges" not in table


def test_the_papers_numbers_stand_below_ours():
    found = [
        study_module.summary(cell, summed_runs({"gcn": 85.0, "gcn, converged": 86.0}))
        for cell in (Cell("cora", "gcn", "gcn"), Cell("cora", "gcn, converged", "gcn"))
    ]
    lines = tables.beside_the_paper(found).splitlines()
    assert [line.split(" |")[0] for line in lines[2:]] == ["| gcn", "| gcn, converged", "| *gcn, the paper*"]
    assert "*88.2 ± 0.8*" in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize("row", [("cora", "gcn", "paper"), ("citeseer", "gcn-lpa", "official")])
def test_a_stack_at_full_size_has_the_accuracies_of_its_models_alone(row, datasets):
    """But where two epochs are equal on validation nodes to rounding, and another one is chosen: 4 of 40 trainings when the
    band was set, at most .6 points of test accuracy apart."""
    dataset, method, recipe = row
    where = {**WHERE, "root": str(datasets)}
    jobs = jobs_of(Cell(dataset, "x", method, recipe), 5)
    together, alone = train_stack(jobs, **where), [train_once(job, **where) for job in jobs]
    apart = [abs(one["test_accuracy"] - two["test_accuracy"]) for one, two in zip(together, alone, strict=True)]
    same = [one["best_epoch"] == two["best_epoch"] for one, two in zip(together, alone, strict=True)]
    assert max(gap for gap, is_same in zip(apart, same, strict=True) if is_same) == 0
    assert max(apart) < 0.01


@pytest.mark.long
def test_settings_are_tuned_on_development_splits_from_coras_winner(small, tmp_path, monkeypatch):
    """Two trials each on the karate club: the file names settings that Table 2 can use, and a second call trains nothing."""
    from benchmarks import tuned as benchmark

    monkeypatch.setattr(benchmark, "graph_of", lambda dataset, root: small)
    asked = (2, ("cora", "citeseer"), ("gcn", "official"), 1, {"device": "cpu", "root": None})
    found = benchmark.tuned(tmp_path, *asked)
    assert list(found) == ["cora", "citeseer"]
    assert all(list(rows) == ["gcn", "official"] for rows in found.values())
    lines = [json.loads(line)["task"] for line in (tmp_path / "tuned.jsonl").read_text().splitlines()]
    assert {task["split_seed"] for task in lines} == {1000, 1001}  # none of Table 2's
    starts = {json.dumps(task["changes"]) for task in lines if task["dataset"] == "citeseer" and task["strategy"] == "coordinate"}
    assert starts == {json.dumps(found["cora"][row]) for row in ("gcn", "official")}
    cells = {cell.row: cell for cell in tables.table2_cells("cora", tables.read_tuned(Study(tmp_path, device="cpu")))}
    assert cells["gcn, tuned"].changes == found["cora"]["gcn"]
    monkeypatch.setattr(benchmark, "work", lambda job, **where: pytest.fail("searched twice"))
    assert benchmark.tuned(tmp_path, *asked) == found
