"""The product's own source files, parsed once for the tests that hold the house."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("conf", "runtime", "lanes", "kernels")


@dataclass(frozen=True)
class Source:
    path: Path
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.relative_to(ROOT).parts[0]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def imports(self) -> set[str]:
        """Dotted modules imported anywhere in the file, inside functions too."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}:{node.lineno} imports relatively: write mtrun.… in full"
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return found


@cache
def product() -> tuple[Source, ...]:
    """Every Python file of the four product folders."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(Source(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths)
