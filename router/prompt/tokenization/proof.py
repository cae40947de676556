"""The proof of a model's token ids at one instance: compares each source's ids of the same prompts with those from
which the engine generates.

An engine's `/tokenize` need not show what the engine generates from, so the reference is a request that generates:
a chat with one token of answer and `return_token_ids` (vLLM >= 0.10.2), or the engine's `/render`, which generates
nothing, if the engine offers it (`--enable-scale-out`). For engines that send no ids only the count in
`usage.prompt_tokens` remains, and the probes are chosen so that counts differ, too. A prompt that the engine
refuses proves nothing about ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Prompt, PromptFields, Text
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.probes import DATE, DECLINED_TOOLS, SPECIAL_TEXT, Probe, list_probes
from router.prompt.tokenization.trust import ModelTrust, Proved, Source

TIMEOUT_S = 5.0  # of each request

RemoteFailure = Literal["tokenizer_silent", "tokenizer_refused", "tokenizer_busy"]
"""Reason why an engine returned no token ids."""


class GeneratedPrompt(NamedTuple):
    """The prompt that an engine generates from: its ids and their number; None for a value not sent."""

    ids: array[int] | None
    tokens: int | None


class ProofEngine(Protocol):
    """Requests to one instance (`router.backends.remote_tokenizer`), without the limit on requests in flight."""

    async def tokenize_at(
        self, instance: str, fields: dict[str, Any], model: str, timeout_s: float
    ) -> array[int] | RemoteFailure:
        """Return the ids of `fields` (a `Prompt.remote_fields`) from the instance's `/tokenize`."""

    async def render_at(self, instance: str, path: str, body: bytes, timeout_s: float) -> GeneratedPrompt | None:
        """Return the prompt of a request as the instance renders it for generation; None if the instance does not
        offer that, or does not answer.
        """

    async def generate_at(
        self, instance: str, path: str, body: bytes, timeout_s: float
    ) -> GeneratedPrompt | RemoteFailure:
        """Return the prompt of a request that generates, as the instance's answer reports it."""

    async def is_asleep(self, instance: str, timeout_s: float) -> bool:
        """Return whether the instance is in vLLM's sleep mode, where it would queue requests until it wakes."""


class Verdict(NamedTuple):
    """The result of a proof of one source for one kind of prompts. `proved`, `differing`: None if not found."""

    source: Source
    chat: bool
    proved: Proved | None
    differing: str | None  # the first probe with other ids


