"""The lanes that exist, in the order reports show them. Adding one is a file `lanes/NAME.py` and a line here."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from mtrun.lanes.contract import LaneSpec

LANE_NAMES = (
    "cpu_blas",
    "cpu_layer",
    "cpu_int8",
    "cpu_head_q4",
    "cpu_qmm",
    "fixed_verify",
    "frspec",
    "draft_prescatter",
    "draft_chain",
    "row_kernel",
    "block_verify",
    "kv_q8",
    "batched_target_rows",
    "judge_kernel",
    "cost_depth",
    "context_copy",
)


def load(names: Iterable[str] = LANE_NAMES) -> dict[str, LaneSpec]:
    """Every lane by name, in catalogue order. Imports the lane modules, none of which may import mlx at import time.

    Raises ImportError: a listed module is missing, fails to import, or does not export a `LANE` of its own name.
    """
    return {name: _load_one(name) for name in names}


def _load_one(name: str) -> LaneSpec:
    module_name = f"mtrun.lanes.{name}"
    try:
        lane = import_module(module_name).LANE
    except ImportError as error:
        raise ImportError(f"the lane catalogue lists {name}, but {module_name} cannot be imported: {error}") from error
    except AttributeError as error:
        raise ImportError(f"the lane catalogue lists {name}, but {module_name} exports no LANE: {error}") from error
    if lane.name != name:
        raise ImportError(f"the lane catalogue lists {name}, but {module_name} calls its lane {lane.name}")
    return lane
