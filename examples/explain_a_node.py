"""Train on the karate club, then ask why a member is on his side, and what would put him on the other."""

from pathlib import Path

from gcn_lpa import learn, load, split, what_if
from gcn_lpa.insight.drawing import draw_explanation
from gcn_lpa.insight.explain import Explainer
from gcn_lpa.recipes import WITHOUT_FEATURES

club = load("karate")
parts = split(club, seed=0)
trained = learn(club, parts.train, parts.val, WITHOUT_FEATURES, device="cpu")
explainer = Explainer.of(trained, club)

member = int(parts.test.nonzero()[0])
why = explainer.explain(member, top=5)
print(why)
draw_explanation(why, Path("why.png"))

voter = why.votes[0]
other = next(side for side in club.class_names if side != voter.label)
print()
print(what_if(trained, club, relabel={voter.node: other}))
print()
print(explainer.table(parts.test).to_string(index=False))
