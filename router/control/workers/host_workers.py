"""The workers of a host, for the operator."""

from __future__ import annotations

from typing import Any

from router.control.peers.facts import SharedFacts
from router.control.workers.messages import Members


def describe_members(members: Members, workers: int, facts: SharedFacts) -> list[dict[str, Any]]:
    """Describe all `workers` as plain JSON types, also those that do not live now."""
    living = {member.number: member for member in members.living}
    described = []
    for number in range(workers):
        member = living.get(number)
        known = None if member is None else facts.find(member.run)
        described.append(
            {
                "number": number,
                "pid": None if member is None else member.pid,
                "run": None if member is None else member.run,
                "up": member is not None and member.up,
                "on_duty": number == members.on_duty,
                "policies": {} if known is None else known.digests,
                "trouble": None if known is None else known.trouble,
            }
        )
    return described
