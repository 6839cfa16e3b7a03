"""`gcn-lpa bench epochs` as a script: python benchmarks/epoch.py --out benchmarks/results/epoch.json"""

import sys

from gcn_lpa.cli.app import main

sys.argv[1:1] = ["bench", "epochs"]
sys.exit(main())
