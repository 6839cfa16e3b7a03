"""Pictures of a run: each is drawn, in the colours of the palette, and no legend or title covers what it is about."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from gcn_lpa import calibration
from gcn_lpa.cli.app import app
from gcn_lpa.data.files import write_figure
from gcn_lpa.insight import drawing
from gcn_lpa.insight import tune as tuning
from gcn_lpa.insight.drawing import CLASS_COLORS, GREY, PALE
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.report import pictures
from gcn_lpa.report.page import OpenRun
from gcn_lpa.runs.folder import load_run
from tests.helpers.ring_runs import run_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("pictures")).folder


@pytest.fixture
def subject(folder):
    return OpenRun(load_run(folder))


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """What the functions draw, laid out as it is written."""
    found = []

    def keep(figure, path, **options):
        write_figure(figure, path, **options)
        FigureCanvasAgg(figure).draw()
        found.append(figure)

    monkeypatch.setattr(drawing, "write_figure", keep)
    return found


def draw(subject, what, path):
    about = {"node": subject.graph.node_names[0]} if what == "neighbourhood" else {}
    pictures.PICTURES[what](subject, path, **about)


def covered(figure):
    """Pairs of a legend and axes, or of a title and a legend, that overlap."""
    inside = figure.bbox.padded(1)
    legends = [*figure.legends, *(one.get_legend() for one in figure.axes if one.get_legend() is not None)]
    boxes = [legend.get_window_extent() for legend in legends]
    titles = [one.title.get_window_extent() for one in figure.axes if one.get_title()]
    if figure.get_suptitle():
        titles.append(figure._suptitle.get_window_extent())
    for box in [*boxes, *titles]:
        assert inside.contains(*box.min), "it is cut off"
        assert inside.contains(*box.max), "it is cut off"
    plots = [one.get_window_extent() for one in figure.axes]
    return [(a, b) for a, b in [*product(boxes, plots), *product(titles, boxes)] if a.padded(-1).overlaps(b.padded(-1))]


@pytest.mark.parametrize("what", pictures.PICTURES)
def test_no_legend_covers_anything(subject, drawn, tmp_path, what):
    draw(subject, what, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert not covered(drawn[0])


def test_nor_does_one_of_the_other_pictures(subject, drawn, tmp_path):
    bins = calibration.Reliability((0.25, 0.75), (0.2, 0.9), (5, 6))
    drawing.draw_reliability(bins, bins, tmp_path / "a.png", title="x")
    drawing.draw_explanation(subject.explainer.explain(subject.graph.node_names[0]), tmp_path / "b.png")
    trials = tuple(tuning.TuningTrial(k, {"lr": 0.1 * k}, 0.5 + 0.1 * k, 1.0) for k in range(4))
    found = tuning.Tuning(DEFAULT, DEFAULT, 0.8, 0.5, trials, {"lr": 1.0})
    drawing.draw_tuning(found, tmp_path / "c.png")
    assert len(drawn) == 3
    assert not any(map(covered, drawn))
    words = [text.get_text() for figure in drawn for legend in figure.legends for text in legend.get_texts()]
    assert "perfect" in words
    assert not [word for word in words if "a*" in word or "_ij" in word or "$" in word]


@pytest.mark.parametrize("what", ["neighbourhood", "map"])
def test_nodes_have_the_colour_of_their_class_and_given_labels_an_outline(subject, drawn, tmp_path, what):
    draw(subject, what, tmp_path / "x.png")
    (axes,) = drawn[0].axes
    clouds = [cloud for cloud in axes.collections[1:] if len(cloud.get_offsets()) and cloud.get_facecolors().size]
    colors = {to_hex(color, keep_alpha=False).upper() for cloud in clouds for color in cloud.get_facecolors()}
    assert colors <= {*CLASS_COLORS, PALE}
    outlined = sum(len(c.get_offsets()) for c in clouds if to_hex(c.get_edgecolors()[0]) == "#000000")
    shown = sum(len(cloud.get_offsets()) for cloud in clouds)
    if what == "map":
        assert (shown, outlined) == (subject.graph.num_nodes, int((subject.kind == 1).sum()))
    else:
        near = 1 + int((subject.graph.row == 0).sum())  # its neighbours are as many as its row has entries
        assert shown > near > 1


def test_a_node_out_of_reach_is_pale(subject, drawn, tmp_path):
    nobody = ["unreachable"] * subject.graph.num_nodes
    prediction = SimpleNamespace(status=nobody, probabilities=subject.prediction.probabilities)
    subject.explainer = SimpleNamespace(prediction=prediction, transition=subject.explainer.transition)
    pictures.draw_map(subject, tmp_path / "x.png")
    assert drawn[0].legends[0].get_texts()[0].get_text() == "out of reach of any label"
    edge = {to_hex(color).upper() for color in drawn[0].axes[0].collections[1].get_edgecolors()}
    assert edge == {GREY}


def test_the_confusion_shows_the_counts_of_the_run(subject, drawn, tmp_path):
    pictures.draw_confusion(subject, tmp_path / "x.png")
    written = [int(text.get_text()) for text in drawn[0].axes[0].texts]
    assert written == torch.tensor(subject.run.results.scores.confusion).flatten().tolist()


def test_the_command_draws_what_it_is_asked(folder, tmp_path):
    def said(*words):
        return CliRunner().invoke(app, ["report", str(folder), "--picture", *map(str, words)])

    for what in ("curve", "confusion", "map"):
        done = said(what, "--out", tmp_path / f"{what}.svg")
        assert done.stdout == f"the {what} is {tmp_path}/{what}.svg\n"
        assert (tmp_path / f"{what}.svg").read_text().startswith("<?xml")
    first = (tmp_path / "map.svg").read_bytes()
    assert "exists; choose another file" in said("map", "--out", tmp_path / "map.svg").stderr
    assert said("map", "--out", tmp_path / "map.svg", "--overwrite").exit_code == 0
    assert (tmp_path / "map.svg").read_bytes() == first
    assert "there is no picture 'mpa'; there are curve, confusion" in said("mpa", "--out", "x.png").stderr
    assert "neighbourhood with --node" in " ".join(said("neighbourhood", "--out", "x.png").stderr.split())
    assert "has no node 'nobody'" in said("neighbourhood", "--node", "nobody", "--out", tmp_path / "x.png").stderr
    assert "a picture ends in .png, .svg, .pdf" in " ".join(said("map", "--out", tmp_path / "map").stderr.split())
