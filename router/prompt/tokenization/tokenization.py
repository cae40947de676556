"""From a prompt to its token ids and block keys, within a budget, here or by an engine.

    ids given --------------------------------------+
    a tokenizer here, believed: remembering.py -----+--> keys for every block size in the fleet
    else: an engine's /tokenize --------------------+

Short prompts are done on the spot; what is long and new in a thread, since 80,000 tokens take a tenth of a second in
which no stream may stand still. Trouble is a value: a prompt whose ids cannot be had is `UnknownIds` and is routed by
load. What we believe of our own tokenizing is `trust.py`'s matter, and a mismatch is never silent: a log line, a count,
and the engine's tokenizer from then on.
"""

from __future__ import annotations

import logging
import secrets
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from router.clock import Clock
from router.config.schema import TokensConfig as Settings
from router.kvcache.block_keys import Keyring
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Ids, Prompt, Text, UnknownIds
from router.prompt.tokenization.accuracy import TokenizerAccuracy
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.incremental import IncrementalTokenizer, KeyInputs
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.offload import TokenizerThreads
from router.prompt.tokenization.prefix import Prefix
from router.prompt.tokenization.prefix_cache import CachedSegment, PrefixCache
from router.prompt.tokenization.probes import bodies

log = logging.getLogger("warmroute.tokens")

PROOF_TIMEOUT_S = 5.0


RemoteFailure = Literal["tokenizer_silent", "tokenizer_refused", "tokenizer_busy"]
"""Why an engine gave no token ids."""


class TokenizationReport(NamedTuple):
    """What the admin page and the metrics say of a model with a tokenizer here; all others ask their engines."""

    source: Literal["local", "remote"]  # whose ids are used
    proofs: int
    mismatches: int
    refuted: dict[str, str]  # by instance: the first probe that differed there
    must_agree: int
    incremental: bool  # only what is new in a prompt is tokenised; False: always the whole
    whole_because: str | None
    remembered_tokens: int  # of prompts, since the start: those that were found,
    tokenised_tokens: int  # and those that were not


class RemoteTokenizer(Protocol):
    """Token ids from an engine; `router.backends.remote_tokenizer` implements it over HTTP. A string answer says why
    there are none.
    """

    async def tokenize(
        self, fields: dict[str, Any], model: str, instances: Sequence[str], timeout_s: float
    ) -> array[int] | RemoteFailure:
        """Return the ids of `fields` (a `Prompt.remote_fields`) from one of `instances`, taken in turn."""

    async def tokenize_at(
        self, instance: str, fields: dict[str, Any], model: str, timeout_s: float
    ) -> array[int] | RemoteFailure:
        """Return the ids from this instance, however many questions are in flight."""


