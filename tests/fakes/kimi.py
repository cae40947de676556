"""A model folder's tokenizer of Kimi's kind: `tiktoken.model`, and the special tokens in `tokenizer_config.json`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

SPECIAL = ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
PLAIN = ("<think>", "</think>")  # added tokens that are not special
TEMPLATE = """\
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>{% endif %}
{%- for m in messages %}
    {%- set name = m.name or m.role %}
    {{- ('<|im_system|>' if m.role in ('system', 'tool') else '<|im_' + m.role + '|>') + name + '<|im_middle|>' }}
    {%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
    {%- if m.content is string %}{{ m.content }}{% else %}
        {%- for part in m.content or [] %}{{ part.text }}{% endfor %}
    {%- endif %}
    {%- for call in m.tool_calls or [] %}{{ call.id }}{{ call.function.arguments | tojson }}{% endfor %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""


def write_kimi(folder: Path) -> None:
    """Write the files, with the vocabulary that mistral-common has as an example."""
    example: dict[str, Any] = json.loads(files("mistral_common").joinpath("data/tekken_240911.json").read_text())
    vocabulary = example["vocab"][: example["config"]["default_vocab_size"]]
    (folder / "tiktoken.model").write_text("".join(f"{one['token_bytes']} {one['rank']}\n" for one in vocabulary))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    first = len(vocabulary)
    added = {
        str(first + n): {"content": content, "special": content in SPECIAL, **flags}
        for n, content in enumerate((*SPECIAL, *PLAIN))
    }
    named = {"bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[EOS]", "pad_token": "[EOS]"}
    settings = {"added_tokens_decoder": added, **named, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
