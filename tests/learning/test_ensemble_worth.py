"""Costly members show their worth on the first fold; one that brings nothing is left out, and the result says so."""

import pytest
import torch

from gcn_lpa.learning.ensemble import Parts, is_judged, worth_of
from gcn_lpa.learning.learn import learn
from gcn_lpa.recipes import DEFAULT, QUICK
from gcn_lpa.target import Classes
from gcn_lpa.trained import Trained


def logs(generator, y, right):
    """Log-probabilities that are right in a share of the rows."""
    guess = torch.where(torch.rand(len(y), generator=generator) < right, y, (y + 1) % 3)
    return torch.full((len(y), 3), 0.15).scatter(1, guess.unsqueeze(1), 0.7).double().log()


def test_a_member_that_knows_more_is_worth_its_time_and_noise_is_not():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (300,), generator=generator)
    known, better, noise = (logs(generator, y, right) for right in (0.6, 0.8, 1 / 3))
    parts = Parts((known, better, noise), (), Classes(tuple("abc")))
    assert worth_of(parts, y, [0], 1).is_enough
    assert not worth_of(parts, y, [0, 1], 2).is_enough
    assert worth_of(parts, y, [0], 1).gain > worth_of(parts, y, [0, 2], 0).noise


def test_members_are_judged_beside_hop_columns_where_the_fold_is_no_handful():
    beside = DEFAULT.replace(members="hop-columns layers")
    assert [is_judged(beside, number) for number in (29, 30)] == [False, True]
    assert not is_judged(DEFAULT, 1000)


@pytest.mark.parametrize("is_worthless", [True, False])
def test_what_is_left_out_is_kept_with_the_reason(blocks, tmp_path, monkeypatch, is_worthless):
    monkeypatch.setattr("gcn_lpa.learning.ensemble.FEWEST", 1)
    monkeypatch.setattr("gcn_lpa.learning.ensemble.Worth.is_enough", not is_worthless)
    recipe = QUICK.replace(epochs=5, hidden=6, members="hop-columns layers")
    trained = learn(blocks, recipe=recipe, device="cpu")
    assert trained.recipe.members == ("hop-columns" if is_worthless else "hop-columns layers")
    assert list(trained.left_out) == ["layers"] * is_worthless
    trained.save_pretrained(tmp_path / "model")
    assert Trained.from_pretrained(tmp_path / "model").left_out == trained.left_out