class Tokenization:
    """The room's one door. `locals_` by base model id; a model that is not in it asks its engines."""

    def __init__(
        self,
        settings: Settings,
        locals_: Mapping[str, LocalTokenizer],
        keyring: Keyring,
        remote: RemoteTokenizer,
        clock: Clock,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`budget`: shared with others that remember; default: one of its own, of `settings.memory_bytes`."""
        self._settings = settings
        self._locals = locals_
        self._keyring = keyring
        self._remote = remote
        self._clock = clock
        self._trust: dict[str, TokenizerAccuracy] = {model: TokenizerAccuracy() for model in locals_}
        self._threads = TokenizerThreads(settings.threads)
        self.memory = budget or MemoryBudget(settings.memory_bytes)
        memo = PrefixCache(self.memory, secrets.token_bytes(64))
        self._remembering = IncrementalTokenizer(settings, keyring, memo, self._threads, clock)

    def local_tokenizer(self, model: str) -> LocalTokenizer | None:
        """The tokenizer that is here for a base model, believed or not."""
        return self._locals.get(model)

    def uses_remote(self, model: str) -> bool:
        """Whether `of` asks an engine now: there is no tokenizer here, or it is not believed."""
        trust = self._trust.get(model)
        return trust is None or not trust.trusted

    async def tokenize(
        self,
        prompt: Prompt,
        model: str,
        adapter: str | None,
        block_sizes: Iterable[int],
        instances: Sequence[str],
        *,
        remember: bool = True,
    ) -> TokenizedPrompt | UnknownIds:
        """Ids and keys of `prompt` for base model `model`; `instances` may be asked. Never raises for trouble. Without
        `remember`, nothing tells later that it was asked.

        Takes at most `tokens.budget_ms` (beside the prompts done on the spot).
        """
        chain = KeyInputs(model, adapter, prompt.salt, frozenset(block_sizes))
        source = prompt.source
        if isinstance(source, UnknownIds):
            return source
        if isinstance(source, Ids):
            begun_s = self._clock.now()
            return await self._chained(source.ids, "given", chain, begun_s)
        if self.uses_remote(model):
            return await self._asked(prompt, source, chain, instances)
        return await self._remembering.tokenize(self._locals[model], source, chain, len(prompt.body), remember=remember)

    def check_count(self, model: str, known: TokenizedPrompt | UnknownIds | None, prompt_tokens: int | None) -> bool:
        """Holds an answer's `prompt_tokens` against our count; False (and no belief any more) if they differ."""
        if (
            not isinstance(known, TokenizedPrompt)
            or prompt_tokens is None
            or not known.complete
            or known.source != "local"
        ):
            return True
        if len(known.ids) == prompt_tokens:
            return True
        self._trust[model].record_miscount()
        log.warning(
            "tokens of %s: we counted %d prompt tokens, the engine %d; asking the engine's tokenizer from now on",
            model,
            len(known.ids),
            prompt_tokens,
        )
        return False

    async def verify(self, instance: str, model: str) -> bool | None:
        """Compares our ids with those of `instance` on every probe. None: nothing to prove, or no answer."""
        local = self._locals.get(model)
        if local is None:
            return None
        trust = self._trust[model]
        options = ReadOptions(strip_fields=frozenset(), inject_usage=False)
        for name, path, body in bodies(model):
            prompt = read_prompt(path, "application/json", body, options)
            theirs = await self._remote.tokenize_at(instance, prompt.remote_fields, model, PROOF_TIMEOUT_S)
            if theirs == "tokenizer_silent":
                log.warning("tokens of %s: %s did not answer probe %r: nothing proved", model, instance, name)
                return None
            if theirs != _ids_or_refusal(local, prompt):
                trust.record_mismatch(instance, name)
                log.warning("tokens of %s: probe %r differs at %s; asking engines from now on", model, name, instance)
                return False
        trust.record_agreement(instance)
        return True

    def forget(self, instance: str) -> None:
        """The instance has left: what it refuted no longer counts."""
        for trust in self._trust.values():
            trust.refuted.pop(instance, None)

    def report(self) -> dict[str, TokenizationReport]:
        return {
            model: TokenizationReport(
                source="local" if trust.trusted else "remote",
                proofs=trust.proofs,
                mismatches=trust.mismatches,
                refuted=dict(trust.refuted),
                must_agree=trust.must_agree,
                incremental=self._locals[model].whole_prompt_reason is None,
                whole_because=self._locals[model].whole_prompt_reason,
                remembered_tokens=self._remembering.cached_tokens[model],
                tokenised_tokens=self._remembering.encoded_tokens[model],
            )
            for model, trust in self._trust.items()
        }

    def close(self) -> None:
        self._threads.close()

    async def _asked(
        self, prompt: Prompt, source: Chat | Text, chain: KeyInputs, instances: Sequence[str]
    ) -> TokenizedPrompt | UnknownIds:
        if isinstance(source, Chat) and source.has_media:
            return UnknownIds("media")  # the engine would load it all, and its placeholders say nothing
        begun_s = self._clock.now()
        budget_s = self._settings.budget_ms / 1000
        ids = await self._remote.tokenize(prompt.remote_fields, prompt.model or chain.model, instances, budget_s)
        if isinstance(ids, str):
            return UnknownIds(ids)
        self._compare(chain.model, prompt, ids)
        return await self._chained(ids, "remote", chain, begun_s)

    def _compare(self, model: str, prompt: Prompt, theirs: array[int]) -> None:
        """After a wrong count: short prompts are tokenised here as well, until enough of them agree."""
        trust = self._trust.get(model)
        if trust is not None and trust.must_agree and len(prompt.body) <= self._settings.inline_chars:
            trust.record_comparison(_ids_or_refusal(self._locals[model], prompt) == theirs)

    async def _chained(
        self, ids: Sequence[int], how: Literal["given", "remote"], chain: KeyInputs, begun_s: float
    ) -> TokenizedPrompt | UnknownIds:
        """Ids from somebody else, and their keys; not remembered: there is no text to name them by."""
        work = partial(self._known, ids, how, chain, begun_s)
        if len(ids) * 4 <= self._settings.inline_chars:  # as much work as so many characters
            return work()
        return await self._threads.run(work, self._settings.budget_ms / 1000)

    def _known(
        self, ids: Sequence[int], how: Literal["given", "remote"], chain: KeyInputs, begun_s: float
    ) -> TokenizedPrompt:
        made_s = self._clock.now()
        line = Prefix(self._keyring, self._keyring.root(*chain[:3]), chain.block_sizes)
        line.add(CachedSegment(array("I", ids)))
        return TokenizedPrompt(
            ids=line.ids,
            complete=True,
            source=how,
            keys=line.keys,
            tokens_ms=(made_s - begun_s) * 1000,
            keys_ms=(self._clock.now() - made_s) * 1000,
        )


def _ids_or_refusal(local: LocalTokenizer, prompt: Prompt) -> array[int] | str:
    """Our ids, or the word that stands for an engine's refusal to render: a proof may find both refusing."""
    if not isinstance(prompt.source, Chat | Text):
        return "unreadable"
    try:
        return local.tokenize(prompt.source)
    except UnrenderableChat:
        return "tokenizer_refused"
