"""Token-id pass-through: decides which prompts are sent to engines with their token ids, which saves the engines
the tokenising.

A prompt qualifies if it was tokenised here, whole, by a trusted tokenizer (`prompt/tokenization/tokenization.py`);
if nothing in the request needs the engine to render it (`backends/vllm/token_ids.py`); if the instance accepts ids
(`support.py`); and if the instance proved that it generates from the same ids (`prompt/tokenization/trust.py`). For
a prompt whose text spells special tokens, the proof must cover such texts too.

An engine that receives ids reports *the router's* count, so such prompts cannot reveal wrong rendering: every
answer would agree. Hence a shape of chat (`shape_of`) is passed with ids only after an engine's own count agreed
with the router's on a prompt of that shape, and every 64th prompt of each shape is sent without ids as a check. By
shape, because a template that fails on tool results fails on those alone, and a share of all prompts might never
contain them; 64, because that costs 1.6 % of the savings, while a shape that has become wrong is found within 64 of
its prompts. After one mismatch all shapes of the model must be verified again, once the local tokenizer is trusted
again.

Savings: on vLLM 0.32 (CPU, tiny model, warm prompts, 2 cores) the time to first token is 0.87 of the time without
ids at 12 to 450 tokens, 0.81 at 5,000, 0.66 at 10,000 and 0.64 at 32,000; the body doubles. So no prompt is too
short for pass-through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from router.backends.token_ids.support import InstanceSupport, TokenIdSupport
from router.backends.vllm.token_ids import refuses_ids
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Chat, Endpoint, Prompt, UnknownIds

CHECK_EVERY = 64
MAX_SHAPES = 256  # per model; the least recently seen shapes must be verified again

Reason = Literal["distrusted", "unproven", "special_text", "length", "prompt_text", "check", "refused"]
Shape = int  # a hash: short whatever the client sent, and not guessable, because CPython seeds its string hashes

MAX_WORD_CHARS = 64  # longer values of template variables do not distinguish shapes


class PassthroughTarget(NamedTuple):
    """An engine to which a prompt is sent. `context_tokens`: its maximum prompt length; None if unknown."""

    instance: str
    context_tokens: int | None


class PassthroughOffer(NamedTuple):
    """A prompt that could be sent with ids, and the instances that receive the ids."""

    model: str
    shape: Shape
    known: TokenizedPrompt
    instances: frozenset[str]


class PassthroughReport(NamedTuple):
    """Counts for the admin API and metrics."""

    instances: Mapping[str, InstanceSupport]  # trial results by instance
    sent: Mapping[str, int]  # attempts with ids, by base model
    not_sent: Mapping[str, int]  # attempts that could have had ids and were sent without, by `Reason`


class ProvedIds(Protocol):
    """Provides the source of the ids from which an engine generates (`prompt/tokenization/tokenization.py`)."""

    def source(self, model: str, endpoint: Endpoint) -> str | None:
        """Return the source of the ids used for prompts of `endpoint`; ids from "local" are passed to engines."""

    def passes(self, model: str, instance: str, tokens: TokenizedPrompt) -> bool:
        """Return whether a chat may be sent to `instance` with its ids."""


class TokenIdPassthrough:
    """Decides for each attempt. `on` False: nothing is tried or passed."""

    def __init__(self, support: TokenIdSupport, proved: ProvedIds, *, on: bool) -> None:
        self._support = support
        self._proved = proved
        self._on = on
        self._shapes: dict[str, dict[Shape, int]] = {}  # by model and shape: prompts sent with ids since the last check
        self._sent: Counter[str] = Counter()
        self._not_sent: Counter[str] = Counter()

    # instances

    def on_joined(self, instance: str, model: str) -> None:
        """Try whether the instance accepts token ids."""
        if self._on:
            self._support.on_joined(instance, model)

    def forget(self, instance: str) -> None:
        """Forget an instance that has left."""
        self._support.forget(instance)

    # prompts

    def offer(
        self,
        prompt: Prompt,
        tokens: TokenizedPrompt | UnknownIds,
        model: str,
        adapter: str | None,
        engines: Iterable[PassthroughTarget],
    ) -> PassthroughOffer | None:
        """Decide about the next attempt at `prompt`, at `engines`. None: the prompt is not sent with ids, and its
        count is not compared.
        """
        source = prompt.source
        if not self._on or prompt.endpoint is not Endpoint.CHAT or not isinstance(source, Chat):
            return None
        if (
            not isinstance(tokens, TokenizedPrompt)
            or tokens.source != "local"
            or not tokens.complete
            or not tokens.json_ids
        ):
            return None
        shape = shape_of(source, adapter)
        accepting = [engine for engine in engines if self._support.accepts(engine.instance)]
        proved = [engine for engine in accepting if self._proved.passes(model, engine.instance, tokens)]
        fitting = frozenset([engine.instance for engine in proved if fits(tokens, engine.context_tokens)])
        reason: Reason | None = None
        if self._proved.source(model, prompt.endpoint) != "local":
            reason = "distrusted"
        elif not fitting:
            reason = "length" if proved else self._why_unproved(model, accepting, tokens)
        elif prompt.returns_prompt_text:
            reason = "prompt_text"
        elif self._is_check(model, shape):
            reason = "check"
        return self._record(PassthroughOffer(model, shape, tokens, fitting), reason)

    def _record(self, offer: PassthroughOffer, reason: Reason | None) -> PassthroughOffer | None:
        """Count the offer, and withdraw its instances if a `reason` forbids ids."""
        if reason is None:
            self._sent[offer.model] += 1
            return offer
        self._not_sent[reason] += 1
        if reason == "special_text":  # the engine's count may differ, and proves nothing about the prompt's shape
            return None
        return offer._replace(instances=frozenset())

    def _why_unproved(self, model: str, accepting: list[PassthroughTarget], tokens: TokenizedPrompt) -> Reason:
        plain = tokens._replace(special_text=False)
        passes = any(self._proved.passes(model, engine.instance, plain) for engine in accepting)
        return "special_text" if passes else "unproven"

    def _is_check(self, model: str, shape: Shape) -> bool:
        """Return whether this prompt is sent without ids as a check, and mark its shape as most recently seen."""
        shapes = self._shapes.get(model, {})
        sent = shapes.pop(shape, None)
        if sent is None:
            return True
        shapes[shape] = (sent + 1) % CHECK_EVERY
        return shapes[shape] == 0

    # answers

    def on_refused(self, instance: str, offer: PassthroughOffer, answer: bytes | None) -> None:
        """Record that a prompt with ids was answered 400 (`answer`: the answer's body, if it could be read) and is
        sent again without ids. The client may be at fault; then the second attempt fails, too.
        """
        self._not_sent["refused"] += 1
        if answer is not None and refuses_ids(answer):
            self._support.mark_failed(instance, offer.model, "it refused the ids of a prompt")

    def on_answer(self, offer: PassthroughOffer, instance: str, had_ids: bool, prompt_tokens: int | None) -> None:
        """Compare the token count answered by `instance`, which received the ids or (`had_ids` False) tokenised,
        with the router's count.
        """
        if prompt_tokens is None:
            return
        shapes = self._shapes.setdefault(offer.model, {})
        ours = len(offer.known.ids)
        if prompt_tokens != ours:
            shapes.clear()
            if had_ids:
                self._support.mark_failed(instance, offer.model, f"given {ours} ids, it counted {prompt_tokens}")
        elif not had_ids and offer.shape not in shapes:
            shapes[offer.shape] = 0
            if len(shapes) > MAX_SHAPES:
                del shapes[next(iter(shapes))]

    def report(self) -> PassthroughReport:
        """Return the counts."""
        return PassthroughReport(self._support.report(), dict(self._sent), dict(self._not_sent))


def fits(known: TokenizedPrompt, context_tokens: int | None) -> bool:
    """Return whether the prompt is certain to fit: the engine skips the length check for ids that it receives."""
    return context_tokens is not None and len(known.ids) < context_tokens


def shape_of(chat: Chat, adapter: str | None) -> Shape:
    """Return the chat's shape. An `adapter` may have its own template."""
    return hash(
        (
            adapter,
            frozenset([(message["role"], *message) for message in chat.messages]),
            chat.tools is not None,
            chat.add_generation_prompt,
            chat.continue_final_message,
            chat.add_special_tokens,
            chat.anthropic,
            tuple([(name, _shape_of_value(chat.template_kwargs[name])) for name in sorted(chat.template_kwargs)]),
        )
    )


def _shape_of_value(value: Any) -> object:
    """Return a short value unchanged; for a long text "...", for an object or list only its type."""
    if isinstance(value, str):
        return value if len(value) <= MAX_WORD_CHARS else "..."
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__
