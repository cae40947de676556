"""A prompt as remembered for the next turn of its chat: its messages as read, and their text as the template
printed it.

A chat's next turn repeats the bytes of its messages. `api/known_messages.py` reads only the new messages after
them, `tokenization/named_text.py` encodes and names only the text that is printed differently, and
`tokenization/prompt_memory.py` keeps the latest prompts. Everything that is reused was compared byte by byte: a
hash finds a prompt, and proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final


class NamedText:
    """A prompt's text as a template printed it, and its complete segments: those followed by a delimiter."""

    def __init__(self, root: bytes) -> None:
        self.root: Final = root  # of the names
        self.chunks: list[str] = []  # as printed
        self.chunk_ends: list[int] = []  # in bytes of UTF-8, from the beginning of the text
        self.ends: list[int] = []  # likewise, of the segments
        self.names: list[bytes] = []  # of the segments
        self.hashes: list[blake2b] = []  # from which the names after each segment are computed


class ReadMessages:
    """The messages of one body. `ends`: where each message ends in `raw`, the array as the client wrote it;
    `digests`: hashes of the beginnings of `raw`, by which the prompt is found again.
    """

    def __init__(self, raw: bytes, digests: list[int], known: KnownPrompt | None) -> None:
        self.raw: Final = raw
        self.digests: Final = digests
        self.known: Final = known  # the remembered prompt whose messages begin alike
        self.known_messages = 0  # number of messages taken from the known prompt
        self.ends: list[int] = []
        self.messages: list[dict[str, Any]] = []  # normalised; shared with other prompts, so nobody changes them
        self.sizes: list[int] = []  # memory of each message together with all before it
        self.flat: dict[str, list[dict[str, Any]]] = {}  # by content format: the messages as templates take them
        self.clean_messages = 0  # number of messages, from the first, known to spell no special token


class KnownPrompt:
    """A remembered prompt of `owner` (model, adapter and salt)."""

    def __init__(self, owner: bytes, read: ReadMessages, text: NamedText, memory_bytes: int) -> None:
        self.owner: Final = owner
        self.raw: Final = read.raw
        self.digests: Final = read.digests
        self.ends: Final = read.ends
        self.messages: Final = read.messages
        self.sizes: Final = read.sizes
        self.flat: Final = read.flat
        self.clean_messages: Final = read.clean_messages
        self.text: Final = text
        self.memory_bytes: Final = memory_bytes


FindKnown = Callable[[bytes], ReadMessages]
"""Returns a JSON array of messages with the remembered prompt that begins alike; no message has been read yet."""
