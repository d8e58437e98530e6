"""What the layout promises: who may import whom, where the environment is read, how large a piece may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from support.sources import FOLDERS, ROOT, Source, product

MAY_IMPORT = {
    "conf": set(),
    "kernels": {"kernels"},
    "lanes": {"lanes", "kernels"},
    "runtime": {"runtime", "lanes", "kernels", "conf"},
}
LINES = 500
FUNCTION_LINES = 60
ENVIRONMENT = "runtime/environment.py"


@pytest.mark.parametrize("source", product(), ids=lambda source: source.name)
def test_folders_import_only_downwards(source: Source) -> None:
    ours = {name.split(".")[1] for name in source.imports() if name.startswith("mtrun.")}
    assert ours <= MAY_IMPORT[source.folder]


@pytest.mark.parametrize("source", product(), ids=lambda source: source.name)
def test_nothing_is_imported_by_a_bare_folder_name(source: Source) -> None:
    assert not {name.split(".")[0] for name in source.imports()} & set(FOLDERS)


def test_conf_holds_no_code() -> None:
    code = [source for source in product() if source.folder == "conf"]
    assert [source.name for source in code] == ["conf/__init__.py"]
    assert all(isinstance(node, ast.Expr) for node in code[0].tree.body)


@pytest.mark.parametrize("source", product(), ids=lambda source: source.name)
def test_the_environment_is_read_in_one_place(source: Source) -> None:
    if source.name == ENVIRONMENT:
        return
    reads = [
        node.lineno
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb", "getenvb"))
        or (isinstance(node, ast.Name) and node.id in ("environ", "getenv"))
    ]
    assert reads == []


def test_no_shipped_yaml_reads_the_environment() -> None:
    files = list((ROOT / "conf").rglob("*.yaml"))
    assert files
    assert [path.name for path in files if "oc.env" in path.read_text() or "${hydra:" in path.read_text()] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("kernels/**/*.c")) + [s.path for s in product()], ids=str)
def test_a_file_stays_one_noun_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES


@pytest.mark.parametrize("source", product(), ids=lambda source: source.name)
def test_a_function_fits_a_screen(source: Source) -> None:
    functions = [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {node.name: node.end_lineno - node.lineno + 1 for node in functions if node.end_lineno is not None}
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES} == {}


@pytest.mark.parametrize("source", product(), ids=lambda source: source.name)
def test_no_module_keeps_state(source: Source) -> None:
    """No `global`, and no mutable container bound at module level to a name that is not a constant's."""
    assert not [node for node in ast.walk(source.tree) if isinstance(node, ast.Global)]
    mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    for node in source.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, mutable):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            assert all(name.isupper() or name == "__all__" for name in names), names


@pytest.mark.parametrize("source", product(), ids=lambda source: source.name)
def test_every_module_and_public_definition_says_what_it_is(source: Source) -> None:
    public = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    bare = [] if ast.get_docstring(source.tree) or not source.tree.body else ["the module"]
    for node in source.tree.body:
        if isinstance(node, public) and not node.name.startswith("_") and not ast.get_docstring(node):
            bare.append(node.name)
    assert bare == []


def test_importing_everything_puts_no_bare_folder_name_into_sys_modules() -> None:
    """A top-level `kernels` would be found by other packages that probe for Hugging Face's library of that name."""
    names = [str(s.path.relative_to(ROOT).with_suffix("")).replace("/", ".") for s in product()]
    modules = [f"mtrun.{name.removesuffix('.__init__')}" for name in names]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {FOLDERS!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.strip() == "[]", done.stderr


def test_the_repository_speaks_of_the_product_alone() -> None:
    words = ("/wo" + "rk/", "pypi" + ".org", "--index" + "-url", "sub" + "agent", "this ses" + "sion")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    texts = [
        name for name in tracked if name.endswith((".py", ".md", ".toml", ".yaml", ".c", ".txt", "Makefile", "run"))
    ]
    found = {name: word for name in texts for word in words if word in (ROOT / name).read_text(encoding="utf-8")}
    assert found == {}
