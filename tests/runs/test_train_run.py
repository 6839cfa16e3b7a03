"""Run folders: what comes back is what was trained, and a graph that is not the one it was trained on is refused."""

import csv
import io
import json
import os

import numpy as np
import pandas
import pytest
import torch

from gcn_lpa.data.checks import node_mask
from gcn_lpa.data.datasets import load
from gcn_lpa.data.splits import split
from gcn_lpa.graph import Graph
from gcn_lpa.learning.ensemble import Parts, fit_weights, parts_of
from gcn_lpa.learning.learn import learn
from gcn_lpa.methods.registry import METHODS, members_of
from gcn_lpa.predict import edge_table, evaluate, predict_proba, scores
from gcn_lpa.recipes import LAYERS, OFFICIAL, PAPER, WITH_FEW_LABELS, Case, Recipe, recipe_for
from gcn_lpa.runs.folder import load_run, storable_names
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.predictions import table_text, write_table
from gcn_lpa.runs.train_run import evaluate_run, resume_run, train_run
from gcn_lpa.train import Watch
from tests.helpers.trainings import trained_alone

EVERY_METHOD = [m if m in ("gcn-lpa", "lpa", "mlp") else pytest.param(m, marks=pytest.mark.long) for m in METHODS]
SMALL = {"epochs": 6, "hidden": 4, "edge_rank": 4}  # where a method uses them
SBM = Source("sbm", None, {"n": 40, "classes": 3, "features": 5, "noise": 1.0})


@pytest.fixture
def own(tmp_path):
    """A folder of one's own: 30 nodes with odd ids, 20 of them labelled, and one without an edge."""
    graph = load("sbm", n=30, classes=2, features=4, degree=4.0)
    names = [f"={i:03d}" for i in range(29)] + ["@alone"]
    keep = (graph.row != 29) & (graph.col != 29)
    nodes = pandas.DataFrame(graph.x.numpy(), columns=[f"f{k}" for k in range(4)])
    nodes.insert(0, "id", names)
    nodes["label"] = [["NA", "yes"][k] if i < 20 else "" for i, k in enumerate(graph.y.tolist())]
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    ends = [[names[i] for i in side[keep].tolist()] for side in (graph.row, graph.col)]
    pandas.DataFrame({"source": ends[0], "target": ends[1]}).to_csv(tmp_path / "edges.csv", index=False)
    return tmp_path


def trained(source=SBM, out=None, *, changes=SMALL, resume=False, overwrite=False, watch=None, **options):
    plan, graph = make_plan(source, changes=changes, **options)
    return train_run(plan, graph, out, device="cpu", resume=resume, overwrite=overwrite, watch=watch)


def same_weights(one, other):
    """Whether two `Trained` have the same tensors."""
    states = one.model.state_dict(), other.model.state_dict()
    return states[0].keys() == states[1].keys() and all(torch.equal(states[0][k], states[1][k]) for k in states[0])


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_a_run_comes_back_from_its_folder(tmp_path, method):
    if METHODS[method].needs == "pyg":
        pytest.importorskip("torch_geometric")
    changes = {name: value for name, value in SMALL.items() if name in METHODS[method].fields}
    before = trained(out=tmp_path / "run", method=method, changes=changes)
    after = load_run(tmp_path / "run")
    assert same_weights(before.trained, after.trained)
    assert (after.plan, after.run, after.results) == (before.plan, before.run, before.results)
    assert after.split.hash == before.split.hash == split(before.graph, seed=0).hash
    assert evaluate_run(after).scores == before.results.scores
    assert torch.equal(*(predict_proba(run.trained, run.graph) for run in (before, after)))


def test_a_named_data_set_is_scored_on_test_nodes_it_did_not_see(tmp_path):
    run = trained(seed=3, split="stratified")
    parts = split(run.graph, seed=3, kind="stratified")
    again = learn(run.graph, parts.train, parts.val, run.plan.recipe, seed=3, device="cpu")
    assert run.results.scores == evaluate(again, run.graph, parts.test)
    assert run.results.protocol == "test"
    assert torch.equal(run.trained.given(run.graph), parts.train | parts.val)


