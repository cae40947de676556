"""Check the policies: each distinguishes targets by the facts that it reads, and starts from realistic speeds.

A policy decides made-up requests, for which one of two otherwise equal targets holds the prompt, or is idle. If its
choice does not depend on which target that is, the policy cannot distinguish targets by this fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from statistics import median

from router.config.schema import SpeedPrior
from router.errors import ConfigError
from router.operate.doctor.check import Check
from router.operate.doctor.finding import Edit, FleetFinding
from router.operate.doctor.subject import Json, Subject
from router.scheduling.policy.policy import Policy, PolicyFault, build_policy
from scorers.contract import Load, Needs, Overlap, Row, Speed, View

PROMPT_TOKENS, BLOCK_TOKENS = 8192, 16
TRIALS = 16  # made-up requests; a policy that draws lots draws the same for both views of a request
MIN_RECORDS = 50
FAR = 4.0  # a prior is far off if it differs from the learned speed by this factor or more
PRIOR_SAMPLES = 12
TYPICAL_TOKENS = 2000  # the length of the prompt whose cost is compared

IDLE = Load(0, 0, 0, 0, 0.0, 0, 0, 0.0, 0, 0.1, None, None)
BUSY = Load(16, 8, 60_000, 200_000, 6000.0, 16, 8, 0.9, 0, 0.1, None, None)
PRIOR = Speed(10.0, 100.0, 2.0, 0, None, None, None, None, None)
NOTHING, HELD = (Overlap(n, n, n, n, "events", 0.1) for n in (0, PROMPT_TOKENS - BLOCK_TOKENS))


def check_tell_apart(subject: Subject) -> Iterator[FleetFinding]:
    """A policy that reads caches or load chooses by them."""
    for name, policy in _in_force(subject).items():
        blind = [word for word, need, views in WAYS if need in policy.needs and not _distinguishes(policy, views)]
        if not blind:
            continue
        inline = subject.config is not None and name in subject.config.policies
        place = subject.place("policies", name, "scorers") if inline else subject.place("active")
        yield FleetFinding(
            "fault",
            f"policy {name} cannot tell targets apart by their {' and '.join(blind)}",
            "it computes costs that decide nothing: requests go where chance sends them",
            "scorers: weights above 0, and none that outweighs the others; warmroute policies lists those that ship",
            (),
            place,
        )


def check_blind(subject: Subject) -> Iterator[FleetFinding]:
    """With tokenizers configured, some policy in force reads caches."""
    policies = _in_force(subject)
    if subject.config is None or not subject.config.tokenizers or not policies:
        return
    if not any(policy.needs_cache for policy in policies.values()):
        yield FleetFinding(
            "warning",
            f"no policy in force looks at caches ({', '.join(policies)}), though tokenizers are configured",
            "hits happen by chance",
            "active: warm",
            (),
            subject.place("active"),
            Edit(("active",), "warm"),
        )


def check_ties(subject: Subject) -> Iterator[FleetFinding]:
    """In a running router candidates have different costs."""
    for router in subject.routers:
        policies = router.policies or {}
        if "CACHE" not in policies.get("needs", ()):
            continue
        costs = [costs for record in router.records if len(costs := _costs(record)) > 1]
        ties = sum(len(set(each)) == 1 for each in costs)
        if len(costs) >= MIN_RECORDS and ties > 0.95 * len(costs):
            yield FleetFinding(
                "fault",
                f"in {ties} of the last {len(costs)} choices all candidates had the same cost",
                "requests go where chance sends them",
                f"active: another policy than {policies.get('active')}; see policies.tell_apart and events.arriving",
                (router.url,),
                subject.place("active"),
            )


def check_speed_priors(subject: Subject) -> Iterator[FleetFinding]:
    """The configured speed is near the one that a running router learned."""
    prior = SpeedPrior() if subject.config is None else subject.config.fleet.speed_prior
    expected_ms = _prefill_ms(prior.base_ms, prior.us_per_token, prior.ns_per_token_context)
    for router in subject.routers:
        targets = [target for one in router.instances for target in one.get("targets", ())]
        speeds = [t["speed"] for t in targets if (t.get("speed") or {}).get("samples", 0) >= PRIOR_SAMPLES]
        if not speeds:
            continue
        learned_ms = median(_prefill_ms(s["base_ms"], s["us_per_token"], s["ns_per_token_context"]) for s in speeds)
        if 1 / FAR < learned_ms / expected_ms < FAR:
            continue
        token_us = max(0.1, round(median(s["us_per_token"] for s in speeds), 1))
        place = None if subject.config is None else subject.place("fleet", "speed_prior", "us_per_token")
        yield FleetFinding(
            "warning",
            f"{TYPICAL_TOKENS:,} tokens take {learned_ms:,.0f} ms to compute there; fleet.speed_prior says "
            f"{expected_ms:,.0f} ms",
            "until it has learned, after each restart and for each new engine, the router weighs caches wrongly",
            f"fleet.speed_prior.us_per_token: {token_us:g}",
            (router.url,),
            place,
            None if subject.config is None else Edit(("fleet", "speed_prior", "us_per_token"), token_us),
        )


def check_refused(subject: Subject) -> Iterator[FleetFinding]:
    """A running router decides by its configuration: no change was rejected, and none waits for a restart."""
    for router in subject.routers:
        policies = router.policies or {}
        for source, error in (policies.get("errors") or {}).items():
            text = str(error.get("text") if isinstance(error, dict) else error).partition("\n")[0]
            why, change = "the earlier policies stay in force", "warmroute check FILE names the line"
            yield FleetFinding("fault", f"refused a change of {source}: {text}", why, change, (router.url,))
        waiting = policies.get("needs_restart") or []
        if waiting:
            what = f"runs with other values of {', '.join(map(str, waiting))} than its file has"
            why, change = "the file does not say what happens", "restart the router"
            place = subject.place(*str(waiting[0]).split("."))
            yield FleetFinding("warning", what, why, change, (router.url,), place)


def _in_force(subject: Subject) -> dict[str, Policy]:
    """Build the active policy and those of the experiment's arms, except those that cannot be built."""
    found = {}
    for name in _names_in_force(subject):
        with suppress(ConfigError):  # a reserved name, with which no router starts
            found[name] = build_policy(name, subject.policies[name])
    return found


