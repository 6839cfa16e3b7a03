"""The chain from the LPA loss to accuracy: what is measured is what the influences add up to, and differences are paired."""

import itertools
import math

import pytest
import torch

from gcn_lpa.data.splits import split
from gcn_lpa.engine.sparse import SparseMatrix
from gcn_lpa.model import GCNLPA
from gcn_lpa.propagation import feature_influence
from gcn_lpa.recipes import WITHOUT_FEATURES
from reproduction.influence import (
    intra_class_feature_influence,
    intra_class_label_influence,
    label_influence_matrix,
)
from reproduction.influence_study import LINKS, ROWS, cell_of, influence_study, jobs, measure, summary, text_of

RECIPE = WITHOUT_FEATURES.replace(loss="literal", lpa_iterations=3, epochs=4)


def model_of(graph):
    prepared = RECIPE.prepare(graph)
    model = GCNLPA(RECIPE.replace(edge_init="glorot"), prepared, seed=1)
    return model, model.transition(prepared).detach()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def random_walk():
    """Rows of probabilities on a random graph of eight nodes with asymmetric weights."""
    weights = torch.rand(8, 8, generator=seeded(0), dtype=torch.float64)
    joined = (weights + weights.T > 1.1) | torch.eye(8, dtype=torch.bool)
    return SparseMatrix.from_scipy((weights * joined).numpy(), torch.float64).row_normalized()


@pytest.mark.parametrize("with_self", [True, False])
def test_intra_class_influence_sums_the_pairs_of_a_class(with_self):
    transition = random_walk()
    labels, (labeled, targets) = torch.tensor([0, 1, 0, 2, -1, 2, 1, 0]), torch.rand(2, 8, generator=seeded(1)) < 0.5
    label, feature = label_influence_matrix(transition, labeled, 3), feature_influence(transition, torch.arange(8), 2)
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for a, b in itertools.product(range(8), range(8)):
        if targets[a] and labels[a] == labels[b] >= 0 and (with_self or a != b):
            expected[0, labels[a]] += label[a, b]
            expected[1, labels[a]] += feature[a, b] * labeled[b]
    found_label = intra_class_label_influence(transition, labels, labeled, 3, targets=targets, with_self=with_self)
    found_feature = intra_class_feature_influence(transition, labels, 2, targets=targets, sources=labeled, with_self=with_self)
    torch.testing.assert_close(torch.stack([found_label, found_feature]), expected)


def test_the_links_are_sums_over_pairs_of_one_class(karate):
    model, transition = model_of(karate)
    parts, y = split(karate), karate.y
    found = measure(model, karate, parts, 3)
    label = label_influence_matrix(transition, parts.train, 3)
    feature = feature_influence(transition, torch.arange(34), RECIPE.gcn_layers)
    same = y.unsqueeze(1) == y
    apart = same & ~torch.eye(34, dtype=torch.bool)
    train, test = parts.train, parts.test
    assert found["label_train"] == pytest.approx(float((label * apart)[train].sum() / train.sum()), rel=1e-5)
    assert found["label_self"] == pytest.approx(float(label.diagonal()[train].sum() / train.sum()), rel=1e-5)
    assert found["label_test"] == pytest.approx(float((label * same)[test].sum() / test.sum()), rel=1e-5)
    assert found["feature_train"] == pytest.approx(float((feature * apart * train)[train].sum() / train.sum()), rel=1e-5)
    assert found["feature_test"] == pytest.approx(float((feature * apart)[test].sum() / test.sum()), rel=1e-5)
    own = test & (y == 1)
    assert found["classes"]["label_test"][1] == pytest.approx(float((label * same)[own].sum() / own.sum()), rel=1e-5)


def test_the_lpa_loss_is_that_of_training(karate):
    """What `measure` says of training nodes is the second term of Eq. (18) that training minimises."""
    model, _ = model_of(karate)
    parts = split(karate)
    loss = model.loss(RECIPE.prepare(karate), parts.train.nonzero().squeeze(1))
    assert measure(model, karate, parts, RECIPE.lpa_iterations)["lpa_loss_train"] == pytest.approx(float(loss.lpa.detach()))


@pytest.mark.long
def test_a_study_pairs_its_rows_split_by_split(karate):
    rows = {"λ = 0": RECIPE.replace(lpa_weight=0.0), "joint": RECIPE, "two-step": RECIPE.replace(training="two_step")}
    records = influence_study(karate, 3, rows=rows, iterations=3, device="cpu")
    assert [(record["row"], record["seed"]) for record in records] == [(name, k) for name in rows for k in range(3)]
    base, joint, two_step = summary(records)
    assert base["links"]["test_accuracy"]["difference"] is None
    gains = [records[3 + k]["label_test"] - records[k]["label_test"] for k in range(3)]
    difference = joint["links"]["label_test"]["difference"]
    assert difference["mean"] == pytest.approx(sum(gains) / 3)
    spread = math.sqrt(sum((gain - difference["mean"]) ** 2 for gain in gains) / 2)
    assert difference["interval"] == pytest.approx(4.302653 * spread / math.sqrt(3), rel=1e-5)  # t of two degrees of freedom
    assert two_step["splits"] == 3
    text = text_of([base, joint, two_step])
    assert "## karate, 3 splits" in text
    assert all(said in text for said in LINKS.values())
    assert "Mr. Hi" in text  # per class


def test_every_row_has_a_job_on_every_split():
    todo = jobs("cora", 3)
    assert len({(job["row"], job["seed"]) for job in todo}) == len(todo) == 3 * len(ROWS)
    settings = {row: cell_of("cora", row).settings() for row in ROWS}
    assert settings["gcn"].edges == "fixed"
    assert [settings[row].training for row in ("joint", "two-step")] == ["joint", "two_step"]
    assert settings["λ = 0"].lpa_weight == 0
    assert settings["joint, leave-one-out"].loss == "leave_one_out"
    assert settings["joint, official"].loss == settings["λ = 0, official"].loss == "official"


def test_rows_of_the_authors_code_are_compared_with_its_own_without_lpa():
    links = dict.fromkeys(LINKS, 0.5)
    values = {"λ = 0": 0.1, "joint": 0.3, "λ = 0, official": 0.2, "joint, official": 0.6}
    records = [
        {
            "dataset": "d",
            "row": row,
            "seed": k,
            **links,
            "label_test": value + 0.01 * k,
            "class_names": [],
            "classes": {},
        }
        for row, value in values.items()
        for k in range(2)
    ]
    found = {row["row"]: row["links"]["label_test"]["difference"] for row in summary(records)}
    assert found["joint"]["mean"] == pytest.approx(0.2)
    assert found["joint, official"]["mean"] == pytest.approx(0.4)
    assert found["λ = 0"] is found["λ = 0, official"] is None