def folds_by_hand(graph):
    """The labelled nodes of each class, shuffled, dealt out one by one."""
    nodes = np.random.Generator(np.random.PCG64((0, 0))).permutation(np.flatnonzero(graph.labeled.numpy()))
    dealt = [node for k in range(graph.num_classes) for node in nodes if graph.y[node] == k]
    return [node_mask(sorted(dealt[k::5]), graph.num_nodes) for k in range(5)]


def scored_by_others(graph, recipe, folds):
    """For each fold a model without it that is trained for the median number of epochs that the other folds choose."""
    epochs = [learn(graph, graph.labeled & ~fold, fold, recipe, device="cpu").run.best_epoch for fold in folds]
    ends = [round(float(np.median(epochs[:k] + epochs[k + 1 :]))) for k in range(5)]
    parts = zip(folds, ends, strict=True)
    return [trained_alone(graph, graph.labeled & ~fold, [], recipe, stop_at=end) for fold, end in parts]


@pytest.mark.long
def test_ones_own_graph_is_scored_by_folds_and_predicted_by_their_mean(own):
    run = trained(Source(str(own)), changes={**SMALL, "votes": False, "members": ""})
    graph, recipe, folds = run.graph, run.plan.recipe, folds_by_hand(run.graph)
    models = [learn(graph, graph.labeled & ~fold, fold, recipe, device="cpu").model for fold in folds]
    logs = [torch.log_softmax(model(run.trained.prepare(graph)).double(), dim=1) for model in models]
    together = torch.stack(logs).mean(dim=0).softmax(dim=1)
    assert torch.allclose(predict_proba(run.trained, graph, raw=True), together)
    assert torch.equal(run.trained.given(graph), graph.labeled)
    said = torch.zeros(30, 2, dtype=torch.float64)
    for fold, model in zip(folds, scored_by_others(graph, recipe, folds), strict=True):
        said[fold] = predict_proba(model, graph, raw=True)[fold]
    assert run.results.scores == scores(graph, graph.labeled, said)
    assert run.results.folds == tuple(scores(graph, fold, said).accuracy for fold in folds)
    assert run.results.protocol == "cross-validation"


@pytest.mark.long
def test_with_many_labels_a_fold_is_scored_by_the_model_whose_epoch_it_chose(own, monkeypatch):
    monkeypatch.setattr("gcn_lpa.learning.learn.MANY_LABELS", 20)
    run = trained(Source(str(own)), changes={**SMALL, "votes": False, "members": ""})
    graph, said = run.graph, torch.zeros(30, 2, dtype=torch.float64)
    for fold in folds_by_hand(graph):
        model = learn(graph, graph.labeled & ~fold, fold, run.plan.recipe, device="cpu")
        said[fold] = predict_proba(model, graph, raw=True)[fold]
    assert run.results.scores == scores(graph, graph.labeled, said)


@pytest.mark.long
@pytest.mark.parametrize("members", ["", "layers smoothed-lr"])
def test_votes_are_weighed_by_labels_that_were_out_of_fold(own, members):
    run = trained(Source(str(own)), changes={**SMALL, "members": members})
    graph, folds = run.graph, folds_by_hand(run.graph)
    kinds = [scored_by_others(graph, recipe, folds) for recipe in members_of(run.plan.recipe).values()]
    parts = []
    for k, fold in enumerate(folds):
        said = [parts_of(models[k].model, models[k].prepare(graph)).of(fold) for models in kinds]
        parts.append(Parts(tuple(log for one in said for log in one.members), said[0].votes, said[0].target))
    y = torch.cat([graph.y[fold] for fold in folds])
    assert run.trained.weights == fit_weights(Parts.joined(parts), y)
    first = fit_weights(Parts.joined(parts[1:]), y[len(parts[0].members[0]) :])(parts[0])
    found = run.trained.held_out.probability[run.trained.held_out.fold == 0]
    assert torch.allclose(found.double(), first, atol=1e-6)


