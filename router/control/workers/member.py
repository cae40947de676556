"""What the leader knows of one follower."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from router.control.workers.channel import Channel
from router.control.workers.metrics_merge import MetricFamily


@dataclass
class FollowerMember:
    """One follower, from its start to its end."""

    number: int
    channel: Channel
    run: str | None = None  # None: it does not accept connections yet
    version: int = 0  # of the policy rule that it has in force
    digests: dict[str, str] = field(default_factory=dict)
    trouble: str | None = None  # why it could not apply the newest rule
    families: list[MetricFamily] = field(default_factory=list)  # its counters, as last received
    missed_pings: int = 0  # in a row


def describe_follower(number: int, member: FollowerMember | None, pid: int | None) -> dict[str, Any]:
    """Describe a follower as plain JSON types; `member` is None until it has connected, `pid` unless it runs."""
    return {
        "number": number,
        "pid": pid,
        "run": None if member is None else member.run,
        "up": member is not None and member.run is not None,
        "policies": {} if member is None else member.digests,
        "trouble": None if member is None else member.trouble,
    }
