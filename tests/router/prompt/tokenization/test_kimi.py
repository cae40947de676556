"""Texts of Kimi K2: as tiktoken encodes them, special tokens where a text spells them, and runs that it cannot take."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from router.config.schema import TokenizerSource
from router.errors import ConfigError, ExtraMissing
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat
from router.prompt.tokenization.kimi import RESERVED, RUN_CHARS, WORDS, KimiCodec, read_ranks
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from tests.fakes.kimi import SPECIAL, write_kimi
from tests.suites.properties import examples

PIECES = (
    *SPECIAL,
    "<|im_",
    "Zürich",
    "東京 is",
    " 12345",
    "\n\n ",
    "it's",
    "\u00a0",
    "🎉",
    "<|reserved_token_",
    " ",
    "a",
)
texts = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kimi")
    write_kimi(made)
    return made


@pytest.fixture(scope="session")
def local(folder: Path) -> LocalTokenizer:
    return load(TokenizerSource(path=str(folder)), "tokenizers.m", lambda: 0.0, least_bytes=64)


@pytest.fixture(scope="session")
def codec(folder: Path) -> KimiCodec:
    return KimiCodec(read_ranks(folder / "tiktoken.model"), _named(folder))


@pytest.fixture(scope="session")
def reference(folder: Path) -> tiktoken.Encoding:
    ranks, named = read_ranks(folder / "tiktoken.model"), _named(folder)
    ids = range(len(ranks), len(ranks) + RESERVED)
    special = {named.get(id, f"<|reserved_token_{id}|>"): id for id in ids}
    return tiktoken.Encoding("reference", pat_str=WORDS, mergeable_ranks=ranks, special_tokens=special)


def _named(folder: Path) -> dict[int, str]:
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    return {int(id): token["content"] for id, token in added.items()}


@examples(100)
@given(text=texts)
def test_a_text_has_the_ids_of_tiktoken_with_all_special_tokens(
    codec: KimiCodec, reference: tiktoken.Encoding, text: str
) -> None:
    assert codec.encode(text, True) == codec.encode(text, False) == reference.encode(text, allowed_special="all")
    assert codec.decode(reference.encode_ordinary(text)) == text


@pytest.mark.parametrize("letter", ["a", " "])
def test_a_run_that_tiktoken_cannot_take_is_cut(codec: KimiCodec, reference: tiktoken.Encoding, letter: str) -> None:
    other = " " if letter == "a" else "a"
    text = f"{other}{letter * (2 * RUN_CHARS + 7)}{other}"
    parts = [text[: 1 + RUN_CHARS], text[1 + RUN_CHARS : 1 + 2 * RUN_CHARS], text[1 + 2 * RUN_CHARS :]]
    assert codec.encode(text, False) == [id for part in parts for id in reference.encode_ordinary(part)]


def test_chats_are_segmented_and_their_tools_are_sorted(local: LocalTokenizer) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": {"z": 1, "a": {"y": 1, "b": 2}}}}
    body = {"messages": [{"role": "user", "content": "Hi " * 100}] * 3, "tools": [tool]}
    source = read_prompt("/v1/chat/completions", None, json.dumps(body).encode(), ReadOptions()).source
    assert isinstance(source, Chat)
    assert '"parameters":{"a":{"b":2,"y":1},"z":1}' in local.render(source)
    assert local.whole_prompt_reason is None
    prompt = local.segment(source)
    assert len(prompt.segments) > 3
    ids = [id for segment in prompt.segments for id in local.encode_segment(segment, source)]
    assert ids == local.tokenize(source).tolist()


def test_what_is_missing_or_broken_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = shutil.copytree(folder, tmp_path / "kimi")
    (broken / "tiktoken.model").write_text("no vocabulary\n")
    with pytest.raises(ConfigError, match=r"tokenizers\.m\.path: .*tiktoken\.model: "):
        load(TokenizerSource(path=str(broken)), "tokenizers.m", lambda: 0.0)
    monkeypatch.delitem(sys.modules, "router.prompt.tokenization.kimi")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ExtraMissing, match=r"tokenizers\.m: .*pip install 'warmroute\[kimi\]'"):
        load(TokenizerSource(path=str(folder)), "tokenizers.m", lambda: 0.0)