def test_ones_own_graph_chooses_the_epoch_by_loss_unless_told_otherwise(own):
    source = Source(str(own))
    ours = recipe_for(Case("few", columns="table"))
    assert ours == WITH_FEW_LABELS.replace(members="trees smoothed-lr lr gcn batch-norm", origin=ours.origin)
    assert make_plan(source)[0].recipe == ours.replace(select="loss")
    assert make_plan(source, changes={"select": "last_best"})[0].recipe.select == "last_best"
    assert make_plan(source, split="uniform")[0].recipe == ours


def test_one_labelled_node_is_one_class_and_refused(tmp_path):
    pandas.DataFrame({"id": ["a", "b", "c"], "label": ["x", "", ""]}).to_csv(tmp_path / "nodes.csv", index=False)
    pandas.DataFrame({"source": ["a"], "target": ["b"]}).to_csv(tmp_path / "edges.csv", index=False)
    with pytest.raises(ValueError, match="is 'x'; to tell classes apart it takes labels of two"):
        make_plan(Source(str(tmp_path)))


def test_one_label_a_class_trains_and_is_not_scored(tmp_path):
    """The club with the labels of its two heads: all but one member are told right, as by label propagation."""
    names = [f"member {k}" for k in range(34)]
    club = load("karate")
    said = ["Hi" if k == 0 else "Officer" if k == 33 else "" for k in range(34)]
    pandas.DataFrame({"id": names, "label": said}).to_csv(tmp_path / "nodes.csv", index=False)
    ends = {side: [names[k] for k in numbers] for side, numbers in (("source", club.row), ("target", club.col))}
    pandas.DataFrame(ends).to_csv(tmp_path / "edges.csv", index=False)
    plan, graph = make_plan(Source(str(tmp_path)))
    run = train_run(plan, graph, tmp_path / "run", device="cpu")
    assert run.results.scores is None and run.results.note == "too few labels to score: no class has two of them"
    kept = load_run(tmp_path / "run")
    assert kept.results == run.results and kept.trained.held_out is None
    right = predict_proba(kept.trained, graph).argmax(dim=1) == club.y
    assert int(right.sum()) >= 32


def test_ids_that_json_does_not_know_are_not_stored():
    graph = Graph.from_edges([((1, 2), (3, 4))])
    with pytest.raises(ValueError, match=r"node \(1, 2\) cannot be stored: ids that are text or numbers can"):
        storable_names(graph.node_names)


@pytest.mark.long
def test_a_source_that_has_changed_or_gone_is_named(own, tmp_path):
    trained(Source(str(own)), tmp_path / "run")
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("nodes.csv", "edges.csv"):
        (moved / name).write_bytes((own / name).read_bytes())
    (own / "edges.csv").write_text("source,target\n=000,=001\n")
    with pytest.raises(ValueError, match=r"is not the graph .*run was trained on .*--data PATH"):
        load_run(tmp_path / "run")
    (own / "edges.csv").unlink()
    (own / "nodes.csv").unlink()
    with pytest.raises(ValueError, match=r"the graph of .*run cannot be read from .*--data PATH"):
        load_run(tmp_path / "run")
    assert load_run(tmp_path / "run", data=moved).graph.num_nodes == 30
    with pytest.raises(ValueError, match=r"'karate' is not the graph"):
        load_run(tmp_path / "run", data="karate")


def test_nothing_is_written_over_without_a_word(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; choose another folder, or --overwrite"):
        trained(out=tmp_path)
    first = trained(out=tmp_path / "run")
    with pytest.raises(ValueError, match="is not empty"):
        trained(out=tmp_path / "run", seed=1)
    second = trained(out=tmp_path / "run", seed=1, overwrite=True)
    assert not same_weights(first.trained, second.trained)
    assert same_weights(second.trained, load_run(tmp_path / "run").trained)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        trained(out=tmp_path / "file")


def stop_in(stage, at):
    """A watch that presses Ctrl-C after an epoch of a stage."""

    def on_epoch(name, epoch):
        if (name.stage, epoch.epoch) == (stage, at):
            raise KeyboardInterrupt

    return Watch(on_epoch=on_epoch)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["fold-1", "fold-3"])
