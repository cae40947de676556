"""Check the token ids: the configured tokenizers and chat templates give the ids that engines generate from, proved
on real texts.

If a tokenizer differs in one token, all blocks from there on are different blocks, and nothing fails: hits are
simply not found. The router also proves its tokenizers, when an engine joins; if one is wrong, it queries the
engines instead, which costs time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from router.fleet.silent_fault import SLOWER_IDS, TOKENIZER_MODELS, judge_tokenizer
from router.operate.doctor.check import Check
from router.operate.doctor.finding import FleetFinding, report
from router.operate.doctor.subject import Subject
from router.prompt.tokenization.renderer import START_DATE
from router.scheduling.policy.timeline import is_blind

COSTS_HITS = "chats are placed by their session and by load: later turns of chats without a session hit by chance only"
NAME_SESSIONS = "clients: name the session of each chat (docs/features/agents.md); nothing else makes its ids known"
LATE_SHARE = 0.02
BLIND_SHARE = 0.05
MIN_RECORDS = 50


def check_models(subject: Subject) -> Iterator[FleetFinding]:
    """Every tokenizer is for a model that is served."""
    config, served = subject.config, {engine.model for engine in subject.usable if engine.model is not None}
    if config is None or not served or len(subject.usable) < len(subject.engines):
        return
    adapters = {name for engine in subject.usable if engine.usable for name in engine.usable.adapters}
    for model in config.tokenizers:
        if (fault := judge_tokenizer(model, served, adapters, config.tokenizers)) is not None:
            finding = report(fault, (), subject.place("tokenizers", model))
            yield finding if served - config.tokenizers.keys() else finding._replace(severity="warning")


def check_agree(subject: Subject) -> Iterator[FleetFinding]:
    """Our ids of texts and chats equal the engine's."""
    for engine in subject.usable:
        proof, model = engine.proof, engine.model or ""
        if proof is None:
            continue
        if proof.no_ids is not None:
            yield FleetFinding(
                "warning", f"chats of {model}: {proof.no_ids}", COSTS_HITS, NAME_SESSIONS, (engine.name,)
            )
        elif proof.engine_fails is not None:
            yield FleetFinding(
                "unchecked", proof.engine_fails, "the tokenizer is not proved there", "look whether it is overloaded",
                (engine.name,),
            )  # fmt: skip
        elif proof.differing is not None and proof.is_chat:
            yield FleetFinding(
                "fault",
                f"renders chats of {model} otherwise: the chat {proof.differing!r} has other ids",
                SLOWER_IDS,
                f"tokenizers.{model}.chat_template: the engine's --chat-template, and template_kwargs its defaults",
                (engine.name,),
                subject.place("tokenizers", model, "chat_template"),
            )
        elif proof.differing is not None:
            yield FleetFinding(
                "fault",
                f"has another tokenizer than tokenizers.{model}.path",
                SLOWER_IDS,
                f"path: the folder of the model that it serves, {engine.usable.root if engine.usable else None}",
                (engine.name,),
                subject.place("tokenizers", model, "path"),
            )


def check_dates(subject: Subject) -> Iterator[FleetFinding]:
    """Prompts do not change at midnight."""
    for engine in subject.usable:
        if engine.proof is not None and (date := engine.proof.daily_date) is not None:
            yield FleetFinding(
                "warning",
                f"puts the present date into all prompts of {engine.model}: {date}",
                "after midnight no cache has any prompt",
                f"engine and router: {START_DATE}=2026-01-01 in the environment, or any other date",
                (engine.name,),
            )


def check_counts(subject: Subject) -> Iterator[FleetFinding]:
    """Prompts of every kind have as many tokens as the engine counts."""
    answered = [(engine, kind) for engine in subject.usable for kind in engine.answered_kinds]
    for engine, kind in answered:
        if kind.unknown is not None and kind.unknown not in ("media", "renderer"):  # tokens.agree explains these
            yield FleetFinding(
                "fault",
                f"the ids of a prompt ({kind.kind}) cannot be found: {kind.unknown}",
                "such requests are placed by load alone",
                "tokenizers: a local tokenizer; or look whether the engine answers POST /tokenize",
                (engine.name,),
                subject.place("tokenizers"),
            )
        elif None not in (kind.counted_tokens, kind.prompt_tokens) and kind.counted_tokens != kind.prompt_tokens:
            yield FleetFinding(
                "fault",
                f"counts other tokens in requests to {kind.kind}: ours {kind.counted_tokens}, its {kind.prompt_tokens}",
                "their blocks are other blocks than the router looks for",
                "tokens: one version of vLLM that this router knows; see docs/reference, and report it",
                (engine.name,),
            )


def check_in_use(subject: Subject) -> Iterator[FleetFinding]:
    """A running router uses its own tokenizers, and finds ids within the budget."""
    for router in subject.routers:
        for one in router.instances:
            tokenizer = one.get("tokenizer") or {}
            refuted = (tokenizer.get("refuted") or {}).get(one["id"])
            if (trouble := tokenizer.get("trouble")) is not None:
                what = f"the router has no ids of chats: {trouble}"
                yield FleetFinding("warning", what, COSTS_HITS, NAME_SESSIONS, (str(one["id"]),))
            elif refuted is not None:
                what = f"the router found other ids there: {refuted}"
                change = "see tokens.agree"
                yield FleetFinding("fault", what, SLOWER_IDS, change, (str(one["id"]),), subject.place("tokenizers"))
        found = Counter(record.get("tokens_from") for record in router.records)
        total = sum(found.values())
        blind = {str(why): n for why, n in found.items() if is_blind(str(why))}
        late = {str(why): n for why, n in found.items() if why in ("late", "tokenizer_busy", "tokenizer_silent")}
        if total >= MIN_RECORDS and sum(late.values()) > LATE_SHARE * total:
            share = 100 * sum(late.values()) / total
            yield FleetFinding(
                "fault",
                f"{share:.0f} % of the last {total} prompts were placed without ids: {', '.join(sorted(late))}",
                "they hit a cache by chance only",
                "tokens.budget_ms: more; or tokenizers: a local tokenizer for each model",
                (router.url,),
                subject.place("tokens", "budget_ms"),
            )
        elif total >= MIN_RECORDS and sum(blind.values()) > BLIND_SHARE * total:
            share = 100 * sum(blind.values()) / total
            reasons = ", ".join(f"{why} {n}" for why, n in sorted(blind.items(), key=lambda one: -one[1]))
            yield FleetFinding(
                "warning",
                f"{share:.0f} % of the last {total} prompts were placed without ids: {reasons}",
                COSTS_HITS,
                NAME_SESSIONS,
                (router.url,),
            )


CHECKS = (
    Check(TOKENIZER_MODELS, "every tokenizer is for a model that is served", "engines", check_models),
    Check("tokens.agree", "tokenizers and chat templates give the engines' ids", "engines", check_agree),
    Check("tokens.dates", "prompts do not change at midnight", "engines", check_dates),
    Check("tokens.counts", "prompts of every kind have as many tokens as the engine counts", "prompts", check_counts),
    Check("tokens.in_use", "a running router uses its tokenizers, within the budget", "router", check_in_use),
)
