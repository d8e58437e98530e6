"""Hydra configuration files: data only, no code."""
