"""Dependencies point downward only."""

from __future__ import annotations

import ast
from pathlib import Path

import samebits

ROOT = Path(samebits.__file__).parent
#: From the top down; a package may import its own layer's members and everything below it.
LAYERS: list[set[str]] = [
    {"__main__", "cli", "launch", "startup"},
    {"bench", "report"},
    {"check"},
    {"integrations"},
    {"guard"},
    {"mode"},
    {"ops"},
    {"plan"},
    {"reveal"},
    {"engines"},
    {"contract"},
    {"models"},
    {"bits", "errors", "files", "settings"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    """First-level samebits modules that a file imports at module level or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" for a in node.names}
    return {name.split(".")[1] for name in found if name.startswith("samebits.")}


def test_imports_point_downward() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        home = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if home == "__init__":
            continue
        assert home in LEVEL, f"{path} belongs to no layer"
        wrong += [
            f"{path.relative_to(ROOT)} imports samebits.{name}"
            for name in imports(path)
            if name in LEVEL and LEVEL[name] < LEVEL[home]
        ]
    assert not wrong, wrong


def module(path: Path, tree: ast.Module) -> tuple[str, ...]:
    """A file's name below samebits; a package that defines something has its folder's."""
    name = path.relative_to(ROOT).with_suffix("").parts
    defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
    return name[:-1] if name[-1] == "__init__" and defines else name


def test_modules_import_each_other_in_no_circle() -> None:
    """Counts what is imported in functions, or for types alone; not what a package re-exports."""
    trees = {p: ast.parse(p.read_text()) for p in ROOT.rglob("*.py")}
    files = {module(path, tree): tree for path, tree in trees.items()}
    arrows: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for name, tree in files.items():
        arrows[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                home = tuple(node.module.split(".")[1:])
                names = [(*home, a.name) for a in node.names]
                arrows[name] |= {n if n in files else home for n in names} & files.keys() - {name}
    # A module that nothing is left to import is in no circle.
    while True:
        free = {name for name, targets in arrows.items() if not targets}
        if not free:
            break
        arrows = {n: targets - free for n, targets in arrows.items() if n not in free}
    held = {name: targets & arrows.keys() for name, targets in arrows.items()}
    while True:  # nor is one that nothing left imports
        wanted = set().union(*held.values())
        if wanted >= held.keys():
            break
        held = {name: targets for name, targets in held.items() if name in wanted}
    assert not held, {"/".join(n): ["/".join(t) for t in targets] for n, targets in held.items()}


def test_only_the_mode_patches_torch() -> None:
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] != "mode":
            assert "torch.library.Library(" not in path.read_text(), path


def test_contracts_use_no_torch_kernels() -> None:
    for path in (ROOT / "contract").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert "torch" not in names, f"{path} imports torch at module level"
