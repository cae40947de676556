"""Measures of the structure: one line each with its goal. For information; nothing fails (`make check` prints it).

Counted by reading imports and definitions (ast); nothing of the project is run.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FEATURE = re.compile(
    r"tenant|adapter|alias|wake|experiment|admission|preload|tracing|reservation|lease|keda|replica|follower|leader",
    re.I,
)
SPINE = ("route", "request", "services", "core", "app", "wiring")
FRAGMENT = re.compile(r"(What|Who|Whose|Whether|How|Where|Of|As|None:|True:|False:)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    name: str
    text: str
    tree: ast.Module
    is_package: bool  # an `__init__.py`

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_feature(self) -> bool:
        return ".features." in self.name


class Measure(NamedTuple):
    what: str
    value: int
    goal: int
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def read_modules() -> dict[str, Module]:
    """Read the modules of the packages, without generated ones, by name."""
    found = {}
    for package in ("router", "scorers"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if not file.name.endswith("_pb2.py"):
                parts = file.relative_to(ROOT).with_suffix("").parts
                is_package = parts[-1] == "__init__"
                name = ".".join(parts[:-1] if is_package else parts)
                text = file.read_text(encoding="utf-8")
                found[name] = Module(name, text, ast.parse(text), is_package)
    return found


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield names that may be modules, those that are imported for type checking only left out."""
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Return all modules that importing `start` loads, itself included."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            waiting += graph.get(name, ())
    return seen


def count_parameters(function: Function) -> int:
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len(parameters) - (bool(parameters) and parameters[0].arg in ("self", "cls"))


def measure_imports(modules: dict[str, Module]) -> Iterator[Measure]:
    graph = {name: set(imported_names(each.tree)) & modules.keys() - {name} for name, each in modules.items()}
    arrows = [(modules[name], modules[target]) for name, targets in graph.items() for target in targets]
    used = Counter(target.name for _, target in arrows)
    spine = reachable("router.request.route", graph)
    yield Measure("modules that route.py imports, all told", len(spine), 190)
    yield Measure("lines of these", sum(modules[name].lines for name in spine), 23_000)
    loaded = [name for name in reachable("router.app", graph) if not modules[name].is_feature]
    yield Measure("modules that app.py imports, all told, features left out", len(loaded), 300)
    crossing = [(a, b) for a, b in arrows if a.is_feature and b.is_feature]
    crossing = [(a, b) for a, b in crossing if a.name.split(".")[2] != b.name.split(".")[2]]
    yield Measure("imports from one feature into another", len(crossing), 0)
    names = ("app", "wiring", "features", "cli", "lab", "operate", "picker")
    above = tuple(f"router.{name}" for name in names)
    upward = [a for a, b in arrows if b.is_feature and not a.is_feature and not a.name.startswith(above)]
    yield Measure("imports from the core into a feature", len(upward), 0)
    tools = ("router.lab", "router.operate")
    to_tools = [a for a, b in arrows if b.name.startswith(tools) and not a.name.startswith((*tools, "router.cli"))]
    yield Measure("imports of tools from outside the tools and the commands", len(to_tools), 0)
    yield Measure(
        "modules with a single importer",
        sum(used[each.name] == 1 and not each.is_package for each in modules.values()),
        110,
    )


def measure_text(modules: Iterable[Module]) -> Iterator[Measure]:
    nodes = [node for each in modules for node in ast.walk(each.tree)]
    functions = [node for node in nodes if isinstance(node, Function)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    documented = [node for node in nodes if isinstance(node, Function | ast.ClassDef | ast.Module)]
    docstrings = [ast.get_docstring(node) or "" for node in documented]
    spine = [each for each in modules if each.name.rpartition(".")[2] in SPINE and each.name.startswith("router.")]
    spine = [each for each in spine if each.name.split(".")[1] in ("request", "app", "wiring")]
    naming = sum(bool(FEATURE.search(line)) for each in spine for line in each.text.splitlines())
    yield Measure("lines that name a feature in the spine and the composition root", naming, 30)
    folders = {each.name.split(".")[2] for each in modules if each.is_feature}
    yield Measure("features with a folder of their own", len(folders), 9, at_least=True)
    dual = sum(bool(re.match(r"(Synced|Follower|Leader)", node.name)) for node in classes)
    yield Measure("classes Synced*, Follower*, Leader*", dual, 0)
    yield Measure("modules", len(list(modules)), 500)
    yield Measure("modules under 61 lines", sum(each.lines < 61 and not each.is_package for each in modules), 90)
    yield Measure("functions with more than 6 parameters", sum(count_parameters(each) > 6 for each in functions), 25)
    long = sum((each.end_lineno or 0) - each.lineno + 1 > 40 for each in functions)
    yield Measure("functions over 40 lines", long, 12)
    yield Measure("files of 395 to 400 lines", sum(395 <= each.lines <= 400 for each in modules), 2)
    wide = sum(len(line) > 116 for each in modules for line in each.text.splitlines())
    yield Measure("lines over 116 columns", wide, 700)
    fragments = sum(bool(FRAGMENT.match(text)) for text in docstrings)
    yield Measure("docstrings that begin with a relative clause or a fragment", fragments, 30)
    yield Measure("docstrings with 'Return what'", sum("Return what" in text for text in docstrings), 12)
    total = sum(each.lines for each in modules if each.name.startswith("router"))
    yield Measure("lines in router/", total, 66_000)


def measure_pages() -> Iterator[Measure]:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.S | re.M)
    yield Measure("runtime dependencies without extras", listed[1].count('",') if listed else 0, 19)
    pages = {file: file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.md")}
    keys = pages[ROOT / "docs" / "reference" / "configuration.md"].splitlines()
    yield Measure("configuration keys (rows of the reference)", sum(line.startswith("| `") for line in keys), 280)
    yield Measure("pages of documentation", len(pages), 48)
    yield Measure("words of documentation", sum(len(text.split()) for text in pages.values()), 75_000)


def main() -> None:
    """Print every measure."""
    modules = read_modules()
    measures = [*measure_imports(modules), *measure_text(list(modules.values())), *measure_pages()]
    for measure in measures:
        goal = f"{'>=' if measure.at_least else '<='} {measure.goal}"
        print(f"{'ok  ' if measure.met else 'MISS'} {measure.what}: {measure.value} (goal {goal})")
    print(f"{sum(measure.met for measure in measures)} of {len(measures)} measures met")


if __name__ == "__main__":
    main()