def _names_in_force(subject: Subject) -> list[str]:
    config = subject.config
    if config is None:
        return []
    arms = () if config.experiment is None else config.experiment.policies.values()
    return [name for name in dict.fromkeys((config.active, *arms)) if name in subject.policies]


def _distinguishes(policy: Policy, views: Sequence[Callable[[int, int], View]]) -> bool:
    """Return whether, for any of the made-up requests, the choice depends on which of two targets is the better
    one.
    """
    try:
        return any(
            policy.decide(view(n, 0)).target != policy.decide(view(n, 1)).target
            for view in views
            for n in range(TRIALS)
        )
    except PolicyFault:
        return True  # it fails for another reason, which the router counts and reports


def _with_cache(number: int, holder: int) -> View:
    return _view(number, *(_row(i, HELD if i == holder else NOTHING, IDLE) for i in range(2)))


def _with_history(number: int, holder: int) -> View:
    """Return a view of a later turn of a session that the holder served before."""
    view = _with_cache(number, holder)
    return view._replace(last_target=f"e{holder}/0", session_turn=3, idle_s=1.0, turn=3)


def _with_prefix(number: int, other: int) -> View:
    """Return one of two requests whose prompts begin differently; hashing policies place requests by this
    beginning.
    """
    prefix = 2 * number + other
    rows = (_row(i, NOTHING, IDLE) for i in range(2))
    return _view(0, *rows)._replace(prefix=prefix, prefixes=(prefix,))


def _with_load(number: int, idle: int) -> View:
    return _view(number, *(_row(i, NOTHING, IDLE if i == idle else BUSY) for i in range(2)))


def _row(i: int, overlap: Overlap, load: Load) -> Row:
    held_tokens = HELD.gpu_tokens  # the same everywhere: free memory breaks ties, which would hide a blind policy
    return Row(f"e{i}/0", f"e{i}", 0, BLOCK_TOKENS, 65_536, overlap, load, PRIOR, held_tokens)


def _view(number: int, *rows: Row) -> View:
    session = f"s{number}"
    return View(number, 1, "m", None, PROMPT_TOKENS, number, session, None, None, 0.5, rows, nominal=PRIOR)


def _costs(record: Json) -> list[float]:
    attempts = record.get("attempts") or []
    return [round(candidate["cost"], 6) for candidate in attempts[-1].get("candidates", ())] if attempts else []


def _prefill_ms(base_ms: float, us_per_token: float, ns_per_pair: float) -> float:
    return PRIOR._replace(base_ms=base_ms, us_per_token=us_per_token, ns_per_token_context=ns_per_pair).prefill_ms(
        TYPICAL_TOKENS, 0
    )


WAYS = (
    ("cache", Needs.CACHE, (_with_cache, _with_history, _with_prefix)),
    ("load", Needs.LOAD, (_with_load,)),
)
CHECKS = (
    Check("policies.tell_apart", "policies that read caches or load choose by them", "configuration", check_tell_apart),
    Check("policies.blind", "with tokenizers, some policy reads caches", "configuration", check_blind),
    Check("policies.ties", "in a running router candidates have different costs", "router", check_ties),
    Check("policies.refused", "a running router decides by its configuration", "router", check_refused),
    Check("policies.speed_priors", "configured speeds are near the learned ones", "router", check_speed_priors),
)
