"""One setting of every law, mild enough that a toy model sees keeps and rejections under each."""

from __future__ import annotations

from mtrun.runtime.acceptance.table import build_law

LAWS = {
    "exact": build_law("exact"),
    "opt": build_law("cascade", rule="opt", alpha=0.4),
    "tokenv1": build_law("cascade", rule="tokenv1", alpha=0.2),
    "tokenv2": build_law("cascade", rule="tokenv2", alpha=0.2),
    "tokenv3": build_law("cascade", rule="tokenv3", alpha=0.6),
    "typical": build_law("typical", threshold=0.5),
    "typical-pi": build_law("typical-pi", threshold=0.5),
    "synthetic": build_law("synthetic", rate=0.6),
}
