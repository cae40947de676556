"""Tokenises prompts and computes their block keys within a budget, locally or with an engine's tokenizer.

    ids sent by the client ------------------------+
    a trusted local tokenizer: incremental.py -----+--> keys for every block size in the fleet
    otherwise: an engine's /tokenize --------------+

Short prompts are tokenised on the event loop, long new text in a thread, since 80,000 tokens take a tenth of a second,
in which no stream may stall. Failures are values: a prompt whose ids cannot be found is `UnknownIds` and is routed by
load. `TokenizerAccuracy` decides whether the local tokenizer is trusted; every mismatch is logged and counted, and the
engine's tokenizer is used from then on.
"""

from __future__ import annotations

import logging
import secrets
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from router.clock import Clock
from router.config.schema import TokensConfig as Settings
from router.kvcache.block_keys import Keyring
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.api.size_limits import reads_slowly
from router.prompt.prompt import Chat, Ids, Prompt, PromptFields, Text, UnknownIds, Unread
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.incremental import IncrementalTokenizer, KeyInputs, PreparedPrompt
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.prefix_cache import CachedSegment, Prefix, PrefixCache
from router.prompt.tokenization.probes import probe_bodies
from router.prompt.tokenization.prompt_memory import PromptMemory
from router.prompt.tokenization.threads import TokenizerThreads

log = logging.getLogger("warmroute.tokens")

AGREEING = 20  # prompts in a row that end the distrust after a wrong count
PROOF_TIMEOUT_S = 5.0
BYTES_PER_TOKEN = 16  # text has 3 to 5; so only what cannot fit is called too long, and runs of spaces may be long
ASSUMED_CONTEXT_TOKENS = 131_072  # where no instance reports its own
MAX_CONTEXT_TOKENS = 1_048_576  # whatever an instance reports
KEPT_BYTES = 16 * 1024  # body size up to which dropping a prompt's text takes more time than it is worth

RemoteFailure = Literal["tokenizer_silent", "tokenizer_refused", "tokenizer_busy"]
"""Reason why an engine returned no token ids."""


class TokenizationReport(NamedTuple):
    """State of a model with a local tokenizer, for the admin API and metrics; all other models ask their engines."""

    source: Literal["local", "remote"]  # the tokenizer in use
    proofs: int
    mismatches: int
    refuted: dict[str, str]  # by instance: the first probe that differed
    must_agree: int
    incremental: bool  # False: the whole prompt is tokenised on every turn
    whole_because: str | None
    remembered_tokens: int  # prompt tokens found in the cache since the start
    tokenised_tokens: int  # prompt tokens tokenised since the start


@dataclass(slots=True)
class TokenizerAccuracy:
    """Trust in one model's local tokenizer. `proofs` and `mismatches` only count up; they are metrics.

    Two events end its use at once: a probe whose ids differ from the engine's, and an answer whose `prompt_tokens` is
    not our count. A later check of the same instance in which every probe agrees clears the first. The second happened
    on a real prompt that no probe covered, so it is graver: it is cleared only when `AGREEING` prompts in a row were
    tokenised both here and by the engine, with the same ids.
    """

    proofs: int = 0
    mismatches: int = 0
    refuted: dict[str, str] = field(default_factory=dict)  # by instance: the first probe that differed
    must_agree: int = 0  # prompts that must still agree after a wrong count

    @property
    def trusted(self) -> bool:
        """Return whether the router's own tokenizer is used."""
        return not self.refuted and self.must_agree == 0

    def record_agreement(self, instance: str) -> None:
        """Record that every probe agreed at `instance`."""
        self.proofs += 1
        self.refuted.pop(instance, None)

    def record_mismatch(self, instance: str, probe: str) -> None:
        """Record that `probe` gave other ids at `instance`."""
        self.mismatches += 1
        self.refuted[instance] = probe

    def record_miscount(self) -> None:
        """Record an answer whose prompt_tokens is not our count."""
        self.mismatches += 1
        self.must_agree = AGREEING

    def record_comparison(self, same: bool) -> None:
        """Record a prompt tokenised both here and by the engine, after a wrong count."""
        self.must_agree = max(0, self.must_agree - 1) if same else AGREEING


