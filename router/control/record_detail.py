"""One record in full, with the choices that other policies would have made: each decides anew on the record's view.

The event loop gets a turn after every decision, so that requests continue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from router.config.lookup import list_shipped_policies
from router.config.reader import read_policy_file
from router.scheduling.experiments.other_choices import decide_with
from router.scheduling.policy.policy import Policy, build_policies
from router.scheduling.policy.record import Record
from router.scheduling.policy.record_view import describe_record, to_plain

Others = Literal["configured", "shipped"]
"""configured: the router's policies; shipped: also the policies that are shipped with the router."""


async def describe_in_full(record: Record, policies: Mapping[str, Policy], others: Others) -> dict[str, Any]:
    """Return the record as plain JSON types, with the choice of every other policy for its first attempt."""
    described = describe_record(record)
    described["others"] = []
    if not record.attempts:
        return described
    if others == "shipped":
        policies = await asyncio.to_thread(_build_shipped, set(policies)) | dict(policies)
    actual = record.attempts[0].decision
    for policy in policies.values():
        if record.policy is None or (policy.name, policy.digest) != (record.policy.name, record.policy.digest):
            described["others"].append(to_plain(decide_with(policy, actual, record.policy)))
            await asyncio.sleep(0)
    return described


def _build_shipped(without: set[str]) -> dict[str, Policy]:
    """Return the shipped policies, except those named in `without`."""
    files = list_shipped_policies()
    return build_policies({name: read_policy_file(file) for name, file in files.items() if name not in without})
