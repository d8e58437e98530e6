"""Receipts of measurements, read back: shown, compared, verified and replayed."""
