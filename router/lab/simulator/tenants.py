"""The tenants of a simulated fleet: each with a workload, a weight, a priority and objectives.

Sessions of a workload have numbers from 0, so the sessions of several tenants are renumbered: the n-th of T tenants
has all numbers that are n modulo T. Workloads of different seeds share no prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from router.lab.workloads.model import Session, Workload


class TenantLoad(NamedTuple):
    """One tenant. `at_once`: sessions of a closed loop; None: each begins at its `start_s`."""

    name: str
    workload: Workload
    at_once: int | None = None
    weight: float = 1.0
    priority: int = 0
    ttft_ms: tuple[float, ...] = ()  # objectives of its sessions, in turn; empty: none


def number_sessions(sessions: Sequence[Session], tenant: int, tenants: int) -> list[Session]:
    """Return the sessions of the `tenant`-th of `tenants` workloads with numbers of their own."""
    return [_number(session, tenant, tenants) for session in sessions]


def _number(session: Session, tenant: int, tenants: int) -> Session:
    sub_agents = tuple(_number(one, tenant, tenants) for one in session.sub_agents)
    return session._replace(number=session.number * tenants + tenant, sub_agents=sub_agents)
