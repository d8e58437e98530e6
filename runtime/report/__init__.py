"""Reports from receipts: tables, charts, a page and a manifest that are computed, never typed."""
