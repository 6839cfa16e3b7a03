"""run.py without its commands: what it would run, in which order, and what it leaves behind when it is stopped."""

import ast
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import run
from tests.helpers import chromium

RUN_PY = Path(run.__file__)
ANEW = ["venv", "pip", "first use"]  # the commands of a whole install


class Commands:
    """Stands in for `run.run`: keeps what was asked for and answers with the exit code prepared for it."""

    def __init__(self, **codes):
        self.codes, self.asked, self.options, self.says = codes, [], {}, {}

    def __call__(self, command, *, cwd, **options):
        name = "first use" if command[2] == run.FIRST_USE else command[2]  # python -m NAME
        self.asked.append([name, *command[3:]])
        self.options[name] = options
        if name == "venv":
            python = run.venv_python(Path(command[-1]).parent)
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        if name in self.says:
            options["stdout"].write(self.says[name].encode())
        code = self.codes.get(name, 0)
        if isinstance(code, type):
            raise code
        return code

    @property
    def names(self):
        return [name for name, *_ in self.asked]


@pytest.fixture
def clone(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    return tmp_path


def test_the_second_call_installs_nothing(clone):
    commands = Commands()
    assert run.main(["demo"], clone, commands) == 0
    assert run.main(["demo"], clone, commands) == 0
    assert commands.names == [*ANEW, "gcn_lpa", "gcn_lpa"]
    pip = "pip --disable-pip-version-check install --no-compile -c constraints.txt -e .[all,test]"
    assert commands.asked[1] == pip.split()


def test_reproduce_is_the_study_beside_the_package(clone):
    commands = Commands(reproduction=3)
    assert run.main(["reproduce", "table2", "--splits", "3"], clone, commands) == 3
    assert commands.names == [*ANEW, "reproduction"]
    assert commands.asked[-1] == ["reproduction", "table2", "--splits", "3"]
    assert commands.options["reproduction"] == {}  # in the folder of run.py, where the package is


def test_docs_installs_its_tool_once(clone):
    commands = Commands(**{"import myst_parser, sphinx": 1})
    assert run.main(["docs"], clone, commands) == 0
    assert commands.names == [*ANEW, "import myst_parser, sphinx", "pip", "sphinx"]
    assert commands.asked[-2][-1] == ".[docs]"
    there = Commands()
    assert run.main(["docs"], clone, there) == 0
    assert there.names == ["import myst_parser, sphinx", "sphinx"]
    assert run.main(["docs"], clone, Commands(sphinx=3)) == 3
    assert run.main(["docs", "x"], clone, there) == 2


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_updates_the_environment_in_place(clone, name):
    run.install(clone, Commands())
    (clone / name).write_text("changed")
    commands = Commands()
    run.install(clone, commands)
    assert commands.names == ["pip", "first use"]


def test_the_stamp_tells_apart_what_moved_between_the_two_files(clone):
    before = run.stamp(clone)
    (clone / "pyproject.toml").write_text("")
    (clone / "constraints.txt").write_text("[project]\ntorch==2.13.0\n")
    assert run.stamp(clone) != before


def test_another_python_makes_the_environment_anew(clone, monkeypatch):
    run.install(clone, Commands())
    monkeypatch.setattr(run.platform, "python_version", lambda: "3.99.0")
    commands = Commands()
    run.install(clone, commands)
    assert commands.names == ANEW


def test_a_copied_environment_is_made_anew(clone, tmp_path_factory):
    run.install(clone, Commands())
    copy = clone.rename(tmp_path_factory.mktemp("elsewhere") / "clone")
    commands = Commands()
    run.install(copy, commands)
    assert commands.names == ANEW


@pytest.mark.parametrize("stopped_at", ANEW)
def test_an_interrupted_first_install_is_made_anew(clone, stopped_at):
    with pytest.raises(KeyboardInterrupt):
        run.install(clone, Commands(**{stopped_at: KeyboardInterrupt}))
    commands = Commands()
    assert run.install(clone, commands) == 0
    assert commands.names == ANEW


def test_an_interrupted_update_is_made_anew(clone):
    run.install(clone, Commands())
    (clone / "pyproject.toml").write_text("changed")
    with pytest.raises(KeyboardInterrupt):
        run.install(clone, Commands(pip=KeyboardInterrupt))
    commands = Commands()
    assert run.install(clone, commands) == 0
    assert commands.names == ANEW


def test_a_failed_install_passes_its_code_on_and_is_made_anew(clone, capsys):
    commands = Commands(pip=3)
    assert run.main(["test"], clone, commands) == 3
    assert commands.names == ["venv", "pip"]
    assert "pip install failed with exit code 3" in capsys.readouterr().err
    commands = Commands()
    assert run.main(["test"], clone, commands) == 0
    assert commands.names == [*ANEW, "pytest"]


def test_what_pip_says_is_in_a_log_and_its_end_is_shown_on_failure(clone, capfd):
    commands = Commands(pip=1)
    commands.says["pip"] = "".join(f"line {k}\n   ━━━━\n" for k in range(30))
    assert run.install(clone, commands) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[1:-1] == [f"line {k}" for k in range(10, 30)]
    assert (clone / ".venv" / "install.log").read_text() == commands.says["pip"]
    assert run.install(clone, Commands()) == 0
    assert len(capfd.readouterr().err.splitlines()) == 2  # that it begins, and how long it took
    assert (clone / ".venv" / "install.log").read_text() == ""


def test_a_terminal_sees_one_line_that_says_what_is_done_for_how_long(tmp_path, monkeypatch):
    has_told = threading.Event()

    class Terminal(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            has_told.set()
            return super().write(text)

    log, terminal = tmp_path / "log", Terminal()
    log.write_text("Collecting numpy>=2.0 (from gcn-lpa==0.1.0)\n   ━━━━\n")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    with run.progress("pip install", log):
        assert has_told.wait(30)
    first, *_, blank, last = terminal.getvalue().split("\r")[1:]
    assert re.fullmatch(r"run.py: pip install, \d+ s: Collecting numpy>=2.0 +", first)
    assert (len(first), blank.strip(), last) == (59, "", "")
    assert "\n" not in terminal.getvalue()


@pytest.mark.parametrize("value", ["1", None])
def test_modules_are_compiled_even_where_the_shell_asks_for_none(clone, monkeypatch, value):
    """PYTHONDONTWRITEBYTECODE would make every later start compile torch again."""
    if value is None:
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    else:
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", value)
    commands = Commands()
    run.install(clone, commands)
    given = commands.options["first use"]["env"]
    (clone / "module.py").write_text("x = 1\n")
    subprocess.run([sys.executable, "-c", "import module"], cwd=clone, env=given, check=True)
    assert len([*(clone / "__pycache__").glob("module.*.pyc")]) == 1


@pytest.mark.long
def test_the_first_use_runs_in_this_environment():
    done = subprocess.run([sys.executable, "-c", run.FIRST_USE], cwd=RUN_PY.parent, capture_output=True, text=True)
    assert done.stdout.startswith("karate: 34 nodes"), done.stderr


def test_a_deleted_interpreter_makes_the_environment_anew(clone):
    run.install(clone, Commands())
    run.venv_python(clone).unlink()
    commands = Commands()
    run.install(clone, commands)
    assert commands.names == ANEW


def test_arguments_after_test_go_to_pytest(clone):
    commands = Commands(pytest=5)
    assert run.main(["test", "tests/test_run.py", "-k", "a or b"], clone, commands) == 5
    assert commands.asked[-1] == ["pytest", "tests/test_run.py", "-k", "a or b"]
    run.main(["test"], clone, commands)
    assert commands.asked[-1] == ["pytest", "-n", "2", "--dist", "loadfile"]  # all of them, in two processes


def test_check_is_style_types_and_the_fast_tests_in_two_halves(clone):
    (clone / "tests" / "room").mkdir(parents=True)
    for name in ("room/test_a.py", "test_a.py", "test_b.py"):
        (clone / "tests" / name).touch()
    commands = Commands()
    assert run.main(["check"], clone, commands) == 0
    assert commands.names[:5] == [*ANEW, "ruff", "ruff"]
    fast = ["pytest", "-m", "not slow and not long", "--hypothesis-profile=quick"]
    assert sorted(commands.asked[5:]) == [
        ["mypy", "--strict", "gcn_lpa", "reproduction", "run.py"],
        [*fast, "tests/room/test_a.py", "tests/test_b.py"],
        [*fast, "tests/test_a.py"],
    ]


def test_check_without_tests_is_style_and_types(clone):
    commands = Commands()
    assert run.main(["check", "--no-tests"], clone, commands) == 0
    assert commands.names == [*ANEW, "ruff", "ruff", "mypy"]
    assert run.main(["check", "--no-tests"], clone, Commands(mypy=1)) == 1
    assert run.main(["check", "--no-tests"], clone, Commands(ruff=1)) == 1


def test_check_fails_with_any_of_its_parts(clone):
    commands = Commands(ruff=1)
    assert run.main(["check"], clone, commands) == 1
    assert commands.names == [*ANEW, "ruff"]
    assert run.main(["check"], clone, Commands(mypy=1)) == 1
    assert run.main(["check"], clone, Commands(pytest=3)) == 3


def test_check_prints_what_was_said_beside_the_tests_below_them(clone, capfd):
    run.install(clone, Commands())

    def call(command, *, cwd, **options):
        words = f"{command[2]} speaks"
        return run.run([sys.executable, "-c", f"print({words!r})"], **options)

    assert run.main(["check"], clone, call) == 0
    assert capfd.readouterr().out.splitlines()[2:] == ["pytest speaks", "pytest speaks", "mypy speaks"]


@pytest.mark.parametrize("argv", [[], ["tests"], ["--slow"], ["check", "-k", "x"]])
def test_a_mistyped_command_shows_the_usage_and_installs_nothing(clone, argv, capsys):
    commands = Commands()
    assert run.main(argv, clone, commands) == 2
    assert run.USAGE in capsys.readouterr().err
    assert commands.asked == []


REPORT = """<testsuites><testsuite time="1.26">
<testcase classname="t.test_a" name="passes"/>
<testcase classname="t.test_a" name="logs"><system-out>text</system-out></testcase>
<testcase classname="t.test_a" name="fails"><failure message="1 != 2"/></testcase>
<testcase classname="t.test_b" name="skips"><skipped message="no Chromium"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(("code", "rest", "recorded"), [(1, [], True), (2, [], False), (1, ["-k", "x"], False)])
def test_a_complete_slow_run_is_recorded(clone, monkeypatch, code, rest, recorded):
    monkeypatch.setattr(run, "circumstances", lambda python, root: {"commit": "abc"})

    def call(command, *, cwd, **options):
        for word in command:
            if word.startswith("--junitxml="):
                Path(word.removeprefix("--junitxml=")).write_text(REPORT)
        return code if "pytest" in command else Commands()(command, cwd=cwd)

    assert run.main(["test", *rest, "--slow"], clone, call) == code
    record = clone / "benchmarks/results/slow-tests.json"
    assert record.exists() == recorded
    if recorded:
        outcome = json.loads(record.read_text())
        skipped = outcome.pop("not_passed")[1]
        assert outcome == {"passed": 2, "failure": 1, "error": 0, "skipped": 1, "seconds": 1.3, "commit": "abc"}
        assert skipped == {"test": "t.test_b::skips", "outcome": "skipped", "why": "no Chromium"}


def test_a_slow_record_names_versions_and_machine():
    found = run.circumstances(sys.executable, RUN_PY.parent)
    assert found["versions"]["pytest"] == pytest.__version__
    assert found["cpus"] == os.cpu_count()


HOLD = """
import pathlib, run, sys
with run.lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], cwd=RUN_PY.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    return holder


@pytest.mark.parametrize("killed", [False, True])
def test_the_lock_keeps_a_second_process_out_until_the_first_ends(tmp_path, killed):
    path = tmp_path / "lock"
    with hold(path) as first, open(path, "a") as file:
        assert not run.try_lock(file.fileno())
        if killed:
            first.kill()
        first.communicate()
        assert run.try_lock(file.fileno())


def test_a_second_first_run_says_that_it_waits_and_then_installs_nothing(clone, monkeypatch, capsys):
    with hold(clone / ".venv.lock") as first:

        def the_first_one_finishes(seconds):
            Commands()(["python", "-m", "venv", clone / ".venv"], cwd=clone)
            run.stamp_file(clone).write_text(run.stamp(clone))
            first.communicate()

        monkeypatch.setattr(run.time, "sleep", the_first_one_finishes)
        commands = Commands()
        assert run.install(clone, commands) == 0
    assert commands.asked == []
    assert "waiting for it" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no exit by signal")
def test_exit_codes_pass_through(code, expected):
    assert run.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL) == expected