@pytest.mark.parametrize(("members", "processes"), [("", 1), ("layers smoothed-lr", 1), ("layers smoothed-lr", 2)])
def test_ctrl_c_keeps_a_model_and_resume_finishes_the_run(own, tmp_path, stage, members, processes, monkeypatch):
    monkeypatch.setattr("gcn_lpa.learning.many.FEWEST_NODES", 0)
    monkeypatch.setattr("gcn_lpa.learning.many.num_cpu_threads", lambda: processes)
    options = {"checkpoint_every": 2, "changes": {**SMALL, "members": members}}
    whole = trained(Source(str(own)), tmp_path / "whole", **options)
    stopped = trained(Source(str(own)), tmp_path / "part", **options, watch=stop_in(stage, 3))
    assert stopped.run.interrupted
    assert load_run(tmp_path / "part").run.interrupted
    assert predict_proba(stopped.trained, stopped.graph).shape == (30, 2)
    with pytest.raises(ValueError, match=r"holds an unfinished run: `gcn-lpa train --resume --out .*` goes on with it"):
        trained(Source(str(own)), tmp_path / "part", **options)
    with pytest.raises(ValueError, match="unfinished run with other settings or data"):
        trained(Source(str(own)), tmp_path / "part", **options, seed=7, resume=True)
    finished = resume_run(tmp_path / "part", device="cpu")
    assert same_weights(whole.trained, finished.trained)
    assert finished.results == whole.results
    assert not finished.run.interrupted
    assert sorted(os.listdir(tmp_path / "part")) == sorted(os.listdir(tmp_path / "whole"))


def test_resume_of_a_finished_run_is_that_run(tmp_path):
    first = trained(out=tmp_path / "run")
    assert same_weights(first.trained, resume_run(tmp_path / "run").trained)
    assert same_weights(first.trained, trained(out=tmp_path / "run", resume=True).trained)
    with pytest.raises(ValueError, match="finished run with other settings or data"):
        trained(out=tmp_path / "run", resume=True, seed=1)
    with pytest.raises(ValueError, match="not a run folder"):
        resume_run(tmp_path)


def test_a_recipe_is_chosen_by_name_file_and_changes(tmp_path):
    assert make_plan(SBM)[0].recipe == recipe_for(Case("few", columns="table"))
    assert make_plan(Source("karate"))[0].recipe.edges == "free"  # it has no features
    changed = make_plan(SBM, changes={"hidden": 7})[0].recipe
    assert (changed.hidden, changed.lr) == (7, LAYERS.lr)
    assert changed.origin.endswith("; with hidden = 7")
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"hidden": 5, "method": "gcn"}))
    assert make_plan(SBM, recipe=file)[0].recipe == Recipe(hidden=5, method="gcn")
    assert make_plan(SBM, recipe=file, method="jk-net")[0].recipe.method == "jk-net"
    assert make_plan(SBM, method="appnp")[0].recipe == METHODS["appnp"].fair(WITH_FEW_LABELS)
    with pytest.raises(ValueError, match="unknown method 'gnc'; there are mlp"):
        make_plan(SBM, method="gnc")
    with pytest.raises(ValueError, match="recipe 'paper' has no settings for 'sbm'"):
        make_plan(SBM, recipe="paper")
    file.write_text(json.dumps({"method": "gnc"}))
    with pytest.raises(ValueError, match=r"unknown method 'gnc'"):
        make_plan(SBM, recipe=file)


