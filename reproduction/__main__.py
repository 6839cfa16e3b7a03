"""`python -m reproduction` is the study of the paper."""

import sys

from reproduction.commands import main

if __name__ == "__main__":
    sys.exit(main())
