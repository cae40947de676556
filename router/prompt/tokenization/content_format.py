"""Detects whether a chat template iterates over a message's content parts: vLLM then passes parts, else one string.

The detection looks for a loop over `message.content` (or over a variable named `content`, or over a macro's
parameter called with it), where `message` is the variable of a loop over `messages` or over something assigned from
them. It reproduces a heuristic of vLLM 0.32 (renderers/hf.py) exactly: it need not be right about a template, but
must agree with the engine.
"""

from __future__ import annotations

from collections import deque

from jinja2 import nodes


def iterates_content(template: nodes.Template) -> bool:
    """Return True if the engine passes the template a list of parts ("openai" format), False for one string."""
    try:
        messages = _names_of_messages(template)
        through_macros = _macro_loops(template, messages)
        return any(_over_content(loop, messages, through_macros) for loop in template.find_all(nodes.For))
    except _Unsupported:
        return False  # the engine's own detection fails then, and falls back to strings


class _Unsupported(Exception):
    """A loop over several variables or an assignment to a tuple: more than the detection can follow."""


def _over_content(loop: nodes.For, messages: list[str], through_macros: dict[int, set[str]]) -> bool:
    over = any(_reads(loop.iter, name, "content") for name in messages)
    if not over and isinstance(loop.iter, nodes.Name):
        over = loop.iter.name in through_macros.get(id(loop), {"content"})
    if over:
        _target(loop.target)
    return over


def _names_of_messages(template: nodes.Template) -> list[str]:
    """Return the variables that hold one message: targets of loops over `messages` or over a variable assigned from
    it.
    """
    holders = _assigned_from(template, "messages")
    loops = template.find_all(nodes.For)
    return [_target(loop.target) for loop in loops if any(_reads(loop.iter, holder) for holder in holders)]


def _assigned_from(template: nodes.Template, name: str) -> list[str]:
    found = [name]
    todo = deque([name])
    while todo:
        source = todo.popleft()
        for assign in template.find_all(nodes.Assign):
            if _reads(assign.node, source):
                target = _target(assign.target)
                if target not in found:
                    todo.append(target)
                    found.append(target)
    return found


def _macro_loops(template: nodes.Template, messages: list[str]) -> dict[int, set[str]]:
    """Map each loop inside a macro to the macro's parameters that some call sets to a message's content."""
    loops: dict[int, set[str]] = {}
    calls = list(template.find_all(nodes.Call))
    for macro in template.find_all(nodes.Macro):
        parameters = [argument.name for argument in macro.args]
        parameters_set: set[str] = set()
        for call in calls:
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
                parameters_set |= _parameters_with_content(call, parameters, messages)
        for loop in macro.find_all(nodes.For):
            loops[id(loop)] = parameters_set or loops.get(id(loop), set())
    return loops


def _parameters_with_content(call: nodes.Call, parameters: list[str], messages: list[str]) -> set[str]:
    named = [(keyword.key, keyword.value) for keyword in call.kwargs if isinstance(keyword, nodes.Keyword)]
    pairs = [*zip(parameters, call.args, strict=False), *((key, value) for key, value in named if key in parameters)]
    return {name for name, value in pairs if any(_reads(value, message, "content") for message in messages)}


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _Unsupported
    return node.name


def _reads(node: nodes.Node, name: str, key: str | None = None) -> bool:
    """Return whether the expression is the variable (or its member `key`), possibly filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return _reads_name(node, name)
    if isinstance(node, nodes.Getitem):
        return _reads_name(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _reads_name(node.node, name) and node.attr == key


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
