"""The door ("fit and park"): throughput with it over throughput without, past and before the edge of the caches.

Not a published experiment but the goal set for it, from the search that found the rule: 8 instances of 1 million KV
tokens, `codex` in a closed loop, 24, 32 and 48 sessions per instance at least 3.5 times as fast, at most 4 % lost where
everything fits or nearly so (8 and 16). That search knew prefills only; `plain` comes nearest to it. Where decoding
counts, as on `qwen3-32b-2xh100`, a fleet without thrash is at most 2.5 to 3 times as fast as one that thrashes, so no
rule can reach 3.5 there.

Sessions are met in mid-course, nobody is refused (`max_wait_s` is a week), and the window begins when both fleets have
settled. With the door at 48 a quarter of the clients are inside at any time, and those inside grow older than
`codex` is in the mean while the young wait: their contexts are longer, so fewer fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from router.config.door import Door
from router.sim.outcome import Figures
from router.sim.scenario import Scenario
from router.simulate import profiles, workload
from tests.agreement.row import Line, Row, ratio
from tests.agreement.served import figures_of
from tests.agreement.windows import Window

INSTANCES, KV_TOKENS = 8, 1_000_000
OPEN = Door(admission=True, max_wait_s=7 * 86_400.0)
EDGE = "a fleet that does not thrash is not that much faster here"
GROWN = "contexts inside grow older while the young wait, so fewer fit; not in a steady state within the window"


def served(profile: str, per_instance: int, window: Window, *, door: bool) -> Figures:
    scenario = Scenario(
        profile=replace(profiles.load(profile), kv_tokens=KV_TOKENS),
        instances=INSTANCES,
        door=OPEN if door else None,
    )
    at_once = INSTANCES * per_instance
    agents = workload.load("codex", seed=1, sessions=6 * at_once)
    return figures_of(scenario, "warm", agents, at_once, window)


def lines(profile: str, per_instance: int, window: Window, say: Callable[[str], None]) -> list[Line]:
    say(f"{profile}: {per_instance} sessions per instance")
    without, behind = (served(profile, per_instance, window, door=door) for door in (False, True))
    faster = ratio(behind.requests_per_s, without.requests_per_s)
    what = f"{profile}, {per_instance} per instance"
    if per_instance < 24:
        return [Line(f"{what}: throughput with / without", "0.96 or more", faster, low=0.96)]
    why = EDGE if profile != "plain" else GROWN
    return [
        Line(f"{what}: throughput with / without", "3.5 or more", faster, low=3.5, why=why),
        Line(f"{what}: wait at the door p50", "", behind.waited_p50_s, unit="s"),
        Line(f"{what}: wait at the door p90", "", behind.waited_p90_s, unit="s"),
    ]


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    window = Window(600.0, 1200.0) if reduced else Window(1000.0, 3000.0)
    asked = [("plain", 8), ("plain", 16), ("plain", 24), ("plain", 32), ("plain", 48), ("qwen3-32b-2xh100", 24)]
    return [line for profile, per in asked for line in lines(profile, per, window, say)]


ROWS = (Row("admission", "The door, codex in a closed loop, 8 instances of 1 M KV tokens", measure, 600.0, 120.0),)
