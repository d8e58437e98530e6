"""Which code a law and a lane are: digests of what Python runs, so that a reworded docstring is not other code.

A law is its module with the modules of `runtime.acceptance` and `kernels` that it imports, the contract and alignment
of laws, and the rows they judge. A lane is its module with the kernels that it imports anywhere, and the Metal and C
sources beside them; `lanes.contract` is left out, it holds no arithmetic. The native library has digests of its own.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.code import root

# Law -> the module of `runtime/acceptance` that holds it.
LAW_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "exact": "exact",
        "cascade": "cascade",
        "typical": "typical",
        "typical-pi": "typical",
        "synthetic": "synthetic",
    }
)
_SHARED = ("runtime.acceptance.law", "runtime.acceptance.align", "kernels.rows")  # what every law stands on
_CONTRACT = "lanes.contract"
_COMPILED = (".metal", ".c")  # sources beside a lane's kernels
_PLACES = frozenset({"lineno", "col_offset", "end_lineno", "end_col_offset", "ctx", "type_comment", "kind"})
_NATIVE = (".cpp", ".h", ".inl", ".txt")  # sources of the native library


def law_code(law: str, sources: Path | None = None) -> str:
    """Hex sha256 of a law's code by the law's name. `sources`: a folder that holds `runtime` and `kernels`, None =
    the one that runs. Raises ConfigurationError for a name that is no law's."""
    if law not in LAW_MODULES:
        raise ConfigurationError(f"there is no law {law!r}: name one of {', '.join(LAW_MODULES)}")
    starts = (f"runtime.acceptance.{LAW_MODULES[law]}", *_SHARED)
    return _digest(_closure(starts, ("runtime.acceptance.", "kernels."), sources or root()))


def lane_code(lane: str, sources: Path | None = None) -> str:
    """Hex sha256 of a lane's code by the lane's name. Raises ConfigurationError for a name that is no lane's."""
    folder = sources or root()
    if _file(f"lanes.{lane}", folder) is None:
        raise ConfigurationError(f"there is no lane {lane!r} in {folder / 'lanes'}: name one of the catalogue")
    return _digest(_closure((f"lanes.{lane}",), ("lanes.", "kernels."), folder))


def native_code() -> str | None:
    """Hex sha256 of the bytes of the built native library, None where none was built."""
    from mtrun.kernels.native.library import library_path

    found = library_path()
    return None if found is None else _file_digest(Path(found), *_stamp(Path(found)))


def native_sources() -> str | None:
    """Hex sha256 of the native library's sources, None in an install that has none of them."""
    return sources_digest(root() / "kernels" / "native")


def sources_digest(folder: Path) -> str | None:
    """Hex sha256 of the C++ sources and build file under a folder by relative name, None where there are none."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in _NATIVE)
    return _digest({str(path.relative_to(folder)): path for path in found}) if found else None


def _digest(files: Mapping[str, Path]) -> str:
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        stamp = _stamp(path)
        digest = _read(path, *stamp).sha256 if path.suffix == ".py" else _file_digest(path, *stamp)
        total.update(f"{name} {digest}\n".encode())
    return total.hexdigest()


def _closure(starts: Iterable[str], within: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Modules reached from `starts` through imports of modules `within`, and compiled sources beside them, by name."""
    found: dict[str, Path] = {}
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        path = _file(name, folder)
        if path is None or name in found:
            continue
        found[name] = path
        read = _read(path, *_stamp(path))
        if path.parent.parent == folder / "kernels":
            found |= _beside(path.parent, read.texts)
        waiting += [other for other in read.imports if other.startswith(within) and other != _CONTRACT]
    return found


def _beside(kernels: Path, texts: frozenset[str]) -> dict[str, Path]:
    """Sources beside a kernel that no import reaches: Metal ones, which it names without their ending, and C."""
    near = (path for path in kernels.iterdir() if path.suffix in _COMPILED)
    return {f"{kernels.name}/{path.name}": path for path in near if path.suffix == ".c" or path.stem in texts}


def _file(module: str, folder: Path) -> Path | None:
    """The file of a module named without the package in front, None for a name that is no module's."""
    path = folder.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=512)
def _file_digest(path: Path, modified: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Read:
    """What a Python file is, its layout apart."""

    sha256: str  # of the tree without docstrings
    imports: tuple[str, ...]  # our modules that it imports anywhere, without the package in front
    texts: frozenset[str]  # its string constants


@lru_cache(maxsize=512)
def _read(path: Path, modified: int, size: int) -> Read:
    words, imported, texts = list[str](), set[str](), set[str]()
    _write(ast.parse(path.read_bytes()), words, imported, texts)
    ours = sorted(name.removeprefix("mtrun.") for name in imported if name.startswith("mtrun."))
    return Read(hashlib.sha256(" ".join(words).encode()).hexdigest(), tuple(ours), frozenset(texts))


def _write(node: ast.AST, words: list[str], imported: set[str], texts: set[str]) -> None:
    """Appends a tree as words, without docstrings; names from an imported module count as modules too.

    Fields that are empty are left out: newer Pythons give nodes fields that older ones have not.
    """
    kind = type(node)
    if kind is ast.Import or kind is ast.ImportFrom:
        imported |= _named(node)
    words.append(kind.__name__)
    for name, value in node.__dict__.items():
        if name in _PLACES or value is None or value == []:
            continue
        words.append(name)
        if isinstance(value, list):
            for one in value:
                if not isinstance(one, ast.AST):
                    words.append(repr(one))
                elif not (name == "body" and _is_text(one)):
                    _write(one, words, imported, texts)
            words.append("]")
        elif isinstance(value, ast.AST):
            _write(value, words, imported, texts)
        else:
            words.append(repr(value))
            if isinstance(value, str):
                texts.add(value)
    words.append(")")


def _named(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ImportFrom):
        return {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def _is_text(line: ast.AST) -> bool:
    """A statement that is a string alone: a docstring, or a comment in its place."""
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
