"""One training, alone and in full view: what `learn` does for given nodes, with options that only `learn_many` has."""

from gcn_lpa.learning.learn import learn_many


def trained_alone(graph, train, val, recipe, *, seed=0, **options):
    """`learn_many` of one part."""
    (trained,) = learn_many(graph, [(train, val)], recipe, seeds=seed, **{"device": "cpu", **options})
    return trained
