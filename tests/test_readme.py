"""What the README shows is run here."""

import shlex

import pytest
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from tests.helpers.readme import ROOT, blocks, session, without_numbers


@pytest.mark.long
def test_the_session_prints_what_the_readme_shows_but_for_its_numbers(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    commands = [one for text in blocks("console") for one in session(text)]
    assert len(commands) >= 4
    for command, shown in commands:
        program, *arguments = shlex.split(command)
        assert program == "gcn-lpa"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.stderr
        printed = [without_numbers(line) for line in done.stdout.splitlines()]
        for line in shown:
            assert any(one.startswith(without_numbers(line)) for one in printed), (command, line, done.stdout)
    assert (tmp_path / "predictions.csv").read_text().startswith("id,label,probability,runner_up,status\n")


@pytest.mark.long
def test_the_python_of_the_readme_runs(capsys):
    (source,) = blocks("python")
    names = {}
    exec(compile(source, "README.md", "exec"), names)
    assert float(capsys.readouterr().out) > 0.9  # digits; LPA and MLP reach 0.95 and more
    assert list(names["table"].columns) == ["id", "label", "probability", "runner_up", "status"]
