"""`gcn-lpa bench epochs` as a script: python benchmarks/epoch.py --out benchmarks/results/epoch.json"""

import sys

from gcn_lpa.cli import main

sys.argv[1:1] = ["bench", "epochs"]
sys.exit(main())
