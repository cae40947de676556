"""Measures the power of the tests: changes one place of the source at a time and counts which changes a test notices.

    python -m tests.mutants --each 25 --seed 1 --json FILE [--tests tests/e2e] [--only FILE] [kvcache scheduling ...]

The same seed chooses the same mutants of the same source, so two versions of the tests can be compared. Each mutant is
made in a copy of the checkout and judged by the tests of its package; `--tests` names further ones. A run that hangs is
ended and counts as noticed. `--only`: the mutants that survived in this earlier report.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

PACKAGES = ("kvcache", "scheduling", "proxy", "request")
COPIED = ("router", "scorers", "tests", "configs", "docs", "deploy", "pyproject.toml", "setup.py", "README.md")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
MARKERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
UNMARKED = " and ".join(f"not {marker.partition(':')[0]}" for marker in MARKERS)
HANGS_S = 180.0


class Mutant(NamedTuple):
    """The `number`-th place of a file that can be changed, in the order of `places`."""

    package: str
    file: str
    number: int
    line: int
    change: str


def places(tree: ast.Module) -> Iterator[tuple[int, str, ast.AST, str, object]]:
    """Yield line, description, node, field and new value of every change, inside functions only."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                yield from _changes(node)


def _changes(node: ast.AST) -> Iterator[tuple[int, str, ast.AST, str, object]]:
    line = getattr(node, "lineno", 0)
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            new = SWAPS[type(operator)]()
            yield line, f"{type(operator).__name__} -> {type(new).__name__}", node, "ops", [new]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in SWAPS:
            new = SWAPS[type(operator)]()
            yield line, f"{type(operator).__name__} -> {type(new).__name__}", node, "op", new
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield line, "condition negated", node, "test", ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool(value)):
            yield line, f"{value} -> {not value}", node, "value", not value
        case ast.Constant(value=int(value)):
            yield line, f"{value} -> {value + 1}", node, "value", value + 1
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield line, "call removed", node, "value", ast.Constant(value=None)


def choose(packages: list[str], each: int, seed: int) -> list[Mutant]:
    """Return `each` mutants of every package, in the order of the seed."""
    chosen: list[Mutant] = []
    for package in packages:
        found = [
            Mutant(package, str(file.relative_to(ROOT)), number, line, change)
            for file in sorted((ROOT / "router" / package).rglob("*.py"))
            for number, (line, change, *_) in enumerate(places(ast.parse(file.read_text(encoding="utf-8"))))
        ]
        chosen += random.Random(f"{seed} {package}").sample(found, min(each, len(found)))
    return chosen


def mutate(source: str, number: int) -> str:
    """Return the source with its `number`-th place changed."""
    tree = ast.parse(source)
    _, _, node, field, value = list(places(tree))[number]
    setattr(node, field, value)
    return ast.unparse(ast.fix_missing_locations(tree))


def judge(copy: Path, mutant: Mutant, further: list[str]) -> str:
    """Return the end of the run: `survived`, `noticed` or `hung`."""
    file = copy / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutate(original, mutant.number), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", UNMARKED, "-p", "no:cacheprovider", "--no-header"]
    paths = further or [f"tests/router/{mutant.package}"]
    environment = os.environ | {"WARMROUTE_PURE": "1", "PYTHONPATH": str(copy)}
    try:
        with subprocess.Popen(
            [*command, *paths],
            cwd=copy,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as run:
            try:
                return "survived" if run.wait(HANGS_S if not further else 4 * HANGS_S) == 0 else "noticed"
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, 9)
                return "hung"
    finally:
        file.write_text(original, encoding="utf-8")


def main() -> None:
    """Judge the mutants one after the other, print each, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--each", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--only", type=Path)
    chosen = parser.parse_args()
    mutants = choose(chosen.packages, chosen.each, chosen.seed)
    if chosen.only is not None:
        earlier = {tuple(one[:3]) for one in json.loads(chosen.only.read_text()) if one[5] == "survived"}
        mutants = [mutant for mutant in mutants if mutant[:3] in earlier]
    report: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(prefix="warmroute-mutants-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(ROOT / name, copy)
        for mutant in mutants:
            began = time.monotonic()
            end = judge(copy, mutant, chosen.tests)
            report.append((*mutant, end))
            print(
                f"{end:8} {time.monotonic() - began:5.0f} s  {mutant.file}:{mutant.line}  {mutant.change}", flush=True
            )
            chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    for package in chosen.packages:
        ends = [one[5] for one in report if one[0] == package]
        print(f"{package}: {sum(end != 'survived' for end in ends)} of {len(ends)} noticed")


if __name__ == "__main__":
    main()
