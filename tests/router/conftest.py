"""Fixtures of several packages: the event loop that the router runs on, and a small tokenizer made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from router.config.schema import TokenizerSource
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}
{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TEXTS = ["the quick brown fox jumps over the lazy dog", "What is the weather in Zürich? 21 °C", '{"name": "weather"}']


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    """Every test runs on uvloop, as the router does."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as Hugging Face's: tokenizer.json, tokenizer_config.json with template and special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def local(model_dir: Path) -> LocalTokenizer:
    return load(TokenizerSource(path=str(model_dir)), "tokenizers.m", lambda: 0.0)
