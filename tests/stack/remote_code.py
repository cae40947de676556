"""A tokenizer of Kimi's kind for transformers, copied into a model folder as its remote code.

It does what the tokenizers of Kimi K2's repository do where transformers calls them: tiktoken between the special
tokens, and tools with sorted members. It shares no code with the router's.
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import tiktoken
from transformers import PreTrainedTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

HAN, LETTERS = r"[\p{Han}]+", r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}" + LETTERS, r"[\p{Ll}" + LETTERS
LEAD = r"[^\r\n\p{L}\p{N}]?"
PATTERN = "|".join(
    [
        HAN,
        LEAD + UPPER + "*" + LOWER + "+" + ENDING,
        LEAD + UPPER + "+" + LOWER + "*" + ENDING,
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)


class KimiLikeTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file: str, added_tokens_decoder: Any = None, **options: Any) -> None:
        lines = Path(vocab_file).read_text().split("\n")
        pairs = [line.split(" ") for line in lines if line]
        ranks = {b64decode(token): int(rank) for token, rank in pairs}
        names = {int(id): str(token) for id, token in (added_tokens_decoder or {}).items()}
        special = {names.get(id, f"<|reserved_token_{id}|>"): id for id in range(len(ranks), len(ranks) + 256)}
        self.vocab_file = vocab_file
        self._encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
        printable = bytes_to_unicode()
        self._bytes = {letter: byte for byte, letter in printable.items()}
        tokens = [*ranks, *(name.encode() for name in special)]
        self._tokens = ["".join(printable[byte] for byte in token) for token in tokens]
        self._ids = {token: id for id, token in enumerate(self._tokens)}
        super().__init__(added_tokens_decoder=added_tokens_decoder, **options)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def get_vocab(self) -> dict[str, int]:
        return self._ids

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return [self._tokens[id] for id in self._encoding.encode(text, allowed_special="all")]

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids[token]

    def _convert_id_to_token(self, index: int) -> str:
        return self._tokens[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return bytes(self._bytes[letter] for letter in "".join(tokens)).decode("utf-8", "replace")

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        return (self.vocab_file,)

    def apply_chat_template(self, conversation: Any, tools: Any = None, **options: Any) -> Any:
        return super().apply_chat_template(conversation, tools=ordered(tools), **options)


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(sorted((name, ordered(one)) for name, one in value.items()))
    return [ordered(one) for one in value] if isinstance(value, list) else value
