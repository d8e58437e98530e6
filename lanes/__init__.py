"""Optimizations, one a file behind one contract (`contract.py`), listed in `catalogue.py`."""
