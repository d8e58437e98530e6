"""What has to be settled in the process before MLX is imported, so that training uses two cores well."""

from __future__ import annotations

import os

from mtrun.lanes.contract import Decision


def settle() -> Decision:
    """Binds the optimized BLAS, one thread a stream, and lets MLX schedule two streams side by side.

    MLX walks a graph wider than 20 depth first, which would run the streams one after the other.
    """
    from mtrun.kernels.blas.forwarder import BindError, bind

    os.putenv("MLX_BFS_MAX_WIDTH", "200")
    try:
        bound = bind(1)
    except BindError as error:
        return Decision(False, "not_bound", str(error))
    return Decision(True, "bound", f"products run in {bound.target}.")
