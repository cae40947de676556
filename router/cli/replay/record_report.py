"""One record of a decision log on the terminal: each choice with its candidates, the parts of their costs, and what
other policies would have chosen. The log holds only the view; the rest is computed when the log is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from router.cli.terminal.output import MISSING, Grid, GridEntry, make_grid, render
from router.features.decision_log.format import LoggedRecord
from router.lab.replay.replay import InspectedChoice
from router.scheduling.experiments.other_choices import OtherChoice
from router.scheduling.policy.rationale import format_amount
from router.scheduling.policy.record_view import describe_decision, to_plain, weighted_parts


def describe_logged(logged: LoggedRecord, choices: Sequence[InspectedChoice]) -> dict[str, Any]:
    """Return the record's choices as plain JSON types, as the admin API describes them."""
    return {
        "id": logged.id,
        "at_wall_s": logged.at_wall_s,
        "policy": logged.policy,
        "policy_digest": logged.digest,
        "choices": [
            {
                "target": one.choice.target,
                "end": one.choice.end,
                "trouble": one.trouble,
                "decision": None if one.decision is None else describe_decision(one.decision, one.policy),
            }
            for one in choices
        ],
        "others": [to_plain(other) for one in choices for other in one.others],
    }


def show_logged(logged: LoggedRecord, choices: Sequence[InspectedChoice]) -> RenderableType:
    """Return the record's choices as tables."""
    shown: list[RenderableType] = [Text(f"{logged.id}, {logged.model or MISSING}, policy {logged.policy or MISSING}")]
    if not choices:
        shown.append(Text("It was never placed: nothing was chosen."))
    for one in choices:
        half = "" if one.choice.part == "whole" else f" ({one.choice.part} half)"
        shown.append(Text(f"\n{one.choice.target}{half}, ended: {one.choice.end}", style="bold"))
        if one.trouble is not None:
            shown.append(Text(one.trouble, style="yellow"))
        if one.decision is not None:
            described = describe_decision(one.decision, one.policy)
            shown += [Text(described["why"]), render(_candidates(described))]
            if described["left_out"] is not None:
                shown.append(Text(described["left_out"]))
            shown += [Text(f"{term}: {why}", style="yellow") for term, why in described["parts_missing"].items()]
        if one.others:
            shown.append(render(_others(one)))
            shown += [Text(f"{other.policy}: {note}") for other in one.others for note in other.notes]
    return Group(*shown)


def _candidates(described: dict[str, Any]) -> Grid:
    """Return a row per candidate, cheapest first, with the parts of its cost."""
    rows = sorted(described["candidates"], key=lambda row: row["cost"])
    splits = [weighted_parts(row["terms"]) for row in rows]
    names = [name for name in splits[0] if any(split[name] for split in splits)] or list(splits[0])
    lines: list[list[str | GridEntry]] = [
        [
            row["target"] + " (chosen)" * (row["target"] == described["target"]),
            format_amount(row["cost"]),
            *(format_amount(split[name]) for name in names),
        ]
        for row, split in zip(rows, splits, strict=True)
    ]
    (unit,) = {term["unit"] for term in rows[0]["terms"].values()}
    return make_grid("", ("candidate", f"cost, {unit}", *names), lines)


def _others(one: InspectedChoice) -> Grid:
    rows = [_other(other, one.choice.target) for other in one.others]
    heads = ("policy", "target", "TTFT ms", "cached tokens", "its cost", "of what was done")
    return make_grid("Other policies; TTFT and cached tokens against what was done", heads, rows, labels=2)


def _other(other: OtherChoice, actual: str) -> list[str | GridEntry]:
    if other.target is None or other.cost is None or other.difference is None:
        return [other.policy, GridEntry(f"failed: {other.fault}", colour="red"), *[MISSING] * 4]
    overlap_tokens = other.difference.overlap_tokens
    return [
        other.policy,
        "the same" if other.target == actual else other.target,
        f"{other.difference.ttft_ms:+,.1f}",
        MISSING if overlap_tokens is None else f"{overlap_tokens:+,}",
        format_amount(other.cost),
        MISSING if other.actual_cost is None else format_amount(other.actual_cost),
    ]
