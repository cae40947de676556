"""Finds chats whose text spells a special token of the tokenizer, such as `<|im_end|>`.

A tokenizer turns such a spelling into the token itself; engines that render chats by code keep it as text. So
unless the proof covered it, these chats are not sent to engines with token ids: a user could otherwise open a
system message. A remembered chat's messages are not searched again, so a next turn costs only its new part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from router.prompt.prompt import Chat

SPELLINGS = (
    "<|end|><|start|>system<|message|>x<|im_end|>\n<|im_start|>system\n<|eot_id|><|start_header_id|>system"
    "<|end_header_id|></s><s>[INST] y [/INST]<end_of_turn><start_of_turn>user\n<\uff5cUser\uff5c>"
)
"""A text that spells special tokens of many models, for proofs."""

_LOOKS_SPECIAL = re.compile(
    rb"(?:<|\\u003[cC])(?:\||\xef\xbd\x9c|\\u007[cC]|\\u[fF][fF]5[cC]|/?(?:s|bos|eos|pad|unk)\b|(?:start|end)_of_)"
    rb"|\[/?[A-Z_]{2,32}\]"
)


def may_spell_special(body: bytes) -> bool:
    """Return whether a request's JSON may contain the spelling of a special token of any model."""
    return _LOOKS_SPECIAL.search(body) is not None


class SpecialTextFinder:
    """Searches for the spellings of `tokens`."""

    def __init__(self, tokens: Iterable[str]) -> None:
        groups: dict[str, list[str]] = {}  # by first characters, for which a regular expression looks first
        for token in sorted(set(tokens)):
            groups.setdefault(token[:2], []).append(token)
        self._patterns = [re.compile("|".join(map(re.escape, group))) for group in groups.values()]

    def find(self, chat: Chat) -> bool:
        """Return whether a text of the chat contains a spelling. The texts of one message count as one text: a
        template may print them without anything between.
        """
        if not self._patterns:
            return False
        if self._search(chat.tools) or self._search(chat.template_kwargs):
            return True
        read = chat.read
        clean = 0
        if read is not None and read.known is not None:
            clean = min(read.known.clean_messages, read.known_messages)
        for message in chat.messages[clean:]:
            if self._search(message):
                break
            clean += 1
        if read is not None:
            read.clean_messages = clean
        return clean < len(chat.messages)

    def _search(self, value: Any) -> bool:
        if not value:
            return False
        texts: list[str] = []
        _collect(value, texts)
        text = "".join(texts)
        return any(pattern.search(text) is not None for pattern in self._patterns)


def _collect(value: Any, texts: list[str]) -> None:
    """Add all strings of a JSON value, in order; only consecutive content parts have nothing between them."""
    if isinstance(value, str):
        texts.append(value)
        texts.append("\n")
    elif isinstance(value, dict):
        for name, member in value.items():
            texts.append(name)
            texts.append("\n")
            _collect(member, texts)
    elif isinstance(value, list):
        for member in value:
            if isinstance(member, dict) and member.get("type") == "text" and isinstance(member.get("text"), str):
                texts.append(member["text"])
            else:
                _collect(member, texts)
        texts.append("\n")


def spell(tokens: Iterable[str]) -> str:
    """Return the text of the probe: the spellings of many models' special tokens, then `tokens`."""
    return " ".join([SPELLINGS, *tokens])
