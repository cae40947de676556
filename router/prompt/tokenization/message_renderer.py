"""Renderers of a model's chats: into text, which is tokenised, or message by message into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from router.prompt.prompt import Chat


class SegmentedPrompt(NamedTuple):
    """A prompt in segments: its ids are `head`, then those of each segment, then `tail`."""

    head: list[int]
    segments: list[bytes]
    tail: list[int]


class TextRenderer(Protocol):
    """Renders the chats of one model into text. `reads_given`: from the messages as the client sent them."""

    reads_given: bool

    def render_chunks(self, chat: Chat, variables: dict[str, Any]) -> list[str]:
        """Return the prompt in chunks; `variables`: special tokens and the engine's default template kwargs. Raises
        UnrenderableChat for a chat that the engine refuses.
        """


class MessageRenderer(Protocol):
    """Renders the chats of one model into token ids. A segment holds all that determines its ids."""

    def segment(self, chat: Chat) -> SegmentedPrompt:
        """Return the prompt of a chat. Raises UnrenderableChat for one that the engine refuses."""

    def encode(self, segment: bytes) -> list[int]:
        """Return the ids of one segment that `segment` returned. Raises UnrenderableChat."""

    def find_date(self, ids: Sequence[int]) -> str | None:
        """Return the date that the engine has put into this prompt; None if it puts none there."""

    def lasts_s(self) -> float | None:
        """Return the time until all prompts change by themselves; None: they never do."""
