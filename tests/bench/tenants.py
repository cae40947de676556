"""What tenants cost: CPU time of the router's process per small request, with all that `clients` can do and without.

Two routers in turns, in front of the same engines and with the same requests: one without `clients`, one with API keys,
every limit, a budget, `isolation` and a usage file. Differences are of the same turn, over several starts: two
processes that do the same differ by some microseconds per request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench import routers
from tests.bench.data_path import SMALL, spent_us
from tests.bench.figures import Bar, Line
from tests.bench.routers import EVEN
from tests.bench.row import BenchRun, Row

KEY, TENANT = "the-key-of-this-tenant", "acme"
PLENTY = 1_000_000_000
LIMITS = {
    "requests_per_minute": PLENTY,
    "tokens_per_minute": PLENTY,
    "concurrent": PLENTY,
    "budget_per_day": float(PLENTY),
}
STARTS, WARM_UP, TURNS, QUICK_TURNS = 3, 1, 40, 20
SHAPE = SMALL.shrunk(12)  # short turns, and many: what else the machine does changes from one second to the next
ADDED_BAR_US = 15.0


def tenant_settings(folder: Path) -> dict[str, Any]:
    """Write the keys file; return the settings of a router that uses all of `clients`."""
    keys = folder / "client-keys"
    keys.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} {TENANT}\n")
    clients = {
        "keys_file": str(keys),
        "usage_file": str(folder / "usage.db"),
        "isolation": "tenant",
        "service_classes": {"default": {"limits": LIMITS}},
    }
    return {**EVEN, "clients": clients}


def tenants(run: BenchRun) -> list[Line]:
    settings: Mapping[str, Mapping[str, Any]] = {"off": EVEN, "on": tenant_settings(run.folder)}
    seen: dict[str, list[float]] = {name: [] for name in settings}
    with routers.engines(2) as backends:
        for start in range(run.effort.of(STARTS, 2)):
            with ExitStack() as stack:
                running = [
                    stack.enter_context(routers.warmroute(backends, run.folder, one, f"clients-{name}"))
                    for name, one in settings.items()
                ]
                run.report(f"start {start + 1}")
                for turn in range(WARM_UP + run.effort.of(TURNS, QUICK_TURNS)):
                    for name, router in list(zip(settings, running, strict=True))[:: 1 if turn % 2 else -1]:
                        us = spent_us(router, SHAPE, key=KEY)
                        if turn >= WARM_UP:
                            seen[name].append(us)
                usage = running[1].get_admin("/admin/usage")["usage"]
                run.notes.append(f"{usage[0]['requests']:,} requests of {usage[0]['tenant']} are in its usage")
    added = [on - off for on, off in zip(seen["on"], seen["off"], strict=True)]
    return [
        Line("CPU per small request without clients", "us", seen["off"]),
        Line("the same with keys, limits, isolation, usage", "us", seen["on"]),
        Line("added by these", "us", added, bar=Bar(ADDED_BAR_US)),
    ]


ROWS = (Row("tenants", "tenants with all limits, small request", tenants, 75, 30),)
