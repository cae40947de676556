"""Tokenises prompts and computes their block keys within a time budget, locally or with an engine's tokenizer.

    ids sent by the client ------------------------+
    a trusted local tokenizer: incremental.py -----+--> keys for every block size in the fleet
    otherwise: an engine's /tokenize --------------+

Short prompts are tokenised on the event loop, long new text in a thread, since 80,000 tokens take a tenth of a
second, during which no stream may stall. Failures are values: a prompt whose ids cannot be found is `UnknownIds`
and is routed by load. `ModelTrust` decides whose ids are used (`trust.py`); every mismatch is logged and counted,
and the next source is used from then on, or none.
"""

from __future__ import annotations

import logging
import secrets
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from router.clock import Clock
from router.config.schema import TokensConfig as Settings
from router.kvcache.block_keys import Keyring
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.size_limits import reads_slowly
from router.prompt.prompt import Chat, Endpoint, Ids, Prompt, PromptFields, UnknownIds, Unread
from router.prompt.tokenization.incremental import IncrementalTokenizer, KeyInputs, PreparedPrompt
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.prefix_cache import CachedSegment, Prefix, PrefixCache
from router.prompt.tokenization.prompt_memory import PromptMemory
from router.prompt.tokenization.proof import ProofRun, Verdict, leave_out_tools
from router.prompt.tokenization.remote_ids import RemoteTokenizer, find_remote_ids
from router.prompt.tokenization.special_text import may_spell_special
from router.prompt.tokenization.threads import TokenizerThreads
from router.prompt.tokenization.trust import ANSWER, ModelTrust, Source

log = logging.getLogger("warmroute.tokens")

COMPLETIONS: Final = Endpoint.COMPLETIONS  # Python 3.11 runs code of its own at each access to an Enum's member
BYTES_PER_TOKEN = 16  # text has 3 to 5; so only text that cannot fit is too long, and runs of spaces may be long
ASSUMED_CONTEXT_TOKENS = 131_072  # where no instance reports its own
MAX_CONTEXT_TOKENS = 1_048_576  # whatever an instance reports
KEPT_BYTES = 16 * 1024  # body size up to which dropping a prompt's text takes more time than it is worth


class TokenizationReport(NamedTuple):
    """State of a model's token ids, for the admin API and metrics. Models with a local tokenizer have one, and all
    others that were proved or refuted at an instance.
    """

    source: Literal["local", "remote", "unknown"]  # whose ids are used for chats
    renderer: str  # how the engine renders chats, as far as the tokenizer's folder shows it
    trouble: str | None  # why chats have no ids; None: chats have ids
    proofs: int
    mismatches: int
    proved: dict[str, Literal["ids", "counts"]]  # by instance: what agreed, for the source used for chats
    refuted: dict[str, str]  # by instance: the first probe that differed
    dates: dict[str, str]  # by instance: the date that it puts into prompts
    incremental: bool | None  # False: the whole prompt is tokenised on every turn; None: no local tokenizer
    whole_because: str | None
    remembered_tokens: int  # prompt tokens found in the cache since the start
    tokenised_tokens: int  # prompt tokens tokenised since the start


class _ReadPrompt(NamedTuple):
    """A prompt read from its body. `prepared`: rendered for the local tokenizer; None if that is not used."""

    fields: PromptFields
    prepared: PreparedPrompt | None


