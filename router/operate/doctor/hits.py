"""Check the hits: the engine delivers what its events promise of a prompt, for each kind of request by itself.

Hits are lost in two ways: the engine has blocks that the router does not know of, so no request is sent there for
them; or the router believes that the engine has blocks that it lacks, so requests are sent there for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from router.operate.doctor.check import Check
from router.operate.doctor.engines import block_tokens_of
from router.operate.doctor.finding import FleetFinding
from router.operate.doctor.subject import ExaminedEngine, Json, KindProbe, Subject
from router.operate.doctor.survey import DEFAULT_BLOCK_TOKENS

NAMES = {
    "completions": "completions",
    "chat": "chat completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "lora": "requests with an adapter",
    "salt": "requests with cache_salt",
    "media": "chats with an image",
}
MENDS = {
    "lora": "engine: vLLM 0.16 or later, whose events name the adapter",
    "salt": "engine: vLLM 0.19 or later, whose events carry the salt",
    "media": "engine: vLLM 0.19 or later, whose events carry the ids of media",
}
MIN_RECORDS = 20  # records of one kind at one engine
LOST_SHARE = 0.05  # of the prompts' tokens
CAUSES = {
    "reasoning": ("the model drops reasoning from earlier turns", "it was trained so: plan with these prefills"),
    "tools": ("the model moves the tools to the last question", "a tokenizer of version v13 or later leaves them"),
    "template": (
        "the chat template prints earlier turns otherwise",
        "a template that leaves them as they were",
    ),
}
LOW_SHARE = 0.7  # as in the alert WarmroutePredictionsBroken


def check_cached(subject: Subject) -> Iterator[FleetFinding]:
    """The second of two equal prompts hits the cache."""
    for engine, kind in _kinds(subject):
        block = block_tokens_of(engine) or DEFAULT_BLOCK_TOKENS
        long_enough = (kind.prompt_tokens or 0) > 2 * block
        if long_enough and not kind.cached_tokens and not kind.promised_tokens and _reports(engine):
            yield FleetFinding(
                "fault",
                f"computes the same prompt twice: nothing of {NAMES[kind.kind]} is cached",
                "no such request can hit there",
                "engine: look for options that turn caching off for them (prompt_logprobs, a pooling model)",
                (engine.name,),
            )


def check_agree(subject: Subject) -> Iterator[FleetFinding]:
    """The engine delivers the hits that its events promise of a prompt."""
    for engine, kind in _kinds(subject):
        if kind.promised_tokens is None or not _has_events(engine) or not _reports(engine):
            continue
        block = block_tokens_of(engine) or DEFAULT_BLOCK_TOKENS
        delivered = min(kind.cached_tokens or 0, kind.known_tokens)
        if delivered - kind.promised_tokens >= block and _same_ids(kind):
            yield FleetFinding(
                "fault",
                f"hits of {NAMES[kind.kind]} are not predicted: {delivered} tokens cached, "
                f"{kind.promised_tokens} announced",
                "they are sent to engines that do not have their prompts",
                MENDS.get(kind.kind, "engine: vLLM that announces them; see tokens.agree"),
                (engine.name,),
            )
        elif kind.promised_tokens - delivered > block:  # speculative decoding leaves the last block out
            yield FleetFinding(
                "warning",
                f"{NAMES[kind.kind]} do not hit what its events announce: {kind.promised_tokens} tokens announced, "
                f"{delivered} cached",
                "requests are sent there for nothing",
                "url: of one engine, not of a balancer; else its cache is too small, see docs/plan/capacity.md",
                (engine.name,),
                engine.place("url"),
            )


def check_records(subject: Subject) -> Iterator[FleetFinding]:
    """Each engine delivered the hits that a running router predicted for its last requests, for each kind."""
    adapters = {name for engine in subject.usable if engine.usable for name in engine.usable.adapters}
    for router in subject.routers:
        sums: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for record in router.records:
            if (pair := _predicted_and_delivered(record)) is not None:
                sums[str(record["target"]).rpartition("/")[0], _kind_of(record, adapters)].append(pair)
        for (instance, kind), pairs in sums.items():
            predicted, delivered = (sum(column) for column in zip(*pairs, strict=True))
            if len(pairs) < MIN_RECORDS:
                continue
            if delivered < LOW_SHARE * predicted:
                share = 100 * delivered / predicted
                yield FleetFinding(
                    "fault",
                    f"delivers {share:.0f} % of the hits predicted for the last {len(pairs)} requests ({NAMES[kind]})",
                    "requests are sent there for nothing",
                    "see events.replay; if its cache is too small, docs/plan/capacity.md",
                    (instance,),
                )
            elif predicted < LOW_SHARE * delivered:
                yield FleetFinding(
                    "fault",
                    f"delivered {delivered:,} cached tokens in {len(pairs)} requests ({NAMES[kind]}), "
                    f"{predicted:,} predicted",
                    "hits happen by chance: the router does not know what is cached there",
                    "see tokens.agree and events.arriving",
                    (instance,),
                )


def check_history(subject: Subject) -> Iterator[FleetFinding]:
    """Chats repeat their turns before."""
    for router in subject.routers:
        total = sum(record.get("prompt_tokens") or 0 for record in router.records)
        ends = [end for record in router.records if (end := record.get("prefix_end")) is not None]
        for cause, (what, change) in CAUSES.items():
            found = [end["of_tokens"] - end["tokens"] for end in ends if end["cause"] == cause]
            if len(router.records) >= MIN_RECORDS and sum(found) > LOST_SHARE * total:
                share = 100 * sum(found) / total
                yield FleetFinding(
                    "warning",
                    f"{what}: {share:.0f} % of the tokens of the last {len(router.records)} prompts",
                    "these are computed again, wherever a request is sent",
                    f"{change}; see docs/features/which-models.md",
                    (router.url,),
                )


def _predicted_and_delivered(record: Json) -> tuple[int, int] | None:
    attempts = record.get("attempts") or []
    if not record.get("done") or record.get("status") != 200 or len(attempts) != 1 or attempts[0].get("prefill"):
        return None
    predicted, delivered = attempts[0].get("predicted_tokens"), record.get("cached_tokens")
    return None if predicted is None or delivered is None else (predicted, delivered)


def _kind_of(record: Json, adapters: set[str]) -> str:
    if record.get("model") in adapters:
        return "lora"
    if record.get("tokens_from") == "media":
        return "media"
    by_path = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}
    return by_path.get(str(record.get("endpoint")), "completions")


def _kinds(subject: Subject) -> Iterator[tuple[ExaminedEngine, KindProbe]]:
    """Yield each answered kind of request of the engines that cache and are alone at their address."""
    for engine in subject.usable:
        survey = engine.usable
        alone = survey is not None and len(survey.starts) <= max(1, len(survey.gauges))
        if not alone or survey is None or survey.prefix_caching is False:
            continue
        for kind in engine.answered_kinds:
            yield engine, kind


def _reports(engine: ExaminedEngine) -> bool:
    """Return whether the engine reports cached tokens. It omits them from answers without a hit, so one report
    suffices for all kinds; /v1/messages and /v1/responses do not count, since their 0 may mean not reported.
    """
    kinds = engine.probe.kinds if engine.probe is not None else ()
    return any(one.cached_tokens is not None for one in kinds if one.kind not in ("messages", "responses"))


def _has_events(engine: ExaminedEngine) -> bool:
    return engine.probe is not None and bool(engine.probe.streams) and engine.probe.streams[0].own


def _same_ids(kind: KindProbe) -> bool:
    return kind.counted_tokens is None or kind.prompt_tokens is None or kind.counted_tokens == kind.prompt_tokens


CHECKS = (
    Check("hits.cached", "the second of two equal prompts hits the cache, for each kind", "prompts", check_cached),
    Check("hits.agree", "what events promise is delivered, for each kind of request", "prompts", check_agree),
    Check("hits.records", "what a router predicted for its last requests was delivered", "router", check_records),
    Check("hits.history", "chats repeat the prompts of their turns before", "router", check_history),
)
