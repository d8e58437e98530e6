"""Native kernels for CPU decoding: a plain C library in `src`, called through ctypes, absent where none was built.

The library knows neither MLX nor Python: it takes weights once as buffers and returns rows, so that no ABI of either
ties it to a version. `library.py` finds and types it, `engine.py` holds weights, `llama.py` is a trunk and its MTP
head, `rows.py` the filter of rows. The reference of each is MLX's own path (`kernels/rows.py`, `runtime/packs`).
"""