def test_an_old_python_gets_one_sentence():
    ast.parse(RUN_PY.read_text(encoding="utf-8"), feature_version=(3, 7))  # else it would get a SyntaxError
    pretend = f"import sys, runpy; sys.version_info = (3, 10); runpy.run_path({str(RUN_PY)!r}, run_name='__main__')"
    old = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert old.returncode == 1
    assert old.stdout == ""
    assert old.stderr.startswith("run.py: gcn-lpa needs Python 3.11 or newer; this is ")
    assert old.stderr.count("\n") == 1


@pytest.mark.parametrize("rest", [[], ["-k", "page"]])
def test_slow_tests_need_a_browser(clone, rest):
    commands = Commands(pytest=3)
    assert run.main(["test", "--slow", *rest], clone, commands) == 3
    assert commands.options["pytest"]["env"]["GCN_LPA_BROWSER"] == "required"
    run.main(["test", *rest], clone, commands)
    assert "env" not in commands.options["pytest"]


@pytest.mark.long
def test_the_page_without_a_browser_is_skipped_and_fails_where_it_is_required(monkeypatch):
    monkeypatch.setattr(chromium, "CHROMIUM", None)
    monkeypatch.delenv("GCN_LPA_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs chromium and chromium-driver"):
        chromium.check_chromium()
    monkeypatch.setenv("GCN_LPA_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="needs chromium and chromium-driver"):
        chromium.check_chromium()
