"""From a prompt to its token ids and block keys, within a budget, here or by an engine.

    ids given ----------------------------------+
    a tokenizer here, believed: render, encode -+--> keys for every block size in the fleet
    else: an engine's /tokenize ----------------+

Short prompts are done on the spot; long ones in a thread, since 80,000 tokens take a tenth of a second in which no
stream may stand still. Trouble is a value: a prompt whose ids cannot be had is `Unknown` and is routed by load.
What we believe of our own tokenizing is `trust.py`'s matter, and a mismatch is never silent: a log line, a count, and
the engine's tokenizer from then on.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

from router.blocks.events import Key
from router.blocks.keys import Keyring
from router.blocks.known import Known
from router.clock import Clock
from router.config.schema import Tokens as Settings
from router.prompt.prompt import Chat, Ids, Prompt, Text, Unknown
from router.prompt.read import ReadOptions, read_prompt
from router.tokens.local import Local
from router.tokens.probes import bodies
from router.tokens.remote import Remote
from router.tokens.template import Unrenderable
from router.tokens.trust import Trust

log = logging.getLogger("warmroute.tokens")

PROOF_TIMEOUT_S = 5.0
QUEUED_PER_THREAD = 16  # more would be past its budget before it began


class Report(NamedTuple):
    """What the admin page and the metrics say of a model with a tokenizer here; all others ask their engines."""

    source: Literal["local", "remote"]  # whose ids are used
    proofs: int
    mismatches: int
    refuted: dict[str, str]  # by instance: the first probe that differed there
    must_agree: int


class _Chain(NamedTuple):
    """What keys are made of besides ids."""

    model: str
    adapter: str | None
    salt: str | None
    block_sizes: frozenset[int]


class Tokens:
    """The room's one door. `locals_` by base model id; a model that is not in it asks its engines."""

    def __init__(
        self, settings: Settings, locals_: Mapping[str, Local], keyring: Keyring, remote: Remote, clock: Clock
    ) -> None:
        self._settings = settings
        self._locals = locals_
        self._keyring = keyring
        self._remote = remote
        self._clock = clock
        self._trust: dict[str, Trust] = {model: Trust() for model in locals_}
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="warmroute-tokens")
        self._queued = 0

    def asks(self, model: str) -> bool:
        """Whether `of` asks an engine now: there is no tokenizer here, or it is not believed."""
        trust = self._trust.get(model)
        return trust is None or not trust.local

    async def of(
        self, prompt: Prompt, model: str, adapter: str | None, block_sizes: Iterable[int], instances: Sequence[str]
    ) -> Known | Unknown:
        """Ids and keys of `prompt` for base model `model`; `instances` may be asked. Never raises for trouble.

        Takes at most `tokens.budget_ms` (beside the prompts done on the spot).
        """
        chain = _Chain(model, adapter, prompt.salt, frozenset(block_sizes))
        source = prompt.source
        if isinstance(source, Unknown):
            return source
        if isinstance(source, Ids):
            return await self._off_loop(len(source.ids) * 4, self._given, source, chain)
        if self.asks(model):
            return await self._asked(prompt, source, chain, instances)
        return await self._off_loop(len(prompt.body), self._made, self._locals[model], source, chain)

    def observed(self, model: str, known: Known | Unknown | None, prompt_tokens: int | None) -> bool:
        """Holds an answer's `prompt_tokens` against our count; False (and no belief any more) if they differ."""
        if not isinstance(known, Known) or prompt_tokens is None or not known.complete or known.how != "local":
            return True
        if len(known.ids) == prompt_tokens:
            return True
        self._trust[model].miscounted()
        log.warning(
            "tokens of %s: we counted %d prompt tokens, the engine %d; asking the engine's tokenizer from now on",
            model,
            len(known.ids),
            prompt_tokens,
        )
        return False

    async def prove(self, instance: str, model: str) -> bool | None:
        """Compares our ids with those of `instance` on every probe. None: nothing to prove, or no answer."""
        local = self._locals.get(model)
        if local is None:
            return None
        trust = self._trust[model]
        options = ReadOptions(strip_fields=frozenset(), inject_usage=False)
        for name, path, body in bodies(model):
            prompt = read_prompt(path, "application/json", body, options)
            theirs = await self._remote.ask(instance, prompt.remote_fields, model, PROOF_TIMEOUT_S)
            if theirs == "tokenizer_silent":
                log.warning("tokens of %s: %s did not answer probe %r: nothing proved", model, instance, name)
                return None
            if theirs != _ids_or_refusal(local, prompt):
                trust.differs(instance, name)
                log.warning("tokens of %s: probe %r differs at %s; asking engines from now on", model, name, instance)
                return False
        trust.proved(instance)
        return True

    def forget(self, instance: str) -> None:
        """The instance has left: what it refuted no longer counts."""
        for trust in self._trust.values():
            trust.refuted.pop(instance, None)

    def report(self) -> dict[str, Report]:
        return {
            model: Report(
                source="local" if trust.local else "remote",
                proofs=trust.proofs,
                mismatches=trust.mismatches,
                refuted=dict(trust.refuted),
                must_agree=trust.must_agree,
            )
            for model, trust in self._trust.items()
        }

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _asked(
        self, prompt: Prompt, source: Chat | Text, chain: _Chain, instances: Sequence[str]
    ) -> Known | Unknown:
        if isinstance(source, Chat) and source.cut:
            return Unknown("media")  # the engine would load it all, and its placeholders say nothing
        begun_s = self._clock.now()
        budget_s = self._settings.budget_ms / 1000
        ids = await self._remote.ids(prompt.remote_fields, prompt.model or chain.model, instances, budget_s)
        if isinstance(ids, str):
            return Unknown(ids)
        self._compare(chain.model, prompt, ids)
        return await self._off_loop(len(ids) * 4, self._known, ids, True, "remote", chain, begun_s)

    def _compare(self, model: str, prompt: Prompt, theirs: array[int]) -> None:
        """After a wrong count: short prompts are tokenised here as well, until enough of them agree."""
        trust = self._trust.get(model)
        if trust is not None and trust.must_agree and len(prompt.body) <= self._settings.inline_chars:
            trust.compared(_ids_or_refusal(self._locals[model], prompt) == theirs)

    async def _off_loop(self, size: int, work: Callable[..., Known | Unknown], *arguments: Any) -> Known | Unknown:
        """Small work at once, large work in a thread; `size` in characters, or what costs as much."""
        if size <= self._settings.inline_chars:
            return work(*arguments)
        if self._queued >= QUEUED_PER_THREAD * self._settings.threads:
            return Unknown("tokens_busy")
        self._queued += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        future.add_done_callback(self._one_less)
        try:
            async with asyncio.timeout(self._settings.budget_ms / 1000):
                return await future
        except TimeoutError:
            return Unknown("tokens_late")

    def _one_less(self, _: asyncio.Future[Known | Unknown]) -> None:
        self._queued -= 1

    def _given(self, source: Ids, chain: _Chain) -> Known:
        return self._known(array("I", source.ids), True, "given", chain, self._clock.now())

    def _made(self, local: Local, source: Chat | Text, chain: _Chain) -> Known | Unknown:
        begun_s = self._clock.now()
        try:
            ids = local.ids(source)
        except Unrenderable:
            return Unknown("template_refused")
        return self._known(ids, not (isinstance(source, Chat) and source.cut), "local", chain, begun_s)

    def _known(
        self, ids: array[int], complete: bool, how: Literal["given", "local", "remote"], chain: _Chain, begun_s: float
    ) -> Known:
        made_s = self._clock.now()
        root = self._keyring.root(chain.model, chain.adapter, chain.salt)
        keys: dict[int, Sequence[Key]] = {size: self._keyring.chain(root, ids, size) for size in chain.block_sizes}
        return Known(
            ids=ids,
            complete=complete,
            how=how,
            keys=keys,
            tokens_ms=(made_s - begun_s) * 1000,
            keys_ms=(self._clock.now() - made_s) * 1000,
        )


def _ids_or_refusal(local: Local, prompt: Prompt) -> array[int] | str:
    """Our ids, or the word that stands for an engine's refusal to render: a proof may find both refusing."""
    if not isinstance(prompt.source, Chat | Text):
        return "unreadable"
    try:
        return local.ids(prompt.source)
    except Unrenderable:
        return "tokenizer_refused"
