"""`python -m reproduction bench kernels` as a script: python benchmarks/kernels.py --out benchmarks/results/kernels.json"""

import sys

from reproduction.commands import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "kernels"]
    sys.exit(main())
