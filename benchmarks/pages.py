"""Write every generated block of README.md and docs/: numbers from the results, reference from the code.

    python benchmarks/pages.py

A block stands between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end -->`. NAME is a function of `blocks.py`,
`study_blocks.py` or `reference_blocks.py`, which says what the arguments are. `tests/test_pages.py` fails where a block is not
what this command writes.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks import reference_blocks, study_blocks  # noqa: F401  each adds its blocks
from benchmarks.blocks import BLOCKS

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
BLOCK = re.compile(r"(<!-- generated: (\w+)(?: ([^\n]*?))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(text: str, root: Path = ROOT) -> str:
    """A page with every block as the results in `root`, and the code, have it."""

    def block(mark: re.Match[str]) -> str:
        start, name, arguments, _, end = mark.groups()
        if name not in BLOCKS:
            raise ValueError(f"{start.strip()}: there are {', '.join(BLOCKS)}")
        lines = BLOCKS[name](root, *split(arguments))
        return start + "\n".join([*lines, end])

    return BLOCK.sub(block, text)


def split(arguments: str | None) -> Iterator[str]:
    """`table2.md | 1 | gcn; gcn, tuned` has three arguments, the last a list."""
    return (one.strip() for one in arguments.split("|")) if arguments else iter(())


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
