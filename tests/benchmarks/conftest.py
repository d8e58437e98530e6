"""The benchmarks are no part of the wheel: they are found in the checkout, behind everything that is installed."""

import sys
from pathlib import Path

CHECKOUT = str(Path(__file__).resolve().parents[2])
if CHECKOUT not in sys.path:
    sys.path.append(CHECKOUT)