class RemoteTokenizer(Protocol):
    """Token ids from an engine (`router.backends.remote_tokenizer`); a string says why there are none."""

    async def tokenize(
        self, fields: dict[str, Any], model: str, instances: Sequence[str], timeout_s: float
    ) -> array[int] | RemoteFailure:
        """Return the ids of `fields` (a `Prompt.remote_fields`) from one of `instances`, in rotation."""

    async def tokenize_at(
        self, instance: str, fields: dict[str, Any], model: str, timeout_s: float
    ) -> array[int] | RemoteFailure:
        """Return the ids from this instance, without the limit on requests in flight."""

    async def detokenize(self, ids: Sequence[int], model: str, instances: Sequence[str]) -> str | None:
        """Return the text of `ids` from one of `instances`; None if it does not answer."""


class _ReadPrompt(NamedTuple):
    """A prompt read from its body. `prepared`: rendered for the local tokenizer; `None` where it is not asked."""

    fields: PromptFields
    prepared: PreparedPrompt | None


class Tokenization:
    """Tokenises the prompts of all models. `locals_` by base model id; models without an entry ask their engines."""

    def __init__(
        self,
        settings: Settings,
        locals_: Mapping[str, LocalTokenizer],
        keyring: Keyring,
        remote: RemoteTokenizer,
        clock: Clock,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`budget` is shared with other caches; default: its own, of `settings.memory_bytes`."""
        self._settings = settings
        self._locals = locals_
        self._keyring = keyring
        self._remote = remote
        self._clock = clock
        self._accuracy: dict[str, TokenizerAccuracy] = {model: TokenizerAccuracy() for model in locals_}
        self._threads = TokenizerThreads(settings.threads)
        self.memory = budget or MemoryBudget(settings.memory_bytes)
        prefix_cache = PrefixCache(self.memory, secrets.token_bytes(64))
        self._incremental = IncrementalTokenizer(settings, keyring, prefix_cache, self._threads, clock)
        self._prompt_memory = PromptMemory(self.memory)

    def local_tokenizer(self, model: str) -> LocalTokenizer | None:
        """Return the local tokenizer of a base model, trusted or not."""
        return self._locals.get(model)

    def uses_remote(self, model: str) -> bool:
        """Return whether `tokenize` asks an engine: there is no local tokenizer, or it is not trusted."""
        accuracy = self._accuracy.get(model)
        return accuracy is None or not accuracy.trusted

    async def tokenize(
        self,
        prompt: Prompt,
        model: str,
        adapter: str | None,
        block_sizes: Iterable[int],
        instances: Sequence[str],
        *,
        context_tokens: int | None = None,
        remember: bool = True,
    ) -> TokenizedPrompt | UnknownIds:
        """Return ids and keys of `prompt` for base model `model`, or why there are none; `instances` may be asked for
        ids. `context_tokens`: the longest prompt that an instance of the model takes; `None`: unknown.

        Takes at most `tokens.budget_ms` (beside short prompts on the event loop). Without `remember`, nothing is cached
        or counted. Raises BadRequest where the prompt was not read yet, and is malformed.
        """
        source, begun_s = prompt.source, self._clock.now()
        if isinstance(source, UnknownIds):
            return source
        chain = KeyInputs(model, adapter, prompt.salt, frozenset(block_sizes))
        limit_tokens = min(context_tokens or ASSUMED_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS)
        work = partial(self._prepare, prompt, chain, limit_tokens, begun_s)
        ready = await self._threads.run(work, self._left_s(begun_s)) if reads_slowly(prompt.body) else work()
        if isinstance(ready, UnknownIds):
            prompt.source = ready
            return ready
        prompt.source, prompt.remote_fields = ready.fields
        if ready.prepared is not None:
            tokens = await self._incremental.tokenize(ready.prepared, remember=remember)
            if remember and isinstance(tokens, TokenizedPrompt):
                self._remember(ready.prepared)
        elif isinstance(ready.fields.source, Ids):
            tokens = await self._add_keys(ready.fields.source.ids, "given", chain, begun_s)
        else:
            tokens = await self._tokenize_remotely(prompt, chain, instances, begun_s)
        if len(prompt.body) > KEPT_BYTES:
            prompt.source, prompt.remote_fields = ready.fields.outline()
        return tokens

    def _prepare(self, prompt: Prompt, chain: KeyInputs, limit_tokens: int, begun_s: float) -> _ReadPrompt | UnknownIds:
        """Return the prompt read from its body and, for the local tokenizer, rendered. May run in any thread."""
        limit_bytes = BYTES_PER_TOKEN * limit_tokens
        fields = self._read(prompt, chain, limit_bytes)
        source = fields.source
        if isinstance(source, UnknownIds):
            return source
        if isinstance(source, Ids):
            return UnknownIds("too_long") if len(source.ids) > limit_tokens else _ReadPrompt(fields, None)
        if self.uses_remote(chain.model):
            return _ReadPrompt(fields, None)
        prepared = self._incremental.prepare(self._locals[chain.model], source, chain, limit_bytes, begun_s)
        return prepared if isinstance(prepared, UnknownIds) else _ReadPrompt(fields, prepared)

    def _read(self, prompt: Prompt, chain: KeyInputs, limit_bytes: int) -> PromptFields:
        """Return the prompt's fields; for the local tokenizer, messages that are remembered are not read again."""
        source = prompt.source
        if not isinstance(source, Unread):
            return PromptFields(source, prompt.remote_fields)
        local = None if self.uses_remote(chain.model) else self._locals[chain.model]
        if local is None or local.delimiter_bytes is None:
            return source.read(limit_bytes)
        return source.read(limit_bytes, partial(self._prompt_memory.find, _owner(chain)))

    def _remember(self, prompt: PreparedPrompt) -> None:
        source = prompt.source
        if prompt.text is not None and isinstance(source, Chat) and source.read is not None:
            self._prompt_memory.store(_owner(prompt.chain), source.read, prompt.text)

    async def detokenize(self, ids: Sequence[int], model: str, instances: Sequence[str]) -> str | None:
        """Return the text of some ids of a base model, which may begin and end inside a character; None if nobody here
        knows it and no instance answers.
        """
        if (local := self._locals.get(model)) is not None and not self.uses_remote(model):
            return local.decode(ids)
        return await self._remote.detokenize(ids, model, instances)

    def check_count(self, model: str, tokens: TokenizedPrompt | UnknownIds | None, prompt_tokens: int | None) -> bool:
        """Compare an answer's `prompt_tokens` with our count; on a difference return False and stop trusting ours."""
        if prompt_tokens is None or not isinstance(tokens, TokenizedPrompt):
            return True
        if not tokens.complete or tokens.source != "local" or (counted := len(tokens.ids)) == prompt_tokens:
            return True
        self._accuracy[model].record_miscount()
        message = "tokens of %s: local tokenizer counted %d prompt tokens, the engine %d; using the engine's tokenizer"
        log.warning(message, model, counted, prompt_tokens)
        return False

    async def verify(self, instance: str, model: str) -> bool | None:
        """Compare our ids with those of `instance` on every probe. `None`: no local tokenizer, or no answer."""
        if (local := self._locals.get(model)) is None:
            return None
        accuracy = self._accuracy[model]
        options = ReadOptions(strip_fields=frozenset(), inject_usage=False)
        for name, path, body in probe_bodies(model):
            prompt = read_prompt(path, "application/json", body, options)
            theirs = await self._remote.tokenize_at(instance, prompt.remote_fields, model, PROOF_TIMEOUT_S)
            if theirs == "tokenizer_silent":
                log.warning("tokens of %s: %s did not answer probe %r: not verified there", model, instance, name)
                return None
            if theirs != _tokenize_or_refuse(local, prompt):
                accuracy.record_mismatch(instance, name)
                log.warning("tokens of %s: probe %r differs at %s; using engines' tokenizer", model, name, instance)
                return False
        accuracy.record_agreement(instance)
        return True

    def forget(self, instance: str) -> None:
        """Drop the mismatches of an instance that has left."""
        for accuracy in self._accuracy.values():
            accuracy.refuted.pop(instance, None)

    def report(self) -> dict[str, TokenizationReport]:
        """Return the state of each model with a local tokenizer."""
        return {
            model: TokenizationReport(
                source="local" if accuracy.trusted else "remote",
                proofs=accuracy.proofs,
                mismatches=accuracy.mismatches,
                refuted=dict(accuracy.refuted),
                must_agree=accuracy.must_agree,
                incremental=self._locals[model].whole_prompt_reason is None,
                whole_because=self._locals[model].whole_prompt_reason,
                remembered_tokens=self._incremental.cached_tokens[model],
                tokenised_tokens=self._incremental.encoded_tokens[model],
            )
            for model, accuracy in self._accuracy.items()
        }

    def close(self) -> None:
        """Stop the worker threads."""
        self._threads.close()

    async def _tokenize_remotely(
        self, prompt: Prompt, chain: KeyInputs, instances: Sequence[str], begun_s: float
    ) -> TokenizedPrompt | UnknownIds:
        if isinstance(prompt.source, Chat) and prompt.source.has_media:
            return UnknownIds("media")  # the engine would load all media, and its placeholder ids match no block
        model = prompt.model or chain.model
        ids = await self._remote.tokenize(prompt.remote_fields, model, instances, self._left_s(begun_s))
        if isinstance(ids, str):
            return UnknownIds(ids)
        self._compare(chain.model, prompt, ids)
        return await self._add_keys(ids, "remote", chain, begun_s)

    def _compare(self, model: str, prompt: Prompt, theirs: array[int]) -> None:
        """Tokenise short prompts here as well after a wrong count, until enough of them agree."""
        accuracy = self._accuracy.get(model)
        if accuracy is not None and accuracy.must_agree and len(prompt.body) <= self._settings.inline_chars:
            accuracy.record_comparison(_tokenize_or_refuse(self._locals[model], prompt) == theirs)

    async def _add_keys(
        self, ids: Sequence[int], how: Literal["given", "remote"], chain: KeyInputs, begun_s: float
    ) -> TokenizedPrompt | UnknownIds:
        """Compute the keys of ids made elsewhere; not cached, since there is no text to name them by."""
        work = partial(self._build, ids, how, chain, begun_s)
        if len(ids) * 4 <= self._settings.inline_chars:  # an id costs as much as 4 characters
            return work()
        return await self._threads.run(work, self._left_s(begun_s))

    def _left_s(self, begun_s: float) -> float:
        return self._settings.budget_ms / 1000 - (self._clock.now() - begun_s)

    def _build(
        self, ids: Sequence[int], how: Literal["given", "remote"], chain: KeyInputs, begun_s: float
    ) -> TokenizedPrompt:
        made_s = self._clock.now()
        prefix = Prefix(self._keyring, self._keyring.root(*chain[:3]), chain.block_sizes)
        prefix.add(CachedSegment(array("I", ids)))
        return TokenizedPrompt(
            ids=prefix.ids,
            complete=True,
            source=how,
            keys=prefix.keys,
            tokens_ms=(made_s - begun_s) * 1000,
            keys_ms=(self._clock.now() - made_s) * 1000,
        )


def _owner(chain: KeyInputs) -> bytes:
    """Return whose prompts may be compared: no owner is a prefix of another one."""
    return repr(chain[:3]).encode() + b"\0"


def _tokenize_or_refuse(local: LocalTokenizer, prompt: Prompt) -> array[int] | str:
    """Return our ids, or the reason that stands for an engine's refusal to render: in a check both may refuse."""
    if not isinstance(prompt.source, Chat | Text):
        return "unreadable"
    try:
        return local.tokenize(prompt.source)
    except UnrenderableChat:
        return "tokenizer_refused"