class Tokenization:
    """Tokenises the prompts of all models. `locals_`: by base model id; other models' engines are queried."""

    def __init__(
        self,
        settings: Settings,
        locals_: Mapping[str, LocalTokenizer],
        keyring: Keyring,
        remote: RemoteTokenizer,
        clock: Clock,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`budget`: shared with other caches; by default a separate one of `settings.memory_bytes`."""
        self._settings = settings
        self._locals = locals_
        self._keyring = keyring
        self._remote = remote
        self._clock = clock
        self._trust = {model: ModelTrust(local.renderer, has_local=True) for model, local in locals_.items()}
        self._untrusted: set[str] = set()  # models for which it was logged that chats have no ids
        self.on_miscount: Callable[[str, str], bool] = lambda instance, model: (
            True
        )  # see `backends/token_ids/proofs.py`
        self._threads = TokenizerThreads(settings.threads)
        self.memory = budget or MemoryBudget(settings.memory_bytes)
        prefix_cache = PrefixCache(self.memory, secrets.token_bytes(64))
        self._incremental = IncrementalTokenizer(settings, keyring, prefix_cache, self._threads, clock)
        self._prompt_memory = PromptMemory(self.memory)

    def local_tokenizer(self, model: str) -> LocalTokenizer | None:
        """Return the local tokenizer of a base model, trusted or not."""
        return self._locals.get(model)

    def source(self, model: str, endpoint: Endpoint) -> Source | None:
        """Return whose ids `tokenize` uses at `endpoint`: the local tokenizer's or an engine's; None: neither is
        right.
        """
        trust = self._trust.get(model)
        return "remote" if trust is None else trust.source(chat=endpoint is not COMPLETIONS)

    def renders(self, model: str) -> LocalTokenizer | None:
        """Return the local tokenizer of a base model if engines may render chats as its template does."""
        local = self._locals.get(model)
        return None if local is None or local.renderer.local == "never" else local

    def passes(self, model: str, instance: str, tokens: TokenizedPrompt) -> bool:
        """Return whether a chat may go to `instance` with its ids: the instance is proved to generate from them."""
        trust = self._trust.get(model)
        return trust is not None and trust.passes(instance, special_text=tokens.special_text)

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
        client: str = "",
    ) -> TokenizedPrompt | UnknownIds:
        """Return ids and keys of `prompt` for base model `model`, or why there are none; `instances` may be queried
        for ids. `context_tokens`: the longest prompt that an instance of the model takes; None: unknown. `client`:
        whose share of threads and of requests in flight is used.

        Takes at most `tokens.budget_ms` (besides short prompts on the event loop). Without `remember`, nothing is
        cached or counted. Raises BadRequest if the prompt was not read yet, and is malformed.
        """
        source, begun_s = prompt.source, self._clock.now()
        if isinstance(source, UnknownIds):
            return source
        whose = self.source(model, prompt.endpoint)
        if whose is None and prompt.endpoint is not COMPLETIONS and not isinstance(source, Ids):
            prompt.source = UnknownIds("renderer")
            return prompt.source
        chain = KeyInputs(model, adapter, prompt.salt, frozenset(block_sizes))
        limit_tokens = min(context_tokens or ASSUMED_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS)
        slow = reads_slowly(prompt.body)
        work = partial(self._prepare, prompt, whose, chain, limit_tokens, begun_s, slow)
        if slow:
            ready = await self._threads.run(work, self._left_s(begun_s), client=client)
        else:
            ready = work()
        if isinstance(ready, UnknownIds):
            prompt.source = ready
            return ready
        prompt.source, prompt.remote_fields = ready.fields
        if ready.prepared is not None:
            tokens = await self._incremental.tokenize(ready.prepared, remember=remember, client=client)
            if remember and isinstance(tokens, TokenizedPrompt):
                self._remember(ready.prepared)
        elif isinstance(ready.fields.source, Ids):
            tokens = await self._add_keys(ready.fields.source.ids, "given", chain, begun_s, client)
        else:
            tokens = await self._tokenize_remotely(prompt, chain, instances, begun_s, client)
        if len(prompt.body) > KEPT_BYTES:
            prompt.source, prompt.remote_fields = ready.fields.outline()
        return tokens

    def _prepare(
        self, prompt: Prompt, whose: Source | None, chain: KeyInputs, limit_tokens: int, begun_s: float, slow: bool
    ) -> _ReadPrompt | UnknownIds:
        """Return the prompt read from its body and, for the local tokenizer, rendered. May run in any thread."""
        limit_bytes = BYTES_PER_TOKEN * limit_tokens
        local = self._locals[chain.model] if whose == "local" else None
        fields = self.fit_tools(self._read(prompt, local, chain, limit_bytes, slow), chain.model)
        source = fields.source
        if isinstance(source, UnknownIds):
            return source
        if isinstance(source, Ids):
            return UnknownIds("too_long") if len(source.ids) > limit_tokens else _ReadPrompt(fields, None)
        if local is None:
            return UnknownIds("untrusted") if whose is None else _ReadPrompt(fields, None)
        prepared = self._incremental.prepare(local, source, chain, limit_bytes, begun_s)
        if isinstance(prepared, UnknownIds):
            return prepared
        if isinstance(source, Chat) and not self._trust[chain.model].local_chats.covers_special_text:
            prepared = prepared._replace(special_text=local.special_text.find(source))
        return _ReadPrompt(fields, prepared)

    def fit_tools(self, fields: PromptFields, model: str) -> PromptFields:
        """Return a prompt without the tools that its client declines, if engines leave those out; without ids, if
        only some engines do.
        """
        source = fields.source
        if not isinstance(source, Chat) or not source.tools_declined or (trust := self._trust.get(model)) is None:
            return fields
        if (leaves_out := trust.leaves_out_tools) is None:
            return PromptFields(UnknownIds("tools"), {})
        return leave_out_tools(source, fields.remote_fields) if leaves_out else fields

    def _read(
        self, prompt: Prompt, local: LocalTokenizer | None, chain: KeyInputs, limit_bytes: int, slow: bool
    ) -> PromptFields:
        """Return the prompt's fields; for the local tokenizer, remembered messages are not read again."""
        source = prompt.source
        if not isinstance(source, Unread):
            return PromptFields(source, prompt.remote_fields)
        if local is None or local.delimiter_bytes is None:
            return source.read(limit_bytes, slow=slow)
        return source.read(limit_bytes, partial(self._prompt_memory.find, _owner(chain)), slow)

    def _remember(self, prompt: PreparedPrompt) -> None:
        source = prompt.source
        if prompt.text is not None and isinstance(source, Chat) and source.read is not None:
            self._prompt_memory.store(_owner(prompt.chain), source.read, prompt.text)

    async def detokenize(self, ids: Sequence[int], model: str, instances: Sequence[str]) -> str | None:
        """Return the text of some ids of a base model, which may begin and end inside a character; None if there is
        no trusted local tokenizer and no instance answers.
        """
        if (local := self._locals.get(model)) is not None and self.source(model, COMPLETIONS) == "local":
            return local.decode(ids)
        return await self._remote.detokenize(ids, model, instances)

    def check_count(
        self,
        model: str,
        prompt: Prompt,
        tokens: TokenizedPrompt | UnknownIds | None,
        prompt_tokens: int | None,
        instance: str,
    ) -> bool:
        """Compare the `prompt_tokens` of an answer of `instance` with our count. If they differ, return False, and
        stop trusting the ids' source until a new proof at `instance`, unless a proof that followed an earlier
        difference still holds.
        """
        if prompt_tokens is None or not isinstance(tokens, TokenizedPrompt):
            return True
        if not tokens.complete or tokens.source == "given" or (counted := len(tokens.ids)) == prompt_tokens:
            return True
        chat = prompt.endpoint is not COMPLETIONS
        trust = self._trust_in(model)
        if instance in trust.miscounting:
            return True
        source = trust.of(tokens.source, chat=chat)
        if chat and not source.covers_special_text and may_spell_special(prompt.body):
            return False  # known to differ, and any client may send such text
        trust.mismatches += 1
        if not self.on_miscount(instance, model):
            return False
        source.record_mismatch(instance, ANSWER)
        whose = "the local tokenizer" if tokens.source == "local" else "/tokenize"
        message = "tokens of %s: %s counted %d prompt tokens, %s %d: not used before a new proof there"
        log.warning(message, model, whose, counted, instance, prompt_tokens)
        self._log_trouble(model, trust)
        return False

    def begin(self, instance: str, model: str) -> None:
        """Start anew with an instance that joins: nothing is proved at it yet."""
        self._trust_in(model).begin(instance)

    async def verify(self, instance: str, model: str, *, generates: bool = True) -> bool | None:
        """Compare ids with those that `instance` generates from, on every probe. Return whether the best source is
        right; None if the instance did not answer, or refused every chat. `generates` False: send no request that
        generates, and believe the instance's `/tokenize`.
        """
        trust = self._trust_in(model)
        self._log_trouble(model, trust)
        proof = ProofRun(self._locals.get(model), self._remote, instance, model, generates=generates)
        verdicts = await proof.run(trust)
        if proof.date is not None:
            trust.dates[instance] = proof.date
        for verdict in verdicts:
            self._apply(verdict, instance, model, trust)
        self._log_trouble(model, trust)
        if proof.leaves_out_tools is not None:
            trust.leaving_tools[instance] = proof.leaves_out_tools
        if proof.counts_otherwise and instance not in trust.miscounting:
            trust.miscounting.add(instance)
            log.warning(
                "tokens of %s: prompt_tokens of %s is not the number of its prompts' ids: not compared", model, instance
            )
        if proof.silent:
            log.warning("tokens of %s: %s did not answer a proof: not complete there", model, instance)
            return None
        chats = [verdict for verdict in verdicts if verdict.chat]
        if any(verdict.proved is not None for verdict in chats):
            trust.proofs += 1
        first = next((v for v in verdicts if v.proved is not None or v.differing is not None), None)
        differs = any(verdict.differing is not None for verdict in verdicts)
        return None if first is None else not differs

    def proof_lasts_s(self, model: str) -> float | None:
        """Return the time until a model's proofs are void, because its prompts change; None: they do not."""
        local = self._locals.get(model)
        return None if local is None else local.lasts_s()

    def _apply(self, verdict: Verdict, instance: str, model: str, trust: ModelTrust) -> None:
        """Record a proof's verdict on one source."""
        source = trust.of(verdict.source, chat=verdict.chat)
        if verdict.proved is not None:
            source.record_proof(instance, verdict.proved)
        if verdict.differing is not None:
            if instance not in source.refuted:  # a known difference is not counted or logged with each new proof
                trust.mismatches += 1
                whose = "the local tokenizer" if verdict.source == "local" else "/tokenize"
                log.warning("tokens of %s: %s differs at %s in probe %r", model, whose, instance, verdict.differing)
            source.record_mismatch(instance, verdict.differing)

    def _trust_in(self, model: str) -> ModelTrust:
        """Return the trust in a model's ids; create it for a base model that is new."""
        trust = self._trust.get(model)
        if trust is None:
            trust = self._trust[model] = ModelTrust(has_local=False)
        return trust

    def _log_trouble(self, model: str, trust: ModelTrust) -> None:
        """Log once that the chats of a model have no ids, and once that they have ids again."""
        why = trust.explain()
        if why is not None and model not in self._untrusted:
            self._untrusted.add(model)
            log.warning("tokens of %s: chats are placed without token ids, by session and load: %s", model, why)
        elif why is None and model in self._untrusted:
            self._untrusted.discard(model)
            log.info("tokens of %s: chats are placed by their token ids again", model)

    def forget(self, instance: str) -> None:
        """Drop the proofs and refutations of an instance that has left."""
        for model, trust in self._trust.items():
            trust.forget(instance)
            self._log_trouble(model, trust)

    def report(self) -> dict[str, TokenizationReport]:
        """Return the state of each model that has a local tokenizer, or was proved at an instance."""
        return {model: self._report(model, trust) for model, trust in self._trust.items()}

    def _report(self, model: str, trust: ModelTrust) -> TokenizationReport:
        local = self._locals.get(model)
        source = trust.source(chat=True)
        proved = trust.of(source or "remote", chat=True).proved
        return TokenizationReport(
            source=source or "unknown",
            renderer=trust.renderer.name,
            trouble=trust.explain(),
            proofs=trust.proofs,
            mismatches=trust.mismatches,
            proved={instance: "ids" if one.by_ids else "counts" for instance, one in proved.items()},
            refuted=trust.refuted(),
            dates=dict(trust.dates),
            incremental=None if local is None else local.whole_prompt_reason is None,
            whole_because=None if local is None else local.whole_prompt_reason,
            remembered_tokens=self._incremental.cached_tokens[model],
            tokenised_tokens=self._incremental.encoded_tokens[model],
        )

    def close(self) -> None:
        """Stop the worker threads."""
        self._threads.close()

    async def _tokenize_remotely(
        self, prompt: Prompt, chain: KeyInputs, instances: Sequence[str], begun_s: float, client: str
    ) -> TokenizedPrompt | UnknownIds:
        left_s = partial(self._left_s, begun_s)
        found = await find_remote_ids(self._remote, prompt, chain.model, instances, left_s, client)
        if isinstance(found, UnknownIds):
            return found
        return await self._add_keys(found.ids, "remote", chain, begun_s, client, complete=found.complete)

    async def _add_keys(
        self,
        ids: Sequence[int],
        how: Literal["given", "remote"],
        chain: KeyInputs,
        begun_s: float,
        client: str,
        *,
        complete: bool = True,
    ) -> TokenizedPrompt | UnknownIds:
        """Compute the keys of ids made elsewhere; these are not cached, since there is no text to name them by."""
        work = partial(self._build, ids, how, chain, begun_s, complete)
        if len(ids) * 4 <= self._settings.inline_chars:  # an id costs as much as 4 characters
            return work()
        return await self._threads.run(work, self._left_s(begun_s), client=client)

    def _left_s(self, begun_s: float) -> float:
        return self._settings.budget_ms / 1000 - (self._clock.now() - begun_s)

    def _build(
        self, ids: Sequence[int], how: Literal["given", "remote"], chain: KeyInputs, begun_s: float, complete: bool
    ) -> TokenizedPrompt:
        made_s = self._clock.now()
        prefix = Prefix(self._keyring, self._keyring.root(*chain[:3]), chain.block_sizes)
        prefix.add(CachedSegment(array("I", ids)))
        return TokenizedPrompt(
            ids=prefix.ids,
            complete=complete,
            source=how,
            keys=prefix.keys,
            tokens_ms=(made_s - begun_s) * 1000,
            keys_ms=(self._clock.now() - made_s) * 1000,
        )


def _owner(chain: KeyInputs) -> bytes:
    """Return the identity of prompts that may be compared: no owner is a prefix of another one."""
    return repr(chain[:3]).encode() + b"\0"
