"""Decoding and prefill of one model in several runtimes, in turn, in one run: `python -m benchmarks.peers`."""
