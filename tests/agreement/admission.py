"""Admission rule `fit`: throughput with it over throughput without it, where contexts fit the memory and where not.

No published experiment, but the goal that was set for the rule by the search that found it: 8 instances of 1 million KV
tokens, `codex` in a closed loop, 24, 32 and 48 sessions per instance at least 3.5 times as fast, at most 4 % lost where
everything fits or nearly so (8 and 16). That search simulated prefills only; of the profiles `plain` is nearest to it.

What a rule can reach has a bound that is measured here: the best that the same fleet serves without admission control,
at any of the numbers of sessions asked for or of `EDGE`. Contexts just fill its memory there, and holding back sessions
can only get the fleet back to that. So the most to be won is that best over what the fleet serves when it thrashes.

What `fit` reaches of that best is a line of its own, in prompt tokens, since admitted sessions may be older or younger
than the mean. Its bar of 0.85 leaves room for what a rule cannot know. At 48 in the reduced window the fullest of 8
instances held 0.98 M live tokens and the emptiest 0.59 M, 6.4 M in all, beside 1.75 M of sessions that had ended within
the last minute: clients do not say that a session has ended.

Sessions are met in mid-course and nobody is refused (`max_wait_s` is a week). The full window begins when both fleets
have settled; the reduced one still sees those who came first, all at once, which costs a twelfth at 48.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from router.config.sections.admission import AdmissionConfig
from router.lab.simulator.outcome import SimulationFigures
from router.lab.simulator.scenario import Scenario
from router.lab.sweep import options
from router.lab.workloads import source
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
    what: str, per_instance: int, without: Mapping[int, SimulationFigures], admitted: SimulationFigures
) -> list[Line]:
    """Return the lines of one load. `without`: figures without admission control, by sessions per instance."""
    faster = ratio(admitted.requests_per_s, without[per_instance].requests_per_s)
    if per_instance < THRASHES:
        return [Line(f"{what}: throughput with / without", "0.96 or more", faster, low=0.96)]
    best_at = max(without, key=lambda per: without[per].requests_per_s)
    best = without[best_at]
    most = ratio(best.requests_per_s, without[per_instance].requests_per_s)
    share = ratio(admitted.input_tokens_per_s, best.input_tokens_per_s)
    why = f"{what}: the best without admission, at {best_at}, is {most:.2f} times as fast" if most else ""
    return [
        Line(f"{what}: throughput with / without", "3.5 or more", faster, low=3.5, why=why),
        Line(f"{what}: share of the best without admission", "", share, low=0.85),
        Line(f"{what}: wait for admission p50", "", admitted.waited_p50_s, unit="s"),
        Line(f"{what}: wait for admission p90", "", admitted.waited_p90_s, unit="s"),
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
            say(f"{profile}: {per} sessions per instance, with admission")
            admitted = served(profile, per, window, admission=True)
            found += lines(f"{profile}, {per} per instance", per, without, admitted)
    return found


ROWS = (
    Row("admission", "Admission by `fit`, codex in a closed loop, 8 instances of 1 M KV tokens", measure, 600.0, 120.0),
)