class ProofRun:
    """One proof. `generates` False: no request that generates is sent, and `/tokenize` is the reference."""

    def __init__(
        self, local: LocalTokenizer | None, engine: ProofEngine, instance: str, model: str, *, generates: bool
    ) -> None:
        self._local: Final = local
        self._engine: Final = engine
        self._instance: Final = instance
        self._model: Final = model
        self._generates = generates
        self._renders = generates
        self._probes: Final = list_probes(() if local is None else local.chat_tokens)
        self._references: Final[dict[str, GeneratedPrompt | None]] = {}  # by probe; None: the probe proves nothing
        self.date: str | None = None  # in the engine's prompts; None: none, or it sent no ids
        self.silent = False  # the engine did not answer: the proof is not complete
        self.leaves_out_tools: bool | None = None  # of a chat whose `tool_choice` is none; None: not determined
        self.counts_otherwise = False  # an answer's `prompt_tokens` is not the number of the prompt's ids

    async def run(self, trust: ModelTrust) -> list[Verdict]:
        """Compare the sources that may be used. `/tokenize` is compared where no local tokenizer is right: for
        chats, and for texts if it was refuted at this instance.
        """
        if self._generates and await self._engine.is_asleep(self._instance, TIMEOUT_S):
            self.silent = True
            return []
        verdicts: list[Verdict] = []
        if self._local is not None:
            verdicts.append(await self._compare("local", chat=False))
            if verdicts[0].differing is not None:  # a wrong tokenizer cannot render chats right
                verdicts.append(Verdict("local", True, None, verdicts[0].differing))
            elif trust.local_chats.belief != "never":
                verdicts.append(await self._compare("local", chat=True))
        right = [verdict.chat for verdict in verdicts if verdict.proved is not None]
        for chat in (False, True):
            trusted = trust.of("remote", chat=chat)
            wanted = trusted.belief != "never" and chat not in right and (chat or self._instance in trusted.refuted)
            if wanted and self._generates:
                verdicts.append(await self._compare("remote", chat=chat))
        return verdicts

    async def _compare(self, source: Source, *, chat: bool) -> Verdict:
        """Compare the ids of every probe of a kind, up to the first probe that differs or gets no answer."""
        by_ids, special_text, compared = True, False, 0
        for probe in self._probes:
            if probe.is_chat is not chat:
                continue
            reference = await self._reference(probe)
            if self.silent:
                return Verdict(source, chat, None, None)
            if reference is None:
                continue
            ours = await self._ids(source, probe)
            if self.silent:
                return Verdict(source, chat, None, None)
            if probe.name == DECLINED_TOOLS:
                bare = await self._ids(source, probe, without_tools=True)
                if self.silent:
                    return Verdict(source, chat, None, None)
                if not self._judge_tools(_is_same(ours, reference), _is_same(bare, reference)):
                    return Verdict(source, chat, None, probe.name)
                continue
            if isinstance(ours, str):
                if source == "local":
                    return Verdict(source, chat, None, probe.name)
                continue  # a refusal by /tokenize alone
            same = _is_same(ours, reference)
            if probe.name == SPECIAL_TEXT:
                special_text = same and reference.ids is not None
                continue
            if not same:
                return Verdict(source, chat, None, DATE if self._differs_in_date(ours) else probe.name)
            by_ids = by_ids and reference.ids is not None
            compared += 1
        return Verdict(source, chat, Proved(by_ids, special_text) if compared else None, None)

    def _differs_in_date(self, ours: array[int]) -> bool:
        """Return whether our prompt has another date than the engine's."""
        return self.date is not None and self._local is not None and self._local.find_date(ours) != self.date

    def _judge_tools(self, with_tools: bool, without: bool) -> bool:
        """Record whether the engine leaves out tools that a chat declines. Return whether either way matches."""
        if self._generates and with_tools is not without:
            self.leaves_out_tools = without
        return with_tools or without

    async def _ids(self, source: Source, probe: Probe, *, without_tools: bool = False) -> array[int] | RemoteFailure:
        prompt = self._read(probe)
        if without_tools:
            assert isinstance(prompt.source, Chat)
            prompt.source, prompt.remote_fields = leave_out_tools(prompt.source, prompt.remote_fields)
        if source == "local":
            assert self._local is not None
            assert isinstance(prompt.source, Chat | Text)
            try:
                return self._local.tokenize(prompt.source)
            except UnrenderableChat:
                return "tokenizer_refused"
        return await self._tokenize(prompt)

    async def _tokenize(self, prompt: Prompt) -> array[int] | RemoteFailure:
        ids = await self._engine.tokenize_at(self._instance, prompt.remote_fields, self._model, TIMEOUT_S)
        self.silent = self.silent or ids == "tokenizer_silent"
        return ids

    async def _reference(self, probe: Probe) -> GeneratedPrompt | None:
        """Return the prompt that the engine generates from; None if it refuses the probe or sends neither value."""
        if probe.name not in self._references:
            found = await self._find_reference(probe)
            if probe.is_chat and found is not None and found.ids is not None and self._local is not None:
                self.date = self._local.find_date(found.ids)
            self._references[probe.name] = None if found is None or found == (None, None) else found
        return self._references[probe.name]

    async def _find_reference(self, probe: Probe) -> GeneratedPrompt | None:
        if not self._generates:
            ids = await self._tokenize(self._read(probe))
            return None if isinstance(ids, str) else GeneratedPrompt(ids, len(ids))
        body = self._body(probe)
        if self._renders:
            rendered = await self._engine.render_at(self._instance, probe.path, body, TIMEOUT_S)
            if rendered is not None:
                return rendered
            self._renders = False
        generated = await self._engine.generate_at(self._instance, probe.path, body, TIMEOUT_S)
        if isinstance(generated, str):
            self.silent = generated == "tokenizer_silent"
            return None
        ids_and_count = generated.ids is not None and generated.tokens is not None
        if ids_and_count and len(generated.ids or ()) != generated.tokens:
            self.counts_otherwise = True
        if generated.ids is None and not probe.is_chat:  # texts are tokenised as they are, so /tokenize is reliable
            ids = await self._tokenize(self._read(probe))
            if not isinstance(ids, str) and len(ids) == generated.tokens:
                return GeneratedPrompt(ids, len(ids))
        return generated

    def _read(self, probe: Probe) -> Prompt:
        return read_prompt(probe.path, "application/json", self._body(probe), _UNCHANGED)

    def _body(self, probe: Probe) -> bytes:
        answer = {"max_tokens": 1, "temperature": 0, "return_token_ids": True}
        return msgspec.json.encode({"model": self._model, **probe.fields, **answer})


_UNCHANGED: Final = ReadOptions(strip_fields=frozenset(), inject_usage=False)


def leave_out_tools(chat: Chat, remote_fields: dict[str, Any]) -> PromptFields:
    """Return a chat without its tools, in both forms."""
    remote = {name: field for name, field in remote_fields.items() if name != "tools"}
    return PromptFields(chat._replace(tools=None, tools_declined=False), remote)


def _is_same(ours: Sequence[int] | RemoteFailure, reference: GeneratedPrompt) -> bool:
    """Return whether both are the same prompt, as far as the engine shows."""
    if isinstance(ours, str):
        return False
    if reference.ids is not None:
        return ours == reference.ids
    return len(ours) == reference.tokens
