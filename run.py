"""From a clone to a result in one command. Needs Python 3.11 or newer and pip, nothing else.

    python3 run.py demo            the main job on data that ships with a dependency
    python3 run.py reproduce PART  a table, figure or claim of the paper; `reproduce --help` lists them
    python3 run.py test [ARGS]     the tests, under 7 minutes; ARGS go to pytest
    python3 run.py test --slow     every test at full size; the outcome goes to benchmarks/results/slow-tests.json
    python3 run.py check           ruff, mypy --strict and the fast tests, under 1 minute; --no-tests: ruff and mypy alone
    python3 run.py docs            the documentation as a site in build/site

The first call makes .venv and installs the versions of constraints.txt into it, which takes 1 to 3 minutes; what pip says
goes to .venv/install.log. Later calls start at once.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

# The file parses on Python 3.7, so that this sentence is all that an older Python says.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"run.py: gcn-lpa needs Python 3.11 or newer; this is {platform.python_version()} ({sys.executable})")

ROOT = Path(__file__).resolve().parent
SIDE_BY_SIDE = ["-n", "2", "--dist", "loadfile"]  # two processes, each with whole files of tests
USAGE = "usage: python3 run.py demo | reproduce PART [options] | test [--slow] [pytest arguments] | check [--no-tests] | docs"
QUICK = ["--hypothesis-profile=quick"]  # fewer examples of each property
Call = Callable[..., int]

# Imports what the commands and the tests import, and runs the shortest command there is. Python keeps the compiled modules:
# 12 s, where pip or compileall would take 20 to 30 s to compile every file of every package.
FIRST_USE = """
import sys
import hypothesis, matplotlib.figure, networkx, pandas, pytest, rich.progress, rich.table
import scipy.stats, sklearn.linear_model, sklearn.neural_network, torch_geometric.nn
import gcn_lpa.engine.cpu_kernels, gcn_lpa.estimator, gcn_lpa.insight.explain, gcn_lpa.runs.predictions, gcn_lpa.runs.train_run
from gcn_lpa.cli.app import main
sys.argv[1:] = ["info", "karate"]
main()
"""


def main(argv: Sequence[str], root: Path = ROOT, call: Call | None = None) -> int:
    """Does what the command line asks and returns the exit code of the command that did the work."""
    call = call or run
    command, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if command in ("-h", "--help"):
        print(__doc__, end="")
        return 0
    may_follow: dict[str, list[list[str]]] = {"check": [[], ["--no-tests"]], "docs": [[]]}
    if command not in ("demo", "reproduce", "test", "check", "docs") or rest not in may_follow.get(command, [rest]):
        print(USAGE, file=sys.stderr)
        return 2
    code = install(root, call)
    if code:
        return code
    python = str(venv_python(root))
    if command == "demo":
        return call([python, "-m", "gcn_lpa", "demo", *rest], cwd=root)
    if command == "reproduce":
        return call([python, "-m", "reproduction", *rest], cwd=root)
    if command == "check":
        return check(python, root, call, tests=not rest)
    if command == "docs":
        return docs(python, root, call)
    if "--slow" in rest:
        rest.remove("--slow")
        return slow_tests(python, root, rest, call)
    return call([python, "-m", "pytest", *(rest or SIDE_BY_SIDE)], cwd=root)


def check(python: str, root: Path, call: Call, *, tests: bool) -> int:
    """Style; then the fast tests in two processes, and the types beside them: without a cache mypy takes half a minute."""
    for style in (["check", "."], ["format", "--check", "."]):
        say(" ".join(["ruff", *style]))
        code = call([python, "-m", "ruff", *style], cwd=root)
        if code:
            return code
    types = ["mypy", "--strict", "gcn_lpa", "reproduction", "run.py"]
    if not tests:
        say(" ".join(types))
        return call([python, "-m", *types], cwd=root)
    files = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))
    half, other = (["pytest", "-m", "not slow and not long", *QUICK, *files[k::2]] for k in (0, 1))
    say(f"pytest -m 'not slow and not long' {' '.join(QUICK)}, in two halves, and beside them {' '.join(types)}")
    with ThreadPoolExecutor(2) as beside, contextlib.ExitStack() as stack:
        others = []
        for command in (other, types):
            said = stack.enter_context(tempfile.TemporaryFile("w+"))
            others.append((beside.submit(call, [python, "-m", *command], cwd=root, stdout=said, stderr=subprocess.STDOUT), said))
        codes = [call([python, "-m", *half], cwd=root)]
        for done, said in others:
            codes.append(done.result())
            said.seek(0)
            print(said.read(), end="", flush=True)
    return next((code for code in codes if code), 0)


def docs(python: str, root: Path, call: Call) -> int:
    """Make the site. What only that needs is installed when it is first made."""
    if call([python, "-c", "import myst_parser, sphinx"], cwd=root, stderr=subprocess.DEVNULL):
        say("installing what makes the site")
        code = call([python, "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[docs]"], cwd=root)
        if code:
            return code
    options = ["-q", "-c", "docs", "-d", "build/doctrees", ".", "build/site"]
    code = call([python, "-m", "sphinx", *options], cwd=root)
    if not code:
        say(f"the site is {root / 'build' / 'site' / 'index.html'}")
    return code


def slow_tests(python: str, root: Path, rest: list[str], call: Call) -> int:
    """Every test; a complete run, passed or failed, is recorded, one narrowed by pytest arguments is not."""
    env = {**os.environ, "GCN_LPA_BROWSER": "required"}  # a test that needs Chromium fails without it
    if rest:
        return call([python, "-m", "pytest", "-m", "", *rest], cwd=root, env=env)
    record = root / "benchmarks" / "results" / "slow-tests.json"
    say(f"all tests at full size; the outcome goes to {record.relative_to(root)}")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        code = call([python, "-m", "pytest", "-m", "", f"--junitxml={report}"], cwd=root, env=env)
        if code in (0, 1):  # 0 all passed, 1 some failed; 2 to 5: pytest did not get through
            outcome = {**counts(report), **circumstances(python, root)}
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(outcome, indent=2) + "\n", encoding="utf-8")
    return code


def counts(report: Path) -> dict[str, Any]:
    """What a JUnit report of pytest says: how many passed, and every test that did not, with its reason."""
    suites = ElementTree.parse(report).getroot()
    cases = list(suites.iter("testcase"))
    kinds = ("failure", "error", "skipped")
    others = [
        {"test": f"{case.get('classname')}::{case.get('name')}", "outcome": mark.tag, "why": mark.get("message", "")}
        for case in cases
        for mark in case
        if mark.tag in kinds
    ]
    return {
        "passed": sum(all(mark.tag not in kinds for mark in case) for case in cases),
        **{kind: sum(other["outcome"] == kind for other in others) for kind in kinds},
        "seconds": round(sum(float(suite.get("time", 0)) for suite in suites.iter("testsuite")), 1),
        "not_passed": others,
    }


def circumstances(python: str, root: Path) -> dict[str, Any]:
    """The commit, the machine and the versions that a result belongs to."""
    versions = (
        "import json, importlib.metadata as m; "
        "print(json.dumps({d.name: d.version for d in sorted(m.distributions(), key=lambda d: d.name.lower())}))"
    )
    try:
        commit = output(["git", "describe", "--always", "--dirty", "--exclude=*"], root)
    except (OSError, subprocess.CalledProcessError):  # not a git checkout, or no git
        commit = "unknown"
    return {
        "commit": commit,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": json.loads(output([python, "-c", versions], root)),
    }


def install(root: Path, call: Call) -> int:
    """Makes .venv hold what pyproject.toml and constraints.txt ask for; returns 0, or the exit code of what failed.

    .venv/stamp is written last and removed first, so .venv without a stamp was interrupted and is made anew.
    """
    wanted = stamp(root)
    if installed(root) == wanted:
        return 0
    with lock(root / ".venv.lock") as held:
        found = installed(root)
        if found == wanted:  # done by the run we waited for
            return 0
        start = time.monotonic()
        options: dict[str, Any] = {"cwd": root}
        if sys.platform != "win32":
            options["pass_fds"] = (held,)  # pip that outlives us keeps the lock
        stamp_file(root).unlink(missing_ok=True)
        if found.splitlines()[:1] == wanted.splitlines()[:1]:
            say("pyproject.toml or constraints.txt has changed: bringing .venv up to date")
        else:
            say("making .venv and installing into it; this takes 1 to 3 minutes, once")
            code = call([sys.executable, "-m", "venv", "--clear", str(root / ".venv")], **options)
            if code:
                say(f"making .venv failed with exit code {code}; the lines above say why")
                return code
        python, log = str(venv_python(root)), root / ".venv" / "install.log"
        log.write_text("")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
        options["env"] = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        options["env"]["PYTHONUNBUFFERED"] = "1"  # the log is read while it is written
        for what, command in (
            ("pip install", [*pip, "-c", "constraints.txt", "-e", ".[all,test]"]),
            ("the first import", [python, "-c", FIRST_USE]),
        ):
            with open(log, "ab") as file, progress(what, log):
                code = call(command, stdout=file, stderr=subprocess.STDOUT, **options)
            if code:
                return failed(what, code, log)
        unfinished = stamp_file(root).with_suffix(".part")
        unfinished.write_text(wanted, encoding="utf-8")
        os.replace(unfinished, stamp_file(root))
        say(f"installed in {time.monotonic() - start:.0f} s")
    return 0


def stamp(root: Path) -> str:
    """Two lines: where .venv belongs (a copied one would import the other clone), and a hash of what is in it."""
    content = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        content.update(hashlib.sha256((root / name).read_bytes()).digest())
    return f"Python {platform.python_version()} in {root}\n{content.hexdigest()}\n"


def installed(root: Path) -> str:
    """The stamp of a complete .venv, or nothing."""
    if not venv_python(root).exists():
        return ""
    try:
        return stamp_file(root).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def stamp_file(root: Path) -> Path:
    return root / ".venv" / "stamp"


def venv_python(root: Path) -> Path:
    return root / ".venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


@contextlib.contextmanager
def lock(path: Path) -> Iterator[int]:
    """Holds `path` against other processes, waiting for them if need be; gives its file descriptor.

    The operating system releases the lock when its holder ends, however it ends.
    """
    with open(path, "a") as file:
        if not try_lock(file.fileno()):
            say("another run.py is installing here; waiting for it")
            while not try_lock(file.fileno()):
                time.sleep(0.2)
        yield file.fileno()


if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def run(command: Sequence[str], **options: Any) -> int:
    """Runs a command and returns its exit code as a shell would give it.

    Ctrl-C reaches the command too: the first is left to it, so that it can end in its own way; a second ends it.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.kill()
                code = process.wait()
    return code if code >= 0 else 128 - code


def output(command: Sequence[str], root: Path) -> str:
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def progress(what: str, log: Path) -> Iterator[None]:
    """Says on a terminal, in one line that is written over and over, what is being done, how long already, and the log's last
    line.
    """
    if not sys.stderr.isatty():
        yield
        return
    start, done = time.monotonic(), threading.Event()
    width = shutil.get_terminal_size().columns - 1

    def tell() -> None:
        while not done.wait(0.5):
            last = (last_lines(log, 1) or [""])[0].partition(" (from ")[0].strip()
            line = f"run.py: {what}, {time.monotonic() - start:.0f} s: {last}"
            print(f"\r{line[:width]:{width}}", end="", file=sys.stderr, flush=True)
        print(f"\r{'':{width}}\r", end="", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that hold a letter; pip also draws bars."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if any(map(str.isalpha, line))][-count:]


def failed(what: str, code: int, log: Path) -> int:
    print(*last_lines(log, 20), sep="\n", file=sys.stderr)
    say(f"{what} failed with exit code {code}; all it said is in {log}. The same command starts it again.")
    return code


def say(sentence: str) -> None:
    print(f"run.py: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say("interrupted; the same command starts again")
        sys.exit(130)
