"""The compiled library: where it is, what its functions take, and how its codes become errors."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_long, c_size_t, c_void_p

from mtrun.kernels.built import built_file

LIBRARY_NAMES = ("libmtrun_native.so", "libmtrun_native.dylib")
VERSION = 1  # of the C interface; the library says its own

_MESSAGES = {
    1: "the KV cache could not grow: memory is out",
    2: "the position lies beyond the pack's context limit",
    3: "a row of logits holds NaN or infinity, or no finite value at all",
    4: "a token id lies outside the vocabulary",
    5: "the cache belongs to another stack of layers",
}


class NativeError(RuntimeError):
    """The native library is absent, of another version, or refused a call; the message says which."""


class Stored(ctypes.Structure):
    """`struct Stored` of matrix.h: a matrix as MLX stores it."""

    _fields_ = (
        ("bits", c_int),
        ("group", c_int),
        ("outputs", c_int),
        ("inputs", c_int),
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("biases", c_void_p),
        ("source", c_int),
        ("rows", c_void_p),
        ("row_count", c_int),
    )


class Shape(ctypes.Structure):
    """`struct Shape` of stack.h: the sizes of a decoder layer."""

    _fields_ = (
        ("hidden", c_int),
        ("feed_forward", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("head_dim", c_int),
        ("eps", c_float),
        ("rope_traditional", c_int),
        ("positions", c_int),
    )


class Filter(ctypes.Structure):
    """`struct Filter` of rows.h: what a request does to a row."""

    _fields_ = (("temperature", c_float), ("top_p", c_float), ("min_p", c_float), ("top_k", c_int))


class Cycle(ctypes.Structure):
    """`struct Cycle` of judge.h: what a cycle is decided from."""

    _fields_ = (
        ("depth", c_int),
        ("target_ids", c_void_p),
        ("target_probs", c_void_p),
        ("target_width", c_int),
        ("draft_ids", c_void_p),
        ("draft_probs", c_void_p),
        ("draft_width", c_int),
        ("drafts", c_void_p),
        ("coins", c_void_p),
        ("residual", c_double),
        ("bonus", c_double),
        ("law", c_int),
        ("knob", c_double),
        ("eps", c_double),
    )


class Decided(ctypes.Structure):
    """`struct Decided` of judge.h: the outcome."""

    _fields_ = (
        ("kept", c_int32),
        ("token", c_int32),
        ("deferred", c_void_p),
        ("divergence", c_void_p),
        ("mass", c_void_p),
    )


_SIGNATURES = {
    "mtrun_native_isa": (c_char_p, (c_char_p,)),
    "mtrun_native_refuse": (c_char_p, (POINTER(Stored), c_int)),
    "mtrun_native_packed_bytes": (c_size_t, (POINTER(Stored), c_int)),
    "mtrun_engine_new": (c_void_p, (c_char_p, c_int, c_size_t, c_int)),
    "mtrun_engine_free": (None, (c_void_p,)),
    "mtrun_engine_add": (c_int, (c_void_p, POINTER(Stored), c_int)),
    "mtrun_engine_set_threads": (None, (c_void_p, c_int)),
    "mtrun_engine_set_activation": (None, (c_void_p, c_int)),
    "mtrun_engine_outputs": (c_int, (c_void_p, c_int)),
    "mtrun_engine_arena": (None, (c_void_p, POINTER(c_size_t), POINTER(c_size_t), POINTER(c_size_t))),
    "mtrun_engine_multiply": (None, (c_void_p, c_int, c_void_p, c_int, c_void_p)),
    "mtrun_engine_row": (None, (c_void_p, c_int, c_int, c_void_p)),
    "mtrun_stack_new": (c_void_p, (c_void_p, POINTER(Shape), c_void_p, c_void_p)),
    "mtrun_stack_free": (None, (c_void_p,)),
    "mtrun_stack_add": (None, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "mtrun_kv_new": (c_void_p, (c_void_p,)),
    "mtrun_kv_free": (None, (c_void_p,)),
    "mtrun_kv_length": (c_int, (c_void_p,)),
    "mtrun_kv_trim": (c_int, (c_void_p, c_int)),
    "mtrun_kv_bytes": (c_size_t, (c_void_p,)),
    "mtrun_trunk_new": (c_void_p, (c_void_p, c_int, c_int, c_int, c_void_p)),
    "mtrun_trunk_free": (None, (c_void_p,)),
    "mtrun_trunk_forward": (c_int, (c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p)),
    "mtrun_trunk_set_projection": (None, (c_void_p, c_int)),
    "mtrun_trunk_embed": (c_int, (c_void_p, c_void_p, c_int, c_void_p)),
    "mtrun_head_new": (c_void_p, (c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p)),
    "mtrun_head_free": (None, (c_void_p,)),
    "mtrun_head_forward": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p)),
    "mtrun_head_draft": (
        c_int,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_int, c_int, POINTER(Filter), c_void_p, c_int)
        + (c_void_p,) * 3,
    ),
    "mtrun_rows_new": (c_void_p, (c_char_p,)),
    "mtrun_rows_free": (None, (c_void_p,)),
    "mtrun_rows_filter": (
        c_int,
        (c_void_p, c_void_p, c_int, c_long, c_int, POINTER(Filter), c_int, c_void_p, c_void_p),
    ),
    "mtrun_judge_new": (c_void_p, ()),
    "mtrun_judge_free": (None, (c_void_p,)),
    "mtrun_judge_decide": (None, (c_void_p, POINTER(Cycle), POINTER(Decided))),
    "mtrun_rows_draw": (c_int, (c_void_p, c_int, c_double)),
}  # fmt: skip


def library_path() -> str | None:
    """The built library, None where the install had no C++ compiler."""
    import mtrun.kernels.native as package

    return built_file(package.__path__, LIBRARY_NAMES)


def open_library(path: str | None = None) -> ctypes.CDLL:
    """The library with its functions typed. Raises NativeError when it is absent, unreadable or of another version."""
    found = library_path() if path is None else path
    if found is None:
        raise NativeError(
            "the native library was not built with this install: reinstall where a C++ compiler is present"
        )
    try:
        library = ctypes.CDLL(found)
        version = library.mtrun_native_version
    except (OSError, AttributeError) as error:
        raise NativeError(f"the native library cannot be used ({error}): install mtrun again") from error
    version.restype, version.argtypes = c_int, ()
    if version() != VERSION:
        raise NativeError(f"the native library speaks interface {version()}, not {VERSION}: install mtrun again")
    try:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise NativeError(f"the native library lacks a function ({error}): install mtrun again") from error
    return library


def instruction_set(library: ctypes.CDLL, name: str = "auto") -> str | None:
    """The instruction set that `name` stands for on this processor ("auto": the best), None when it cannot run."""
    found = library.mtrun_native_isa(name.encode())
    return None if found is None else found.decode()


def native_isa() -> str | None:
    """The best instruction set that the built library has for this processor, None where there is no usable library."""
    try:
        return instruction_set(open_library())
    except NativeError:
        return None


def check(code: int) -> None:
    """Raises NativeError for the code of a failed call."""
    if code != 0:
        raise NativeError(_MESSAGES.get(code, f"the native library failed with code {code}"))


def pointer(array: object) -> int:
    """The address of a C-contiguous NumPy array's first element."""
    return array.ctypes.data  # type: ignore[attr-defined]
