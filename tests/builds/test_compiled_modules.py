"""What mypyc compiles differently, or not at all, is not in the modules that setup.py names."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import setup
from tests.paths import ROOT

SUSPENSIONS = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)
OPEN_BASES = ("Protocol", "NamedTuple", "Enum", "WarmrouteError")  # whose classes stay Python's own
COMPILED = [Path(file) for file in setup.modules_to_compile()]


def read(file: Path) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def within(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs within a statement, without the functions that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from within(child)


def classes(file: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(read(file)) if isinstance(node, ast.ClassDef))


def test_modules_that_stay_interpreted_exist_and_have_one_reason() -> None:
    named = [file for files in setup.INTERPRETED.values() for file in files]
    assert len(set(named)) == len(named)
    assert [file for file in named if not (ROOT / file).exists()] == []
    assert len(COMPILED) > 50


def test_the_libraries_whose_types_matter_are_there_in_an_isolated_build() -> None:
    """Without msgspec its classes do not pass mypy there, so nothing was installed."""
    imported = {
        name.partition(".")[0]
        for file in COMPILED
        for node in ast.walk(read(file))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else imports(node))
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = {re.split(r"[><=]", each)[0]: each for each in project["project"]["dependencies"]}
    wanted = {installed[name] for name in imported & installed.keys()} - {installed["mypy_extensions"]}  # mypy's own
    assert len(wanted) >= 3
    assert wanted - set(setup.REQUIRES) == set()


def imports(node: ast.AST) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_nothing_is_awaited_while_an_exception_is_handled() -> None:
    """mypyc keeps the exception in the thread meanwhile: another task's `finally` raised it again."""
    found = []
    for file in COMPILED:
        for node in ast.walk(read(file)):
            if isinstance(node, ast.Try):
                parts = [*node.handlers, *node.finalbody]
                inner = [each for part in parts for each in (part, *within(part))]
                found += [f"{file}:{each.lineno}" for each in inner if isinstance(each, SUSPENSIONS)]
    assert found == []


def test_interpreted_classes_derive_only_from_what_allows_it() -> None:
    """Of the others mypyc calls methods directly, past those that override them."""
    closed = {
        node.name: file
        for file in COMPILED
        for node in classes(file)
        if not node.name.startswith("_")
        and not any("allow_interpreted_subclasses" in ast.unparse(each) for each in node.decorator_list)
        and not any(ast.unparse(base).startswith(OPEN_BASES) for base in node.bases)
    }
    interpreted = {
        file.relative_to(ROOT) for folder in ("router", "scorers", "tests") for file in (ROOT / folder).rglob("*.py")
    }
    found = [
        f"{file}: {node.name} derives from {ast.unparse(base)} of {closed[ast.unparse(base)]}"
        for file in sorted(interpreted - set(COMPILED))
        for node in classes(file)
        for base in node.bases
        if ast.unparse(base) in closed
    ]
    assert found == []
