"""Check the engines: they answer, match the configuration, and have the features enabled that the router needs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from router.config.schema import InstanceConfig
from router.fleet.silent_fault import PREFIX_CACHING, judge_prefix_caching
from router.operate.doctor.check import Check
from router.operate.doctor.finding import FleetFinding, report
from router.operate.doctor.subject import ExaminedEngine, Subject
from router.operate.doctor.survey import EngineSurvey

OLDEST = (0, 19)  # earlier events carry no extra keys, which distinguish salted prompts and prompts with media
TAGGED = (0, 31)  # since this version, adapters and salts are hashed with a tag


def check_reachable(subject: Subject) -> Iterator[FleetFinding]:
    """Each engine answers /health and lists its models."""
    for engine in subject.engines:
        survey = engine.survey
        if survey is None or survey.error is None:
            continue
        what, key, change = _describe_refusal(engine.config, survey)
        why = "it gets no requests, and what it has cached is not used"
        yield FleetFinding("fault", what, why, change, (engine.name,), engine.place(key))
    if not subject.engines and subject.config is not None and not subject.unfinished:
        fleet = subject.config.fleet
        if fleet.embedded is None and subject.config.stack is None:
            why, change = "every request is answered with 503", "list engines in fleet.instances, or mend the source"
            yield FleetFinding("fault", "the fleet has no engines now", why, change, (), subject.place("fleet"))


def _describe_refusal(config: InstanceConfig, survey: EngineSurvey) -> tuple[str, str, str]:
    """Return the fault, the configuration key of the instance to look at, and the change to make."""
    port = urlsplit(config.url).port
    match survey.refusal:
        case "key":
            if config.api_key_env is None:
                return (
                    "refuses requests without an API key",
                    "api_key_env",
                    "api_key_env: NAME  # variable with its key",
                )
            return (
                f"refuses the API key in {config.api_key_env}",
                "api_key_env",
                f"export {config.api_key_env}=its --api-key",
            )
        case "plain":
            return "does not speak TLS", "url", f"url: http://{urlsplit(config.url).netloc}"
        case "untrusted":
            change = "ca_file: FILE  # PEM of the authority that signed its certificate"
            return (survey.error or "").removeprefix("no answer: "), "ca_file", change
        case "unhealthy":
            return f"answers {survey.error}", "url", "restart it, and look at its log: its engine core has died"
        case "slow":
            return "does not answer in time", "url", "look whether its process hangs, or a firewall drops packets"
        case "unreachable":
            change = f"start it there, or url: http://HOST:PORT where it listens (not {config.url})"
            reason = (survey.error or "").removeprefix("no answer: ")
            return f"cannot be connected to at port {port}: {reason}", "url", change
        case _:
            return f"does not answer as a vLLM engine: {survey.error}", "url", "url: the base URL of `vllm serve`"


def check_one_each(subject: Subject) -> Iterator[FleetFinding]:
    """Behind each address is one engine, and each engine is listed once."""
    for engine in subject.usable:
        survey = engine.usable
        if survey is not None and len(survey.starts) > max(1, len(survey.gauges)):
            yield FleetFinding(
                "fault",
                "several engines answer at this address: it is that of a load balancer or a Service",
                "the router counts them as one, so what it knows of caches and load belongs to none of them",
                "url: of each engine by itself; fleet.dns with a headless Service, or fleet.kubernetes, lists them",
                (engine.name,),
                engine.place("url"),
            )
    seen: dict[frozenset[bytes], ExaminedEngine] = {}
    for engine in subject.usable:
        starts = engine.usable.starts if engine.usable else frozenset()
        if starts and (first := seen.setdefault(starts, engine)) is not engine:
            why = "its load and its cache are counted twice, so half of what is planned for it cannot be had"
            change = f"remove this entry, or {first.name}"
            yield FleetFinding(
                "fault", f"is the same engine as {first.name}", why, change, (engine.name,), engine.place("url")
            )


class Difference(NamedTuple):
    """A fact in which engines differ."""

    usual: Hashable  # the value of most engines
    values: str  # all values, as text
    odd: tuple[str, ...]  # the ids of the engines with another value


def find_difference(
    engines: Iterable[ExaminedEngine], fact: Callable[[ExaminedEngine], Hashable | None]
) -> Difference | None:
    """Return how the engines differ in a fact. None if all engines for which the fact is known agree."""
    facts = {engine.name: value for engine in engines if (value := fact(engine)) is not None}
    counts = Counter(facts.values())
    if len(counts) < 2:
        return None
    usual = counts.most_common(1)[0][0]
    values = " and ".join(sorted(str(value) for value in counts))
    return Difference(usual, values, tuple(name for name, value in facts.items() if value != usual))


def check_models(subject: Subject) -> Iterator[FleetFinding]:
    """Engines of one model serve it under one name, and one name is one model."""
    by_root: defaultdict[str, list[ExaminedEngine]] = defaultdict(list)
    for engine in subject.usable:
        if engine.usable is not None and engine.usable.root:
            by_root[engine.usable.root.rstrip("/")].append(engine)
    for root, engines in by_root.items():
        if (names := find_difference(engines, lambda one: one.model)) is not None:
            yield FleetFinding(
                "fault",
                f"{root} is served under different names: {names.values}",
                "requests for one name never reach the other engines, nor their caches",
                f"engine: --served-model-name {names.usual}",
                names.odd,
            )
    for model, engines in subject.by_model().items():
        if (roots := find_difference(engines, _last_of_root)) is not None:
            yield FleetFinding(
                "fault",
                f"different models are served as {model}: {roots.values}",
                "the same request is answered by one or the other, and their KV is not interchangeable",
                "engine: --served-model-name of its own for each model",
                roots.odd,
            )


def check_lengths(subject: Subject) -> Iterator[FleetFinding]:
    """Engines of one model accept prompts of the same maximum length."""
    for model, engines in subject.by_model().items():
        if (lengths := find_difference(engines, _length)) is not None:
            yield FleetFinding(
                "warning",
                f"other longest prompts of {model} than elsewhere: {lengths.values} tokens",
                "a long prompt is refused with 400 when it is sent to an engine with the shorter one",
                f"engine: --max-model-len {lengths.usual}",
                lengths.odd,
            )


def check_versions(subject: Subject) -> Iterator[FleetFinding]:
    """Engines of one model run one version of vLLM, whose events distinguish salted prompts and media."""
    for engine in subject.usable:
        if (release := _release(engine)) is not None and release < OLDEST:
            yield FleetFinding(
                "warning",
                f"vLLM {release[0]}.{release[1]} leaves salts and media out of its events",
                "hits of requests with cache_salt or media are not predicted there",
                "engine: vLLM 0.19 or later",
                (engine.name,),
            )
    pooled = subject.config is not None and subject.config.pool is not None
    for model, engines in subject.by_model().items():
        versions = find_difference(engines, lambda one: None if one.usable is None else one.usable.version)
        if versions is None:
            continue
        releases = [release for engine in engines if (release := _release(engine)) is not None]
        apart = pooled and min(releases, default=TAGGED) < TAGGED <= max(releases, default=TAGGED)
        why = "the same prompt may be rendered, tokenised and computed in two ways"
        yield FleetFinding(
            "fault" if apart else "warning",
            f"another version of vLLM than elsewhere: {versions.values}",
            "salted and adapter prompts are hashed in two ways, so the pool is not shared" if apart else why,
            f"engine: one version for all engines of {model}",
            versions.odd,
        )


def check_prefix_caching(subject: Subject) -> Iterator[FleetFinding]:
    """Prefix caching is on."""
    for engine in subject.usable:
        on = None if engine.usable is None else engine.usable.prefix_caching
        if on is not None and (fault := judge_prefix_caching(on)) is not None:
            yield report(fault, (engine.name,))


def check_metrics(subject: Subject) -> Iterator[FleetFinding]:
    """The metrics page reports the engine's load and the size of its cache."""
    for engine in subject.usable:
        if engine.usable is not None and not engine.usable.gauges:
            why = "the router does not see requests of others, nor the size of the cache"
            yield FleetFinding(
                "fault", "its /metrics has no figures", why, "engine: no --disable-log-stats", (engine.name,)
            )


