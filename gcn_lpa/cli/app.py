"""The command line. Each command is a few lines over a function anyone can call from Python.

Results go to stdout, as text or with --json; everything else to stderr. Exit codes: 0 done, 1 it failed (one line says
why), 2 mistyped, 130 interrupted. torch and its like are imported inside the commands, so that --help is quick.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from gcn_lpa.cli import data, models, parts, questions  # noqa: F401  each adds its commands to `app`, in the order of --help
from gcn_lpa.cli.options import MANNERS, app


def main() -> int:
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows a ? instead of failing
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if "RANK" in os.environ:  # of torchrun: we say ourselves who got no answer
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    _refuse_passwords(sys.argv[1:])
    gc.disable()  # until torch is imported
    try:
        app()
    except KeyboardInterrupt:
        return 130
    finally:
        if "duckdb" not in sys.modules:  # which complains of what is not collected at the end
            gc.freeze()  # what is left ends with the process: Python's last collection need not walk through all of it
    return 0


def _refuse_passwords(words: list[str]) -> None:
    """End before an error could repeat the password of a database."""
    if any("://" in word or "duckdb:" in word for word in words):
        from gcn_lpa.data.checks import refuse_password

        try:
            for word in words:
                refuse_password(word)
        except ValueError as error:
            print(f"gcn-lpa: {error}", file=sys.stderr)
            sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gcn_lpa import __version__

        print(f"gcn-lpa {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Suppress progress and warnings.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="The traceback of an error, to report it.")] = False,
) -> None:
    MANNERS.quiet, MANNERS.debug = quiet, debug


if __name__ == "__main__":
    sys.exit(main())
