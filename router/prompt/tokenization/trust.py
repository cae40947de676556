"""Trust in the sources of a model's token ids: a local tokenizer and the engines' `/tokenize`.

    unproved   until an instance's proof is complete     placed by its ids, unless its renderer demands a proof
    proved     an instance generates from the same ids   placed by its ids, and passed to that instance
    refuted    a proof or an answer had other ids        not used, until that instance proves it or leaves

Chats and plain texts are judged separately: engines tokenise texts as they are, but may render chats in ways that
neither source shows. A proof compares token ids (`proof.py`); a proof by counts alone, at engines that send no ids,
suffices for placing and never for passing ids. After an answer with another count than ours, only a new proof
restores trust.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from router.prompt.tokenization.probes import DATE
from router.prompt.tokenization.renderer import JINJA, START_DATE, Belief, Renderer

Source = Literal["local", "remote"]

ANSWER: Final = "the count of an answer"  # in place of a probe's name


class Proved(NamedTuple):
    """The extent of an instance's proof."""

    by_ids: bool  # False: only the numbers of tokens were compared
    special_text: bool  # the proof covered texts that spell special tokens


@dataclass(slots=True)
class SourceTrust:
    """Trust in one source for one kind of prompts. `proved` and `refuted` are by instance. `covers_special_text`:
    every proof covered texts that spell special tokens.
    """

    belief: Belief = "until_refuted"
    proved: dict[str, Proved] = field(default_factory=dict)
    refuted: dict[str, str] = field(default_factory=dict)  # the first probe with other ids, or `ANSWER`
    covers_special_text: bool = True

    @property
    def trusted(self) -> bool:
        """Whether prompts are placed by ids of this source."""
        if self.refuted:
            return False
        return self.belief == "until_refuted" or (self.belief == "once_proved" and len(self.proved) > 0)

    def record_proof(self, instance: str, proved: Proved) -> None:
        """Record that every probe agreed at `instance`."""
        self.refuted.pop(instance, None)
        self.proved[instance] = proved
        self._note_coverage()

    def record_mismatch(self, instance: str, probe: str) -> None:
        """Record that `probe` (or `ANSWER`) gave other ids at `instance`."""
        self._drop_proof(instance)
        self.refuted[instance] = probe

    def begin(self, instance: str) -> None:
        """Start anew with an instance that joins, perhaps as another process: nothing is proved, and a refuted
        source stays refuted until the instance's proof.
        """
        self._drop_proof(instance)

    def forget(self, instance: str) -> None:
        """Drop the results of an instance that has left."""
        self._drop_proof(instance)
        self.refuted.pop(instance, None)

    def _drop_proof(self, instance: str) -> None:
        if self.proved.pop(instance, None) is not None:
            self._note_coverage()

    def _note_coverage(self) -> None:
        self.covers_special_text = all(proved.special_text for proved in self.proved.values())


class ModelTrust:
    """Trust in both sources of one model. `has_local`: there is a local tokenizer. `proofs` and `mismatches` only
    count up; both are metrics.
    """

    def __init__(self, renderer: Renderer = JINJA, *, has_local: bool) -> None:
        self.renderer: Final = renderer
        self.has_local: Final = has_local
        self.local_chats: Final = SourceTrust(renderer.local)
        self.local_texts: Final = SourceTrust()
        self.remote_chats: Final = SourceTrust(renderer.tokenize)
        self.remote_texts: Final = SourceTrust()
        self.dates: Final[dict[str, str]] = {}  # in the prompts of instances that put one there
        self.leaving_tools: Final[dict[str, bool]] = {}  # by instance, if a proof determined it
        self.miscounting: Final[set[str]] = set()  # instances whose `prompt_tokens` is not the number of their own ids
        self.proofs = 0
        self.mismatches = 0

    def source(self, *, chat: bool) -> Source | None:
        """Return whose ids are used for chats or for texts; None: neither's."""
        local, remote = self.of("local", chat=chat), self.of("remote", chat=chat)
        if self.has_local and local.trusted:
            return "local"
        return "remote" if remote.trusted else None

    def of(self, source: Source, *, chat: bool) -> SourceTrust:
        """Return the trust in one source for chats or for texts."""
        if source == "local":
            return self.local_chats if chat else self.local_texts
        return self.remote_chats if chat else self.remote_texts

    @property
    def leaves_out_tools(self) -> bool | None:
        """Whether engines leave the tools out of a chat whose `tool_choice` is none (vLLM's
        `--exclude-tools-when-tool-choice-none`); None if only some do.
        """
        found = set(self.leaving_tools.values())
        return None if len(found) > 1 else True in found

    def passes(self, instance: str, *, special_text: bool) -> bool:
        """Return whether chats may be sent to `instance` with local ids. `special_text`: a chat may spell a special
        token.
        """
        proved = self.local_chats.proved.get(instance)
        return proved is not None and proved.by_ids and (proved.special_text or not special_text)

    def begin(self, instance: str) -> None:
        """Start anew with an instance that joins."""
        self._drop(instance)
        for trust in self._all():
            trust.begin(instance)

    def forget(self, instance: str) -> None:
        """Drop the results of an instance that has left."""
        self._drop(instance)
        for trust in self._all():
            trust.forget(instance)

    def refuted(self) -> dict[str, str]:
        """Return, by instance, the first probe or answer that refuted a source."""
        found: dict[str, str] = {}
        for trust in self._all():
            found = {**trust.refuted, **found}
        return found

    def explain(self) -> str | None:
        """Return why chats are not tokenised, for operators; None while they are."""
        if self.source(chat=True) is not None:
            return None
        for instance, probe in self.local_chats.refuted.items():
            if probe == DATE:
                date = self.dates.get(instance)
                return f"prompts at {instance} have the date {date}: set {START_DATE} alike there and for the router"
        if self.renderer.tokenize == "never":
            return f"the engine renders chats by code ({self.renderer.name}), which /tokenize does not show"
        instance, probe = next(iter(self.remote_chats.refuted.items()))
        return f"{instance} generates from other ids than its /tokenize returns ({probe}): it renders chats by code"

    def _drop(self, instance: str) -> None:
        self.miscounting.discard(instance)
        self.leaving_tools.pop(instance, None)
        self.dates.pop(instance, None)

    def _all(self) -> tuple[SourceTrust, ...]:
        return self.local_chats, self.local_texts, self.remote_chats, self.remote_texts