def check_answers(subject: Subject) -> Iterator[FleetFinding]:
    """A small prompt is answered."""
    for engine in subject.usable:
        for kind in engine.probe.kinds if engine.probe is not None else ():
            if kind.error is not None and not kind.error.startswith("status 4"):
                yield FleetFinding(
                    "fault",
                    f"does not answer a small prompt ({kind.kind}): {kind.error}",
                    "requests fail there, or wait, until its breaker opens",
                    "look at its log and at its queue in /metrics; drain it meanwhile",
                    (engine.name,),
                    engine.place("url"),
                )
                break


def check_prompt_token_details(subject: Subject) -> Iterator[FleetFinding]:
    """Answers report how many tokens of the prompt were cached."""
    for engine in subject.usable:
        probe = engine.probe
        if probe is None or (engine.usable is not None and engine.usable.prefix_caching is False):
            continue
        plain = [kind for kind in engine.answered_kinds if kind.kind in ("completions", "chat")]
        promised = [kind for kind in plain if kind.promised_tokens or not probe.streams]
        if promised and all(kind.cached_tokens is None for kind in promised):
            yield FleetFinding(
                "fault",
                "does not report cached tokens",
                "nobody notices when predicted hits do not happen: wrong events keep their trust",
                "engine: --enable-prompt-tokens-details",
                (engine.name,),
            )


