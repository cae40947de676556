"""Chats of a known number of tokens, as agents have them: a long history that grows by an answer and a question.

Text is slices of the English that every Python has with it. It is rendered as ChatML, as the templates of the emulated
and of the generated models do with such chats; special tokens split the text, so tokens add up by message. Every body
states its count (`answers.py`), so a router that counts otherwise is detected. From one seed, always the same.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer

from tests.bench.answers import MODEL

MESSAGE_TOKENS = 1300  # of a history: 80,000 tokens in 62 messages
ANSWER_SHARE = 0.2  # of a turn's new tokens; the rest is what the user or a tool says to it


class Words:
    """A model folder's tokenizer and endless text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._text = "\n".join(topics.values())
        self.opening_tokens = self.count("<|im_start|>assistant\n")  # what a template puts behind the last message

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def some(self, tokens: int, dice: random.Random) -> str:
        """Return about `tokens` tokens of text."""
        start = dice.randrange(len(self._text) - 8 * tokens)
        ids = self._tokenizer.encode(self._text[start : start + 8 * tokens], add_special_tokens=False).ids
        text: str = self._tokenizer.decode(ids[:tokens])
        return f"{dice.getrandbits(48):012x} {text}"


class Chat:
    """A conversation of about `tokens` tokens; `tokens` is then the exact count of its prompt."""

    def __init__(self, words: Words, tokens: int, seed: int, message_tokens: int = MESSAGE_TOKENS) -> None:
        self._words = words
        self._dice = random.Random(seed)
        self._messages: list[dict[str, str]] = []
        self.tokens = words.opening_tokens
        while (left := tokens - self.tokens) > 20:
            self._say("assistant" if len(self._messages) % 2 else "user", min(left - 12, message_tokens))
        if len(self._messages) % 2 == 0:  # a prompt ends with what the user says
            self._say("user", 4)

    def turn(self, new_tokens: int) -> None:
        """Append an answer and the next question, about `tokens` tokens together."""
        self._say("assistant", round(new_tokens * ANSWER_SHARE))
        self._say("user", round(new_tokens * (1 - ANSWER_SHARE)))

    def rendered(self) -> str:
        said = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in self._messages)
        return f"{said}<|im_start|>assistant\n"

    def body(self) -> bytes:
        return json.dumps({"seed": self.tokens, "model": MODEL, "messages": self._messages}).encode()

    def _say(self, role: str, tokens: int) -> None:
        content = self._words.some(max(1, tokens), self._dice)
        self._messages.append({"role": role, "content": content})
        self.tokens += self._words.count(f"<|im_start|>{role}\n{content}<|im_end|>\n")
