"""Which prompts go to engines with their token ids, which we know, so that no engine has to make them again.

Those that were made here, whole, by a tokenizer that is believed (`trust.py`), when nothing in the request needs the
engine to render it (`backends/vllm/token_ids.py`), and to those instances that take ids (`takers.py`).

An engine that gets ids reports *our* count, so handed prompts cannot show that we render wrongly: every answer would
agree. Hence a kind of chat (`kinds.py`) is handed only once an engine's own count has agreed with ours on a prompt of
that kind, and every 64th of each kind goes without ids and is compared again. By kind, because a template that fails on
tool results fails on those alone, and a share of all prompts might miss them for ever; 64, because that gives away
1.6 % of what handing spares, while a kind that has become wrong is found within 64 of its prompts. One disagreement,
and all kinds of the model have to be seen again, after `trust.py` believes our tokenizer again at all.

How much it spares: on vLLM 0.32 (CPU, tiny model, warm prompts, 2 cores) the time to the first token is 0.87 of what it
is without, at 12 to 450 tokens, 0.81 at 5,000, 0.66 at 10,000 and 0.64 at 32,000; the body doubles. So no prompt is
too short for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from router.backends.token_ids.support import InstanceSupport, TokenIdSupport
from router.backends.vllm.token_ids import refuses_ids
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Chat, Endpoint, Prompt, UnknownIds
from router.prompt.tokenization.chat_shape import Shape, shape_of

CHECK_EVERY = 64
KINDS_KEPT = 256  # per model; those not met for longest are compared again

Reason = Literal["distrusted", "unproven", "length", "prompt_text", "check", "refused"]


class PassthroughTarget(NamedTuple):
    """One that a prompt goes to. `context_tokens` None: it does not say how long prompts may be."""

    instance: str
    context_tokens: int | None


class PassthroughOffer(NamedTuple):
    """A prompt that could go with ids, and which of its engines get them."""

    model: str
    shape: Shape
    known: TokenizedPrompt
    instances: frozenset[str]


class PassthroughReport(NamedTuple):
    instances: Mapping[str, InstanceSupport]  # by instance
    sent: Mapping[str, int]  # attempts with ids, by base model
    not_sent: Mapping[str, int]  # attempts that could have had them and went without, by `Reason`


class TokenIdPassthrough:
    """`believed`: whether our tokenizer of a base model is, now. `on` False: nothing is tried, nothing handed."""

    def __init__(self, takers: TokenIdSupport, believed: Callable[[str], bool], *, on: bool) -> None:
        self._takers = takers
        self._believed = believed
        self._on = on
        self._kinds: dict[str, dict[Shape, int]] = {}  # by model: how often each kind was handed since its last check
        self._handed: Counter[str] = Counter()
        self._unhanded: Counter[str] = Counter()

    # instances

    def on_joined(self, instance: str, model: str) -> None:
        if self._on:
            self._takers.on_joined(instance, model)

    def forget(self, instance: str) -> None:
        self._takers.forget(instance)

    # prompts

    def offer(
        self,
        prompt: Prompt,
        known: TokenizedPrompt | UnknownIds,
        model: str,
        adapter: str | None,
        engines: Iterable[PassthroughTarget],
    ) -> PassthroughOffer | None:
        """One attempt at `prompt`, about to be sent to `engines`. None: there is nothing that could be handed."""
        source = prompt.source
        if not self._on or prompt.endpoint is not Endpoint.CHAT or not isinstance(source, Chat):
            return None
        if (
            not isinstance(known, TokenizedPrompt)
            or known.source != "local"
            or not known.complete
            or not known.json_ids
        ):
            return None
        kind = shape_of(source, adapter)
        proven = [engine for engine in engines if self._takers.accepts(engine.instance)]
        fitting = frozenset(engine.instance for engine in proven if fits(known, engine.context_tokens))
        reason: Reason
        if not self._believed(model):
            reason = "distrusted"
        elif not fitting:
            reason = "length" if proven else "unproven"
        elif prompt.returns_prompt_text:
            reason = "prompt_text"
        elif self._is_check(model, kind):
            reason = "check"
        else:
            self._handed[model] += 1
            return PassthroughOffer(model, kind, known, fitting)
        self._unhanded[reason] += 1
        return PassthroughOffer(model, kind, known, frozenset())

    def _is_check(self, model: str, kind: Shape) -> bool:
        """Whether this prompt goes without ids, to be compared. The kind has been met last of all now."""
        kinds = self._kinds.get(model, {})
        handed = kinds.pop(kind, None)
        if handed is None:
            return True
        kinds[kind] = (handed + 1) % CHECK_EVERY
        return kinds[kind] == 0

    # what became of them

    def on_refused(self, instance: str, offer: PassthroughOffer, answer: bytes | None) -> None:
        """A prompt with ids was answered 400 (`answer`: its body, where that could be read) and is sent once more,
        without. It may be the client's own fault, which then comes again.
        """
        self._unhanded["refused"] += 1
        if answer is not None and refuses_ids(answer):
            self._takers.mark_failed(instance, offer.model, "it refused the ids of a prompt")

    def on_answer(self, offer: PassthroughOffer, instance: str, handed: bool, prompt_tokens: int | None) -> None:
        """The count in the answer of `instance`, which got the ids or (`handed` False) made its own."""
        if prompt_tokens is None:
            return
        kinds = self._kinds.setdefault(offer.model, {})
        ours = len(offer.known.ids)
        if prompt_tokens != ours:
            kinds.clear()
            if handed:
                self._takers.mark_failed(instance, offer.model, f"given {ours} ids, it counted {prompt_tokens}")
        elif not handed and offer.shape not in kinds:
            kinds[offer.shape] = 0
            if len(kinds) > KINDS_KEPT:
                del kinds[next(iter(kinds))]

    def report(self) -> PassthroughReport:
        return PassthroughReport(self._takers.report(), dict(self._handed), dict(self._unhanded))


def fits(known: TokenizedPrompt, context_tokens: int | None) -> bool:
    """Whether the engine would not have to look at the length, which it skips for given ids."""
    return context_tokens is not None and len(known.ids) < context_tokens
