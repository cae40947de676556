"""The door ("fit and park"): throughput with it over throughput without, past and before the edge of the caches.

Not a published experiment but the goal set for it, from the search that found the rule: 8 instances of 1 million KV
tokens, `codex` in a closed loop, 24, 32 and 48 sessions per instance at least 3.5 times as fast, at most 4 % lost where
everything fits or nearly so (8 and 16). That search knew prefills only; `plain` comes nearest to it.

What a rule can reach has a bound that is measured here: the best that the same fleet serves without a door, at any of
the numbers of sessions asked for or of `EDGE`. Contexts fill its memory there, and a door that lets in sessions of
the same age can only get the fleet back to that. That best over what the fleet serves thrashing is all there is to win.

What the door has of that best is a line of its own, in prompt tokens, since those inside may be older or younger than
the mean while others wait. Its bar of 0.85 leaves room for what a door cannot know. At 48 in the reduced window the
fullest of 8 instances held 0.98 M live tokens and the emptiest 0.59 M, 6.4 M in all, beside 1.75 M of sessions that had
ended within the last minute, which nobody tells.

Sessions are met in mid-course and nobody is refused (`max_wait_s` is a week). The full window begins when both fleets
have settled; the reduced one still sees those who came first, all at once, which costs a twelfth at 48.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from router.config.sections.listeners import AdmissionConfig
from router.testbed.simulator.outcome import SimulationFigures
from router.testbed.simulator.scenario import Scenario
from router.testbed.sweep import options
from router.testbed.workloads import source
from tests.agreement.row import Line, Row, ratio
from tests.agreement.served import figures_of
from tests.agreement.windows import Window

INSTANCES, KV_TOKENS = 8, 1_000_000
OPEN = AdmissionConfig(enabled=True, max_wait_s=7 * 86_400.0)
ASKED = {"plain": (8, 16, 24, 32, 48), "qwen3-32b-2xh100": (24,)}  # sessions per instance
EDGE = (18, 20, 21)  # about where their contexts fill the memory: 8 M tokens of 49,000 each are 20 per instance
THRASHES = 24  # from so many on


def served(profile: str, per_instance: int, window: Window, *, admission: bool) -> SimulationFigures:
    scenario = Scenario(
        profile=replace(options.load_profile(profile), kv_tokens=KV_TOKENS),
        instances=INSTANCES,
        admission=OPEN if admission else None,
    )
    at_once = INSTANCES * per_instance
    agents = source.load_workload("codex", seed=1, sessions=6 * at_once)
    return figures_of(scenario, "warm", agents, at_once, window)


def lines(
    what: str, per_instance: int, without: Mapping[int, SimulationFigures], behind: SimulationFigures
) -> list[Line]:
    """`without`: the same fleet without a door, by sessions per instance; `behind`: with it."""
    faster = ratio(behind.requests_per_s, without[per_instance].requests_per_s)
    if per_instance < THRASHES:
        return [Line(f"{what}: throughput with / without", "0.96 or more", faster, low=0.96)]
    best_at = max(without, key=lambda per: without[per].requests_per_s)
    best = without[best_at]
    most = ratio(best.requests_per_s, without[per_instance].requests_per_s)
    share = ratio(behind.input_tokens_per_s, best.input_tokens_per_s)
    why = f"{what}: the best without a door, at {best_at}, is {most:.2f} times as fast" if most else ""
    return [
        Line(f"{what}: throughput with / without", "3.5 or more", faster, low=3.5, why=why),
        Line(f"{what}: share of the best without a door", "", share, low=0.85),
        Line(f"{what}: wait at the door p50", "", behind.waited_p50_s, unit="s"),
        Line(f"{what}: wait at the door p90", "", behind.waited_p90_s, unit="s"),
    ]


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    window = Window(600.0, 1200.0) if reduced else Window(1000.0, 3000.0)
    found: list[Line] = []
    for profile, asked in ASKED.items():
        without: dict[int, SimulationFigures] = {}
        for per in sorted({*asked, *EDGE}):
            say(f"{profile}: {per} sessions per instance")
            without[per] = served(profile, per, window, admission=False)
        for per in asked:
            say(f"{profile}: {per} sessions per instance, behind a door")
            behind = served(profile, per, window, admission=True)
            found += lines(f"{profile}, {per} per instance", per, without, behind)
    return found


ROWS = (Row("admission", "The door, codex in a closed loop, 8 instances of 1 M KV tokens", measure, 600.0, 120.0),)
