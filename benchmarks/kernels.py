"""`gcn-lpa bench kernels` as a script: python benchmarks/kernels.py --out benchmarks/results/kernels.json"""

import sys

from gcn_lpa.cli.app import main

sys.argv[1:1] = ["bench", "kernels"]
sys.exit(main())
