"""The rules that keep the code enterable: few packages, one name for one class, honest docstrings."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

from router.control.feature import Feature
from router.wiring import FEATURES
from tests.paths import ROOT

MOST_PACKAGES, MOST_LOOSE_MODULES = 16, 6
LOADED_LAZILY = {
    ROOT / "router" / name
    for name in (
        "config/reader.py",
        "control/core.py",
        "features/autoscaling/feature.py",
        "backends/client_keys.py",
        "tenants/directory.py",
    )
}
OPTIONAL = (
    *("router.cli", "router.lab", "router.operate", "router.picker.server"),
    *(f"router.features.{name}" for name in ("adapters", "aliases", "pool", "preload", "tenants", "tracing")),
    *("router.features.autoscaling.keda", "router.features.autoscaling.wake", "router.features.decision_log"),
    *("router.config.sections.gameday", "router.config.sections.simulation", "scorers.rivals"),
    *("router.backends.discovery.dns", "router.backends.discovery.kubernetes"),
    *(
        "cryptography",
        "dns",
        "google.protobuf",
        "grpc",
        "hpack",
        "httpx",
        "jwt",
        "matplotlib",
        "opentelemetry.sdk",
        "rich",
    ),
)
NOT_RAISED_TO_CALLERS = {"AssertionError", "NotImplementedError", "StopIteration", "SystemExit"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[Path, ast.Module]:
    """All modules; parsed where a test wants them."""
    files = [path for folder in ("router", "scorers") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text()) for path in files}


def place(path: Path, node: ast.stmt) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def test_few_packages_and_few_loose_modules() -> None:
    top = ROOT / "router"
    packages = [path.name for path in top.iterdir() if (path / "__init__.py").exists()]
    modules = [path.name for path in top.glob("*.py") if path.name != "__init__.py"]
    assert len(packages) <= MOST_PACKAGES, sorted(packages)
    assert len(modules) <= MOST_LOOSE_MODULES, sorted(modules)


def test_a_public_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(place(path, node))
    assert len(places) > 400  # or the sources were not found
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def raised_in(function: Function) -> set[str]:
    """The classes that `function` itself raises, without nested functions and bare re-raising."""
    names, waiting = set(), list[ast.AST](function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = raised.attr if isinstance(raised, ast.Attribute) else getattr(raised, "id", "")
            if name[:1].isupper():
                names.add(name)
        waiting.extend(ast.iter_child_nodes(node))
    return names - NOT_RAISED_TO_CALLERS


def public_functions(node: ast.AST) -> Iterator[Function]:
    """Public functions and methods of modules and of public classes, not those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child)
        elif isinstance(child, Function) and not child.name.startswith("_"):
            yield child


def silent_about(function: Function) -> set[str]:
    return {name for name in raised_in(function) if name not in (ast.get_docstring(function) or "")}


def test_a_public_function_that_raises_says_so() -> None:
    functions = [(path, function) for path, tree in sources().items() for function in public_functions(tree)]
    assert sum(bool(raised_in(function)) for _, function in functions) > 50  # or nothing was looked at
    silent = {
        f"{place(path, function)} {function.name}": sorted(missing)
        for path, function in functions
        if (missing := silent_about(function))
    }
    assert silent == {}


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('def f():\n    "Return nothing. Raises ValueError when it is late."\n    raise ValueError("x")', set()),
        ('def f():\n    "Return nothing."\n    raise ValueError("x")', {"ValueError"}),
        ("def f():\n    raise errors.Late", {"Late"}),
        ("def f():\n    def g():\n        raise ValueError\n    raise", set()),
        ("def f():\n    raise NotImplementedError", set()),
    ],
)
def test_what_counts_as_saying_so(text: str, missing: set[str]) -> None:
    (function,) = ast.parse(text).body
    assert isinstance(function, Function)
    assert silent_about(function) == missing


def test_every_feature_is_in_the_list_of_the_composition_root() -> None:
    folders = [path.name for path in (ROOT / "router/features").iterdir() if (path / "__init__.py").exists()]
    assert sorted(where.partition(".")[0] for where, _ in FEATURES) == sorted(folders)
    assert all(issubclass(resolve_name(f"router.features.{where}"), Feature) for where, _ in FEATURES)


def test_no_import_is_hidden_from_the_import_rules() -> None:
    """`if TYPE_CHECKING:` may spare a start the loading of what only annotations name and a configuration may not need:
    a library that draws, parts of the command line, or a feature's library. It may not close a cycle.
    """
    hidden = []
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                lazily = path.is_relative_to(ROOT / "router" / "cli") or path in LOADED_LAZILY
                hidden += [place(path, inner) for inner in node.body if not lazily]
    assert hidden == []


def test_importing_the_app_loads_no_tool_and_nothing_that_may_not_be_configured() -> None:
    code = "import sys, router.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = loaded.split()
    assert "router.app" in names
    assert [name for name in names if name.startswith(OPTIONAL)] == []
