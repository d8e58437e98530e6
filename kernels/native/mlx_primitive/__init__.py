"""The native library's packed matrices inside MLX's lazy graph: a compiled extension, absent where it was not built.

`extension.py` finds and checks it, `matrices.py` packs weights and multiplies by them, `modules.py` puts them in the
place of a model's own linear modules. The reference is MLX's own product of the same weights.
"""
