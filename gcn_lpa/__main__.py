"""`python -m gcn_lpa` is the command `gcn-lpa`."""

import sys

from gcn_lpa.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
