"""Quality measurements: answers to task sets, texts read by the target, and comparisons of two runs."""
