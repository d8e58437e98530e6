"""llama.cpp through llama-cpp-python's C bindings, called directly: no sampler, the argmax of each row in numpy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.base import AbsentError, Reply, Stopwatch, row_figures

SEQUENCE = 0
FORMATS = {"q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0"}  # what can be made of the published file


class Peer:
    """Implements `base.Runtime`.

    Settings: `gguf`, the published file; `format`, None for that file itself or a key of FORMATS for one requantised
    from it by llama.cpp's own quantiser and kept beside it.
    """

    def __init__(self) -> None:
        self.c: Any = None  # the module of the C API

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """See `base.Runtime`."""
        try:
            import llama_cpp
            import numpy  # noqa: F401
        except ImportError as error:
            raise AbsentError(f"llama-cpp-python is absent ({error}): name an interpreter that has it") from error
        self.c = llama_cpp
        # llama.cpp calls this for every line it would log; the object must outlive the library's use of it.
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._silence, None)
        llama_cpp.llama_backend_init()
        path = Path(settings["gguf"])
        if settings["format"] is not None:
            path = self._requantised(path, settings["format"])
        self._load(path, settings["threads"], settings["context"])
        source = "as published" if settings["format"] is None else f"requantised from {Path(settings['gguf']).name}"
        return {
            "what": f"llama.cpp C API on {path.name} ({source}), greedy by numpy argmax",
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "threads": settings["threads"],
            "busy_threads": settings["threads"],  # its threads spin through a forward
            "file_bytes": path.stat().st_size,
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def _requantised(self, source: Path, name: str) -> Path:
        c = self.c
        target = source.with_name(f"{source.name.removesuffix('.gguf').rpartition('.')[0] or source.stem}.{name}.gguf")
        if target.is_file():
            return target
        params = c.llama_model_quantize_default_params()
        params.ftype = getattr(c, FORMATS[name])
        params.allow_requantize = True
        staged = target.with_name(f".{target.name}.{os.getpid()}")
        code = c.llama_model_quantize(str(source).encode(), str(staged).encode(), params)
        if code:
            staged.unlink(missing_ok=True)
            raise AbsentError(f"llama.cpp could not make {name} of {source.name} (code {code})")
        staged.replace(target)
        return target

    def _load(self, path: Path, threads: int, context: int) -> None:
        c = self.c
        model_params = c.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = c.llama_model_load_from_file(str(path).encode(), model_params)
        if not self.model:
            raise AbsentError(f"llama.cpp cannot read {path}")
        params = c.llama_context_default_params()
        params.n_ctx = max(256, -(-context // 256) * 256)
        params.n_batch = params.n_ubatch = min(params.n_ctx, max(512, context))
        params.n_threads = params.n_threads_batch = threads
        self.context = c.llama_init_from_model(self.model, params)
        if not self.context:
            raise AbsentError(f"llama.cpp cannot make a context of {params.n_ctx} tokens")
        self.memory = c.llama_get_memory(self.context)
        self.vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.batch = c.llama_batch_init(params.n_batch, 0, 1)

    def _feed(self, ids: Sequence[int], position: int, all_rows: bool) -> None:
        """One forward, waited for; logits of every row or of the last one."""
        c, batch = self.c, self.batch
        batch.n_tokens = len(ids)
        for row, token in enumerate(ids):
            batch.token[row], batch.pos[row] = token, position + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, SEQUENCE
            batch.logits[row] = all_rows or row == len(ids) - 1
        code = c.llama_decode(self.context, batch)
        if code:
            raise RuntimeError(f"llama_decode answered {code}")
        c.llama_synchronize(self.context)

    def _best(self) -> int:
        """The argmax of the last row's logits."""
        import numpy as np

        row = self.c.llama_get_logits_ith(self.context, -1)
        return int(np.argmax(np.ctypeslib.as_array(row, shape=(self.vocabulary,))))

    def _read(self, ids: Sequence[int]) -> int:
        """Reads a text from nothing; the first token after it."""
        self.c.llama_memory_clear(self.memory, True)
        self._feed(ids, 0, all_rows=False)
        return self._best()

    def prefill(self, ids: Sequence[int]) -> Reply:
        """See `base.Runtime`."""
        watch = Stopwatch()
        self._read(ids)
        return {"figures": {"prefill": watch.figure(len(ids))}}

    def decode(self, ids: Sequence[int], tokens: int, seed: int) -> Reply:
        """See `base.Runtime`; the seed is not used."""
        made = [self._read(ids)]
        watch = Stopwatch()
        for step in range(tokens - 1):
            self._feed(made[-1:], len(ids) + step, all_rows=False)
            made.append(self._best())
        return {"figures": {"decode": watch.figure(tokens - 1)}, "ids": made}

    def rows(self, ids: Sequence[int], widths: Sequence[int], repeats: int) -> Reply:
        """See `base.Runtime`."""
        start = len(ids)
        self._read(ids)

        def drop(width: int) -> None:
            self.c.llama_memory_seq_rm(self.memory, SEQUENCE, start, -1)

        def forward(width: int) -> None:
            self._feed(ids[:width], start, all_rows=True)

        return {"figures": row_figures(forward, drop, widths, repeats)}

    def close(self) -> None:
        """See `base.Runtime`."""
        if self.c is not None:
            self.c.llama_batch_free(self.batch)
            self.c.llama_free(self.context)
            self.c.llama_model_free(self.model)
        self.c = None
