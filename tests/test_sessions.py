"""What README.md and docs/ show is run: sessions print what is shown, Python runs, and all else is marked with a reason."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from tests.helpers.pages import FENCE, PAGES, README, ROOT, blocks, is_same, missing, session

NOT_RUN = re.compile(r"<!-- not run: \S.{10,} -->\n$")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the examples, in which commands keep their runs."""
    place = tmp_path_factory.mktemp("sessions")
    (place / "examples").symlink_to(ROOT / "examples")
    return place


@pytest.mark.long
def test_the_sessions_print_what_the_pages_show(place, monkeypatch):
    """In one folder, one page after the other; a command that several pages show is run once."""
    monkeypatch.chdir(place)
    printed = {}
    for page in PAGES:
        for command, shown in (one for text in blocks(page, "console") for one in session(text)):
            program, *arguments = shlex.split(command)
            assert program == "gcn-lpa"
            if command not in printed:
                if "--out" in arguments:
                    (place / arguments[arguments.index("--out") + 1]).unlink(missing_ok=True)
                done = CliRunner().invoke(app, arguments)
                assert done.exit_code == 0, (page.name, command, done.stderr)
                printed[command] = done.stdout.splitlines()
            assert missing(shown, printed[command]) == [], (page.name, command, printed[command])
    assert len(printed) >= 12
    assert (place / "predictions.csv").read_text().startswith("id,label,probability,runner_up,status")


@pytest.mark.long
def test_the_python_of_the_readme_runs(capsys):
    (source,) = blocks(README, "python")
    names = {}
    exec(compile(source, "README.md", "exec"), names)
    assert float(capsys.readouterr().out) > 0.9  # digits; LPA and MLP reach 0.95 and more
    assert list(names["table"].columns) == ["id", "label", "probability", "runner_up", "status"]


@pytest.mark.long
def test_the_python_of_explaining_runs(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    if not (place / "runs" / "club").exists():
        assert CliRunner().invoke(app, shlex.split("train examples/club -o label=club --out runs/club")).exit_code == 0
    (source,) = blocks(ROOT / "docs" / "explaining.md", "python")
    exec(compile(source, "explaining.md", "exec"), {})
    assert "Mr. Hi Mr. Hi True ('member-03', 'member-01')" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_code_is_run_or_says_why_not(page):
    """Sessions are `console`, Python is `python`; the estimator's doctests are run by tests/test_estimator.py."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        is_run = found[1] == "console" or (found[1] == "python" and page.stem in ("README", "explaining", "estimator"))
        assert is_run or NOT_RUN.search(text[: found.start()]), found[0][:80]


def test_a_shown_line_with_another_number_or_word_is_missing():
    printed = ["club: gcn-lpa, epoch 181 of 200 (validation 100.0 %), 5.2 s", "  gcn-lpa predicts  Mr. Hi  0.864"]
    assert (
        missing(
            ["club: gcn-lpa, epoch 181 of 200 (validation 100.0 %), 9.9 s", "  gcn-lpa predicts  Mr. Hi  0.860"],
            printed,
        )
        == []
    )
    assert missing(["club: gcn-lpa, epoch 140 of 200 (validation 100.0 %), 5.2 s"], printed)
    assert missing(["  gcn-lpa predicts  Mr. Hi  0.815"], printed)
    assert missing(["  gcn-lpa predicts  Officer  0.864"], printed)
    assert missing(printed[::-1], printed) == printed[:1]  # the order counts
    assert not is_same("28 rows", "29 rows")