def check_blocks(subject: Subject) -> Iterator[FleetFinding]:
    """Engines of one model have blocks of one size."""
    for model, engines in subject.by_model().items():
        if (sizes := find_difference(engines, block_tokens_of)) is not None:
            yield FleetFinding(
                "warning",
                f"other blocks than elsewhere: {sizes.values} tokens",
                f"prompts of {model} are hashed once per size, and they share no pool and make no pairs",
                f"engine: --block-size {sizes.usual}",
                sizes.odd,
            )


def block_tokens_of(engine: ExaminedEngine) -> int | None:
    """Return the engine's tokens per block from its events, else from its metrics page. None: unknown."""
    observed = () if engine.probe is None else engine.probe.streams
    found = next((stream.block_tokens for stream in observed if stream.own and stream.block_tokens), None)
    return found or (None if engine.usable is None else engine.usable.block_tokens)


def _last_of_root(engine: ExaminedEngine) -> str | None:
    root = None if engine.usable is None else engine.usable.root
    return None if root is None else root.rstrip("/").rpartition("/")[2]


def _length(engine: ExaminedEngine) -> int | None:
    if engine.usable is None:
        return None
    return next((card.max_model_len for card in engine.usable.cards if card.parent is None), None)


def _release(engine: ExaminedEngine) -> tuple[int, int] | None:
    version = None if engine.usable is None else engine.usable.version
    numbers = [part for part in (version or "").split(".")[:2] if part.isdecimal()]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None


CHECKS = (
    Check("engines.reachable", "every engine answers, with its key and certificate", "engines", check_reachable),
    Check("engines.one_each", "one engine per address, and each engine once", "engines", check_one_each),
    Check("engines.models", "one name per model, one model per name", "engines", check_models),
    Check(PREFIX_CACHING, "prefix caching is on", "engines", check_prefix_caching),
    Check("engines.metrics", "/metrics reports load and cache size", "engines", check_metrics),
    Check("engines.answers", "a small prompt is answered", "prompts", check_answers),
    Check("engines.prompt_token_details", "answers say `cached_tokens`", "prompts", check_prompt_token_details),
    Check("engines.versions", "one version of vLLM per model", "engines", check_versions),
    Check("engines.blocks", "one block size per model", "engines", check_blocks),
    Check("engines.lengths", "one context length per model", "engines", check_lengths),
)
