"""Runs are calibrated on labels that training did not learn from, and their label sets hold what they promise."""

import dataclasses
import json

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.calibration import (
    Calibration,
    Calibrator,
    conformal_sets,
    conformal_threshold,
    guesses_of,
    reliability,
)
from gcn_lpa.cli.app import app
from gcn_lpa.cut import Cut, Rule
from gcn_lpa.data.datasets import load
from gcn_lpa.data.describe import node_hops, unreachable
from gcn_lpa.data.splits import split
from gcn_lpa.learning.ensemble import fit_weights, parts_of
from gcn_lpa.learning.learn import learn
from gcn_lpa.predict import Prediction, predict_proba
from gcn_lpa.recipes import LAYERS
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Plan, Source, make_plan
from gcn_lpa.runs.predictions import calibrate_run, predict_run
from gcn_lpa.runs.train_run import train_run
from tests.helpers.changed_folders import changed, put
from tests.helpers.small_graphs import rare

QUICK = {"epochs": 12, "hidden": 8, "edge_rank": 4}
SBM = Source("sbm", None, {"n": 200, "classes": 3, "features": 5, "noise": 2.0})


def trained(source=SBM, out=None, **options):
    plan, graph = make_plan(source, changes=QUICK, **options)
    return train_run(plan, graph, out, device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders: one with reserved nodes, one without, one of a graph of one's own with five unlabelled nodes."""
    folder = tmp_path_factory.mktemp("runs")
    graph = load("sbm", n=60, classes=2, features=4, noise=2.0)
    names = [f"n{i}" for i in range(60)]
    nodes = pandas.DataFrame(graph.x.numpy(), columns=[f"f{k}" for k in range(4)]).assign(id=names)
    nodes["label"] = [["no", "yes"][k] if i < 55 else "" for i, k in enumerate(graph.y.tolist())]
    (folder / "own").mkdir()
    nodes.to_csv(folder / "own" / "nodes.csv", index=False)
    ends = {"source": [names[i] for i in graph.row.tolist()], "target": [names[i] for i in graph.col.tolist()]}
    pandas.DataFrame(ends).to_csv(folder / "own" / "edges.csv", index=False)
    return {
        "reserved": trained(out=folder / "reserved", reserve=0.5),
        "validation": trained(out=folder / "validation"),
        "cross-validation": trained(Source(str(folder / "own")), folder / "cross"),
    }


@pytest.mark.long
def test_reserved_nodes_choose_nothing(runs):
    """Training with them unlabelled altogether ends in the same weights; their number is half the validation nodes."""
    run = runs["reserved"]
    parts = split(run.graph, seed=0)
    assert torch.equal(run.split.val | run.reserved, parts.val)
    assert int(run.reserved.sum()) == int(parts.val.sum()) // 2
    hidden = run.graph.reveal(~run.reserved)
    again = learn(hidden, parts.train, run.split.val, run.plan.recipe, device="cpu")
    assert again.run.best_epoch == run.run.best_epoch
    pairs = zip(again.model.parameters(), run.trained.model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.long
def test_a_run_is_calibrated_on_the_nodes_it_says(runs):
    for protocol, nodes in (("reserved", runs["reserved"].reserved), ("validation", runs["validation"].split.val)):
        run = runs[protocol]
        p = predict_proba(run.trained, run.graph, raw=True)[nodes]
        if protocol == "validation":  # these nodes also weigh the votes: each is scored by the weights that the others give
            parts = parts_of(run.trained.model, run.trained.prepare(run.graph)).of(nodes)
            p, y = torch.zeros_like(p), run.graph.y[nodes]
            for k in range(5):
                here = torch.arange(len(y)) % 5 == k
                p[here] = fit_weights(parts.of(~here), y[~here])(parts.of(here))
        apart = unreachable(run.graph, run.split.train if protocol == "validation" else run.split.train | run.split.val)
        assert run.trained.calibration == Calibration.fitted(p, run.graph.y[nodes], protocol, None, apart[nodes])


@pytest.mark.long
def test_ones_own_graph_is_calibrated_on_what_was_out_of_fold(runs):
    run, found = runs["cross-validation"], runs["cross-validation"].trained.held_out
    assert torch.equal(found.node, run.graph.labeled.nonzero().squeeze(1))
    assert torch.bincount(found.fold).tolist() == [11] * 5
    y = run.graph.y[found.node]
    assert run.results.scores.accuracy == pytest.approx((found.probability.argmax(dim=1) == y).double().mean().item())
    assert run.trained.calibration == Calibration.fitted(found.probability, y, "cross-validation", found.fold, found.unreachable)
    hops = [node_hops(run.graph, found.node[found.fold != k]) for k in range(5)]
    assert found.unreachable.tolist() == [
        bool(np.isinf(hops[k][i])) for i, k in zip(found.node.tolist(), found.fold.tolist(), strict=True)
    ]


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["reserved", "validation", "cross-validation"])
def test_a_calibration_comes_back_from_its_folder(runs, protocol):
    before, after = runs[protocol], load_run(runs[protocol].folder)
    assert after.plan == before.plan
    assert after.trained.calibration == before.trained.calibration
    assert (after.reserved is None) == (before.reserved is None)
    if before.reserved is not None:
        assert torch.equal(after.reserved, before.reserved)
    ours, theirs = after.trained.held_out, before.trained.held_out
    for name in ("node", "y", "probability", "unreachable", *(() if theirs.fold is None else ("fold",))):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert ours.protocol == theirs.protocol == protocol
    assert calibrate_run(after) == calibrate_run(before)


@pytest.mark.long
def test_the_report_of_a_split_is_that_of_its_test_nodes(runs):
    run, found = runs["reserved"], calibrate_run(load_run(runs["reserved"].folder), level=0.8)
    p = predict_proba(run.trained, run.graph, raw=True)
    test, y = run.split.test, run.graph.y
    assert found.ece_before == pytest.approx(reliability(guesses_of(p[test], y[test])).ece)
    assert found.ece_after == pytest.approx(reliability(guesses_of(run.trained.calibration(p[test]), y[test])).ece)
    assert found.num_nodes == int(test.sum())
    threshold = conformal_threshold(p[run.reserved], y[run.reserved], 0.8)
    sets = conformal_sets(p[test], threshold)
    assert found.coverage == pytest.approx(sets[range(len(sets)), y[test]].double().mean().item())
    assert found.mean_set_size == pytest.approx(sets.sum().item() / len(sets))
    assert found.set_sizes == tuple((sets.sum(dim=1) == k).sum().item() for k in range(4))
    assert found.accuracy == pytest.approx(run.results.scores.accuracy)


@pytest.mark.long
def test_the_report_of_a_cross_validation_judges_each_fold_by_the_others(runs):
    run = runs["cross-validation"]
    found, held_out = calibrate_run(run, level=0.8), run.trained.held_out
    fold, p, y = held_out.fold, held_out.probability, run.graph.y[held_out.node]
    after, covered = p.clone(), 0
    for i in range(55):
        others = fold != fold[i]
        fitted = Calibration.fitted(p[others], y[others], "cross-validation", fold[others], held_out.unreachable[others])
        after[i] = fitted(p[i : i + 1], held_out.unreachable[i : i + 1])[0]
        covered += int(conformal_sets(p[i : i + 1], conformal_threshold(p[others], y[others], 0.8))[0, y[i]])
    assert found.ece_after == pytest.approx(reliability(guesses_of(after, y)).ece)
    assert found.coverage == pytest.approx(covered / 55)
    assert (found.num_nodes, found.calibration.protocol) == (55, "cross-validation")


@pytest.mark.long
def test_a_calibration_that_was_tampered_with_is_refused(runs, tmp_path):
    folder = changed(runs["validation"].folder, tmp_path / "run", "trained.json", put("calibration", "heat", 1))
    with pytest.raises(ValueError, match=r"trained\.json: calibration has a field 'heat'; there are calibrator"):
        load_run(folder)


@pytest.mark.long
def test_predictions_are_calibrated_and_sets_are_not(runs):
    run = runs["reserved"]
    p = predict_proba(run.trained, run.graph, raw=True)
    rows = ~run.used
    table = predict_run(load_run(run.folder), sets=0.9, hops=True)
    assert table["id"].tolist() == [name for name, row in zip(run.graph.node_names, rows.tolist(), strict=True) if row]
    assert table["probability"].tolist() == pytest.approx(run.trained.calibration(p)[rows].max(dim=1).values.tolist())
    raw = predict_run(load_run(run.folder), raw=True)
    assert raw["probability"].tolist() == pytest.approx(p[rows].max(dim=1).values.tolist())
    assert raw["label"].tolist() == table["label"].tolist()
    sets = conformal_sets(p[rows], conformal_threshold(p[run.reserved], run.graph.y[run.reserved], 0.9))
    names = np.array(run.graph.class_names)
    assert [set(cell.split("|")) for cell in table["set"]] == [{*names[row.numpy()]} for row in sets]
    assert [cell.split("|")[0] for cell in table["set"]] == table["label"].tolist()
    every = predict_run(load_run(run.folder), every=True)
    assert (every["status"] == "reserved").tolist() == run.reserved.tolist()


@pytest.mark.long
def test_below_the_threshold_there_is_no_label(runs):
    run = load_run(runs["validation"].folder)
    plain = predict_run(run)
    half = plain["probability"].median()
    careful, doubtful = predict_run(run, abstain=half), plain["probability"] < half
    assert 0 < doubtful.sum() < len(plain)
    assert (careful["label"] == "").tolist() == doubtful.tolist()
    assert (careful["status"] == "abstain").tolist() == doubtful.tolist()
    assert careful["label"][~doubtful].tolist() == plain["label"][~doubtful].tolist()
    everyone = predict_run(run, abstain=1.0, every=True)
    assert (everyone["status"] == "labeled").tolist() == runs["validation"].used.tolist()  # those stay as they are
    with pytest.raises(ValueError, match=r"abstain = 60; it is a probability"):
        predict_run(run, abstain=60)


@pytest.mark.long
def test_reserving_needs_a_split_and_enough_nodes(runs, tmp_path):
    own = runs["cross-validation"].plan.source
    with pytest.raises(ValueError, match="the cross-validation calibrates"):
        make_plan(own, reserve=0.5)
    with pytest.raises(ValueError, match=r"reserve = 0.1 of 6 validation nodes is not one node"):
        trained(Source("karate"), tmp_path / "run", reserve=0.1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reserve", [0.0, 0.5])
def test_calibration_does_not_see_test_labels(reserve):
    """Other labels for the test nodes: the same calibrator, threshold and sets. Other labels for those that calibrate: not."""
    graph, seed = load("sbm", n=300, classes=3, features=5, noise=2.0), 0
    parts = split(graph, seed=seed)

    def calibrated_on(y):
        changed = dataclasses.replace(graph, y=y)
        plan = Plan(SBM, changed.content_hash(64), LAYERS.replace(**QUICK), seed, "uniform", reserve=reserve)
        run = train_run(plan, changed, device="cpu")
        held_out, prediction = run.trained.held_out, Prediction.of(run.trained, changed)
        threshold = conformal_threshold(held_out.probability, held_out.y, 0.8)
        fitted = run.trained.calibration
        return fitted.calibrator, threshold, conformal_sets(prediction.uncalibrated, threshold).tolist()

    def scrambled(nodes):
        return torch.where(nodes, (graph.y + 1) % 3, graph.y)

    honest = calibrated_on(graph.y)
    assert calibrated_on(scrambled(parts.test)) == honest
    assert calibrated_on(scrambled(parts.val))[0] != honest[0]


def invoked(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def told(*arguments, code=0):
    result = invoked(*arguments, code=code)
    return result.stdout if code == 0 else result.stderr


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["reserved", "validation", "cross-validation"])
def test_calibrate_says_what_the_library_found(runs, protocol):
    folder = runs[protocol].folder
    found = calibrate_run(runs[protocol], level=0.8)
    assert json.loads(told("calibrate", folder, "--level", 0.8, "--json")) == json.loads(json.dumps(dataclasses.asdict(found)))
    text = told("calibrate", folder, "--level", 0.8)
    assert f"{100 * found.ece_before:.1f} % before, {100 * found.ece_after:.1f} % after" in " ".join(text.split())
    assert f"hold the true label of {100 * found.coverage:.1f} %" in " ".join(text.split())
    assert found.promise in " ".join(text.split())


@pytest.mark.long
def test_predict_writes_sets_and_abstains(runs, tmp_path):
    folder = runs["validation"].folder
    said = told("predict", folder, "--sets", 0.9, "--abstain", 1, "--hops", "--out", tmp_path / "p.csv")
    assert "abstain" in said
    kept = pandas.read_csv(tmp_path / "p.csv", keep_default_na=False, dtype={"set": str})
    table = predict_run(load_run(folder), sets=0.9, abstain=1, hops=True)
    assert kept.columns.tolist() == ["id", "label", "probability", "runner_up", "status", "set", "hops"]
    assert kept["set"].tolist() == table["set"].tolist()
    json.loads(told("predict", folder, "--sets", 0.9, "--hops", "--json"))
    assert told("predict", folder, "--sets", 90, code=1) == "gcn-lpa: level = 90.0; it is a share between 0 and 1, such as 0.9\n"


def test_with_few_labels_no_set_is_promised(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label\n" + "".join(f"n{i},{'ab'[i % 2] if i < 12 else ''}\n" for i in range(20)))
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"n{i},n{i + 2}\n" for i in range(18)))
    plan, graph = make_plan(Source(str(tmp_path)), changes={"epochs": 2})
    run = train_run(plan, graph, tmp_path / "run", device="cpu")
    assert run.trained.calibration.calibrator == Calibrator()
    with pytest.raises(ValueError, match=r"label sets need 30 labels that training did not learn from, and there are 12"):
        predict_run(run, sets=0.9)
    assert calibrate_run(run).promise == "none: 12 labels are too few, it takes 30"
    assert len(predict_run(run)) == 8


@pytest.fixture(scope="module")
def accounts(tmp_path_factory):
    """A run on a folder of accounts, a tenth of them fraud, of which the last third has no label; and what is true of those."""
    folder, graph = tmp_path_factory.mktemp("rare"), rare(n=360, share=0.1)
    names = [f"a{i}" for i in range(360)]
    nodes = pandas.DataFrame(graph.x.numpy(), columns=["x0", "x1", "x2"]).assign(id=names)
    truth = [graph.class_names[k] for k in graph.y.tolist()]
    nodes["label"] = [name if i < 240 else "" for i, name in enumerate(truth)]
    nodes.to_csv(folder / "nodes.csv", index=False)
    ends = {"source": [names[i] for i in graph.row.tolist()], "target": [names[i] for i in graph.col.tolist()]}
    pandas.DataFrame(ends).to_csv(folder / "edges.csv", index=False)
    plan, own = make_plan(Source(str(folder)), method="neighbour-lr")
    return train_run(plan, own, folder / "run", device="cpu"), dict(zip(names, truth, strict=True))


@pytest.mark.parametrize("rule", [Rule(top=15), Rule(threshold=0.2), Rule(precision=0.6), Rule(costs=(20.0, 1.0))], ids=str)
def test_a_cut_calls_the_likeliest_nodes_and_counts_what_it_expects_on_others(accounts, rule):
    run, truth = accounts
    table = predict_run(run, cut=rule)
    cut, p = table.attrs["cut"], table["p:fraud"].to_numpy()
    plain = predict_run(run, all_classes=True).set_index("id")
    assert (np.diff(p) <= 0).all()
    assert plain["p:fraud"].loc[table["id"]].tolist() == p.tolist()
    assert (table["label"] == "fraud").tolist() == (p >= cut.threshold).tolist()
    assert (table["runner_up"] == "fraud").tolist() == (p < cut.threshold).tolist()
    assert (cut.positive, cut.num_nodes, cut.num_held_out) == ("fraud", 120, 240)
    assert cut.called == int((p >= cut.threshold).sum())
    hits = sum(truth[name] == "fraud" for name in table["id"][table["label"] == "fraud"])
    assert cut.hits.low <= hits <= cut.hits.high
    assert predict_run(run, cut=cut).equals(table)


def test_the_cut_of_a_run_is_chosen_on_its_out_of_fold_predictions(accounts):
    """By hand: the scores of the held-out nodes, calibrated by the other folds, choose the precision."""
    run, _ = accounts
    held_out, wanted = run.trained.held_out, Prediction.of(run.trained, run.graph).probabilities[~run.used, 0]
    number = run.trained.class_names.index("fraud")
    assert number == 0
    rule, hit = Rule(precision=0.6), held_out.y == 0
    by_hand = Cut.of(rule, (held_out.crossed()[:, 0], hit, held_out.fold), wanted, positive="fraud", protocol="cross-validation")
    assert predict_run(run, cut=rule).attrs["cut"] == by_hand
    assert predict_run(run, cut=rule, positive="honest").attrs["cut"].positive == "honest"


def test_a_cut_needs_labels_that_nothing_learned_from_and_a_class(runs, accounts):
    with pytest.raises(ValueError, match="a cut needs 30 labels that training did not learn from, and there are 6"):
        predict_run(trained(Source("karate"), split="uniform"), cut=Rule(top=5))
    with pytest.raises(ValueError, match="positive names the class that is called, one of '0', '1', '2'"):
        predict_run(runs["validation"], cut=Rule(top=5))
    with pytest.raises(ValueError, match=r"positive = 'frau'; it is a class: 'fraud', 'honest'; did you mean fraud\?"):
        predict_run(accounts[0], cut=Rule(top=5), positive="frau")


def test_predict_prints_what_to_expect_of_a_cut(accounts, tmp_path):
    folder = accounts[0].folder
    said = told("predict", folder, "--top", 15, "--out", tmp_path / "list.csv").splitlines()
    assert said[0] == f"120 rows, 120 reached in {tmp_path / 'list.csv'}"
    assert said[1].startswith("fraud: 15 of 120 nodes, by top 15: from probability 0.")
    assert said[2].startswith("  expected     ") and " hits, precision " in said[2]
    assert all(len(line) <= 80 for line in said[1:])
    assert pandas.read_csv(tmp_path / "list.csv")["label"].tolist() == ["fraud"] * 15 + ["honest"] * 105
    facts = json.loads(told("predict", folder, "--costs", "fn=20,fp=1", "--json"))
    assert facts["cut"]["rule"] == "costs fn=20, fp=1"
    assert len(facts["predictions"]) == 120
    shown = invoked("predict", folder, "--top", 15)
    assert shown.stderr.splitlines()[0] == said[1]
    grown = told("predict", folder, "--on", folder.parent, "--top", 15, "--out", tmp_path / "on.csv")
    assert said[1] in grown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top", 5, "--threshold", 0.3], "--threshold and --top each choose the cut; give one"),
        (["--costs", "fn=50"], "say what a miss and a false alarm cost, as in fn=50,fp=1"),
        (["--costs", "fn=50,fp=1,tp=3"], "say what a miss and a false alarm cost"),
        (["--positive", "fraud"], "--positive goes with --threshold, --top, --precision or --costs"),
        (["--top", 5, "--abstain", 0.6], "--abstain leaves out what a cut would call"),
    ],
)
def test_a_cut_that_cannot_be_meant_is_mistyped(accounts, flags, message):
    result = told("predict", accounts[0].folder, *flags, code=2)
    assert message in " ".join(result.replace("│", " ").split())