@pytest.mark.parametrize("method", METHODS)
def test_the_recipe_of_a_run_is_a_recipe_file(own, tmp_path, method):
    for source in (SBM, Source(str(own))):
        recipe = make_plan(source, method=method)[0].recipe
        (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_dict()))
        assert make_plan(source, recipe=tmp_path / "recipe.json")[0].recipe == recipe


@pytest.mark.parametrize("published", [PAPER["cora"], OFFICIAL["pubmed"]], ids=["paper", "official"])
@pytest.mark.parametrize("method", METHODS)
def test_the_recipe_of_a_run_beside_a_published_one_is_a_recipe_file(tmp_path, method, published):
    recipe = METHODS[method].beside(published, "paper")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    assert make_plan(SBM, recipe=tmp_path / "recipe.json")[0].recipe == recipe


def test_a_field_that_a_method_does_not_use_is_refused_although_the_paper_has_it(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"method": "gcn-same", "loss": "literal"}))
    with pytest.raises(ValueError, match=r"method 'gcn-same' does not use loss = 'literal'"):
        make_plan(SBM, recipe=tmp_path / "recipe.json")


def test_the_papers_recipe_of_a_data_set_is_found(datasets):
    assert make_plan(Source("cora", str(datasets)), recipe="paper")[0].recipe == PAPER["cora"]


def test_edges_are_listed_both_ways_with_shares_that_sum_to_one(tiny):
    recipe = LAYERS.replace(edges="free", loss="literal")
    fitted = trained_alone(tiny, [0, 1, 2, 3], [], recipe, stop_at=1)
    weight = fitted.model.first[0].edges.weight
    torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    table = edge_table(fitted, tiny)
    assert len(table) == 2 * 5 + 5  # five edges, five self-loops
    assert table.groupby("target")["learned"].sum().to_numpy() == pytest.approx(np.ones(5), abs=1e-6)
    dense = (recipe.prepare(tiny).adjacency.to_dense().log() + 0.0).exp()
    prepared = recipe.prepare(tiny)
    strength = torch.zeros(5, 5).index_put((prepared.row.long(), prepared.col.long()), weight.detach().exp())
    expected = dense * strength / (dense * strength).sum(dim=1, keepdim=True)
    for row in table.itertuples():
        assert row.learned == pytest.approx(expected[row.target, row.source].item(), abs=1e-6)
        assert row.weight == dense[row.target, row.source].item() == dense[row.source, row.target].item()


def test_a_method_without_edge_weights_says_so(tiny):
    fitted = learn(tiny, [0, 1, 2, 3], [], METHODS["lpa"].settings(LAYERS), device="cpu")
    with pytest.raises(ValueError, match="method 'lpa' learns no edge weights"):
        edge_table(fitted, tiny)


def test_only_excel_safe_tables_touch_ids(tmp_path):
    cells = ["=1+1", "+x", "-5", "@handle", "\tx", "\rx", "a=b", "", "'q"]
    table = pandas.DataFrame({"id": cells, "probability": [-0.5] * 9})
    write_table(tmp_path / "plain.csv", table)
    with open(tmp_path / "plain.csv", newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == cells
    safe = list(csv.DictReader(io.StringIO(table_text(table, excel_safe=True), newline="")))
    assert [row["id"] for row in safe] == ["'=1+1", "'+x", "'-5", "'@handle", "'\tx", "'\rx", "a=b", "", "'q"]
    assert {row["probability"] for row in safe} == {"-0.5"}


@pytest.mark.parametrize("content", ["[]", "null", "3"])
def test_a_recipe_file_that_holds_no_settings_is_refused(tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ValueError, match=r"r\.json: a recipe is an object of settings"):
        make_plan(SBM, recipe=tmp_path / "r.json")


def test_a_graph_that_the_plan_was_not_made_for_is_refused(tmp_path):
    plan, _ = make_plan(Source("karate"), changes={"epochs": 2}, split="uniform")
    other = load("digits")
    with pytest.raises(ValueError, match="'digits' is not the graph that the plan was made for"):
        train_run(plan, other, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
