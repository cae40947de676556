"""`python -m tests.router.lab.emulator.make_tokenizer [FOLDER]` trains the tokenizer of emulated engines.

It is a real byte-level BPE of 4096 tokens, trained on English and code that every Python brings (the language reference
in `pydoc_data.topics` and a few modules), with a ChatML template with tools: small enough to ship, and real enough to
test everything about tokenizers in this project without a model. The result is committed: another Python version trains
a slightly different one.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from router.lab.emulator.vocabulary import DATA, END, SPECIAL

VOCABULARY = 4096
MODULES = ("argparse", "asyncio.base_events", "collections", "dataclasses", "inspect", "json.encoder", "typing")

CHAT_TEMPLATE = """\
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
{{- '<|im_start|>system\\n' + system -}}
{%- if tools -%}
{{- ('\\n\\n' if system else '') + '# Tools\\n\\nYou may call these functions:\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\\n</tools>\\n\\nFor each call answer with:\\n<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + (message.content or '') + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson -}}{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def read_corpus() -> Iterator[str]:
    """Yield the texts to train on."""
    yield from import_module("pydoc_data.topics").topics.values()
    for name in MODULES:
        yield inspect.getsource(import_module(name))


def train() -> Tokenizer:
    """Return a tokenizer trained on the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(read_corpus(), trainer)
    return tokenizer


def write(folder: Path) -> None:
    """Train a tokenizer and write `tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = json.loads(train().to_str())
    (folder / "tokenizer.json").write_text(json.dumps(trained, ensure_ascii=False, separators=(",", ":")), "utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": SPECIAL[0],
        "additional_special_tokens": list(SPECIAL[1:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="train the emulated engines' tokenizer")
    parser.add_argument("folder", nargs="?", type=Path, default=DATA)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
