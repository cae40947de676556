"""A model's tokenizer on this machine: its text codec, and what renders its chats.

`tokenize` tokenises a whole prompt: the reference for everything else. `segment` splits a prompt, so that only new
segments need be tokenised: one segment per message where a library renders messages into ids; in text, if the codec is
verified to allow it (segments.py); otherwise the whole prompt is one segment. Tokenising costs 1 to 2 us per token,
during which the tokenizer releases the interpreter lock, except for 25 ns per token when a segment's ids are returned:
long prompts belong in a thread, segment by segment. Several segments at once (`encode_batch`) would take every core of
the machine, which the engines need.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Text
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.message_renderer import MessageRenderer, SegmentedPrompt, TextRenderer
from router.prompt.tokenization.probes import AGENT
from router.prompt.tokenization.renderer import JINJA, Renderer
from router.prompt.tokenization.segments import (
    LEAST_BYTES,
    Segmenter,
    choose_delimiter,
    find_difference,
    find_special_ids,
)
from router.prompt.tokenization.special_text import SpecialTextFinder
from router.prompt.tokenization.text_codec import TextCodec


class LocalTokenizer:
    """One model's tokenizer and renderer."""

    def __init__(
        self,
        codec: TextCodec,
        texts: TextRenderer | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
        least_bytes: int = LEAST_BYTES,
        renderer: Renderer = JINJA,
        messages: MessageRenderer | None = None,
    ) -> None:
        """`texts` or `messages` renders chats, `texts` with these `variables`. `least_bytes`: the minimum size of a
        segment of text. `renderer`: how the engine renders chats.
        """
        self.renderer = renderer
        self._codec = codec
        self._texts = texts
        self._messages = messages
        self._variables = dict(variables)
        self._segmenter: Segmenter | None = None
        special = [token.content for token in codec.added if token.special]
        self.special_text = SpecialTextFinder(special)
        typical = self._render_typical_chat()
        self.chat_tokens = [token for token in special if token in typical]  # those that the template prints
        # why prompts are not segmented; None: prompts are segmented
        self.whole_prompt_reason = self._set_up_segmenter(typical, least_bytes)

    def tokenize(self, source: Chat | Text) -> array[int]:
        """Return the token ids; for a chat with media, the ids certain to come first. Raises UnrenderableChat."""
        source = self.adapt(source)
        if self._messages is None or isinstance(source, Text):
            return self._encode_whole(self.text(source).decode(), source)
        prompt = self._messages.segment(source)
        ids = array("I", prompt.head)
        for segment in prompt.segments:
            ids.extend(self._messages.encode(segment))
        ids.extend(prompt.tail)
        return ids

    def adapt(self, source: Chat | Text) -> Chat | Text:
        """Return a prompt as the engine reads it: what its renderer ignores is left out."""
        if self.renderer is JINJA or isinstance(source, Text):
            return source
        media = source.has_media and self._messages is None
        return source._replace(add_special_tokens=False, has_media=media)

    def segment(self, source: Chat | Text) -> SegmentedPrompt:
        """Return the segments of a prompt that `adapt` returned. Raises UnrenderableChat."""
        if self._messages is not None and isinstance(source, Chat):
            return self._messages.segment(source)
        return self.segment_text(self.text(source), source)

    def text(self, source: Chat | Text) -> bytes:
        """Return the prompt as UTF-8; a chat must be rendered as text. Raises UnrenderableChat."""
        chunks = [source.text] if isinstance(source, Text) else self.render_chunks(source)
        try:
            return b"".join([chunk.encode() for chunk in chunks])
        except UnicodeEncodeError:
            raise UnrenderableChat("half of a surrogate pair") from None  # JSON can carry one, UTF-8 cannot

    def render(self, chat: Chat) -> str:
        """Return the prompt of a chat as text. Raises UnrenderableChat."""
        return "".join(self.render_chunks(chat))

    def render_chunks(self, chat: Chat) -> list[str]:
        """Return the prompt of a chat in the chunks in which it is rendered as text. Raises UnrenderableChat."""
        if self._texts is None:
            raise UnrenderableChat("these chats are not rendered as text")
        return self._texts.render_chunks(chat, self._variables)

    @property
    def delimiter_bytes(self) -> int | None:
        """Length of the delimiter with which segments begin; None: chats are not remembered as text."""
        if self._texts is None or self._texts.reads_given or self._segmenter is None:
            return None
        return len(self._segmenter.delimiter)

    def segment_text(self, text: bytes, source: Chat | Text) -> SegmentedPrompt:
        """Return the segments of a prompt's `text`; like `tokenize` without the final ids for a chat with media."""
        if self._segmenter is None:
            return SegmentedPrompt([], [text], [])
        segments = self._segmenter.split(text)
        if not source.add_special_tokens:
            return SegmentedPrompt([], segments, [])
        ended = not (isinstance(source, Chat) and source.has_media)
        return SegmentedPrompt(self._segmenter.head, segments, self._segmenter.tail if ended else [])

    def encode_segment(self, segment: bytes, source: Chat | Text) -> list[int]:
        """Return the ids of one segment of `source`."""
        if self._messages is not None and isinstance(source, Chat):
            return self._messages.encode(segment)
        text = segment.decode()
        if self._segmenter is not None:
            return self._codec.encode(text, False)
        return self._encode_whole(text, source).tolist()

    def find_date(self, ids: Sequence[int]) -> str | None:
        """Return the date that the engine has put into this prompt; None if it puts none there."""
        return None if self._messages is None else self._messages.find_date(ids)

    def lasts_s(self) -> float | None:
        """Return the time until all chats' ids change, as with a date in them; None: they never do."""
        return None if self._messages is None else self._messages.lasts_s()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return self._codec.decode(ids)

    def _encode_whole(self, text: str, source: Chat | Text) -> array[int]:
        ids = array("I", self._codec.encode(text, source.add_special_tokens))
        return self._strip_tail(ids, text, source) if isinstance(source, Chat) and source.has_media else ids

    def _strip_tail(self, ids: array[int], text: str, chat: Chat) -> array[int]:
        """Remove the special tokens that the tokenizer puts after a whole prompt: this prompt continues."""
        if not chat.add_special_tokens:
            return ids
        bare = array("I", self._codec.encode(text, False))
        before = next((i for i in range(len(ids) - len(bare) + 1) if ids[i : i + len(bare)] == bare), 0)
        return ids[: before + len(bare)]

    def _set_up_segmenter(self, typical_chat: str, least_bytes: int) -> str | None:
        """Choose a delimiter and verify that segmenting is exact. Return why it is not used; None if it is, or if
        chats are rendered into ids.
        """
        encode, added = self._codec.encode, self._codec.added
        delimiter = choose_delimiter(added, typical_chat)
        if delimiter is None:
            return None if self._texts is None else "no special token that chats hold can be cut at"
        segmenter = Segmenter(delimiter.encode(), *find_special_ids(encode), least_bytes)
        failing_text = find_difference(encode, segmenter, [token.content for token in added])
        if failing_text is not None:
            return f"cut at {delimiter!r}, the text {failing_text!r} has other ids"
        self._segmenter = segmenter
        return None

    def _render_typical_chat(self) -> str:
        """Render an agent's chat with this model's template; empty if no template takes one."""
        for fields in () if self._texts is None else AGENT:
            prompt = read_prompt("/v1/chat/completions", None, msgspec.json.encode(fields), ReadOptions())
            try:
                if isinstance(prompt.source, Chat):
                    return self.render(prompt.source)
            except UnrenderableChat:
                continue
        return ""
