"""`make_model.py FOLDER` makes random models: Qwen2 `tiny` and `mid`, an adapter for the first, Gemma 3 `hybrid`, and
Qwen3-Next `linear`.

Nothing is downloaded. Their output is meaningless, but their tokenizer (byte-level BPE), chat template (ChatML with
tools, after Qwen's) and KV cache are of the real kind, which is all that tests need. The template is made to reveal
every mistake in the conversion of messages: it prints tool-call arguments through `tojson`, so a string in place of
an object changes the tokens, and it uses a kwarg. Run with the Python of the stack's environment.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

VOCABULARY = 4096
POSITIONS = 32768
RANK = 8
WINDOW = 128  # tokens
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen2's rule for splitting text into words, which transformers uses for every Qwen2 model and in place of its file's.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]  # added tokens that are not special, as in Qwen's


class ModelSize(NamedTuple):
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int


TINY = ModelSize(2, 256, 4, 2, 512)  # 2.2 M parameters, 1 KiB of KV cache per token
MID = ModelSize(8, 512, 8, 4, 1536)  # 27 M parameters, 8 KiB of KV cache per token

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call these functions:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nAnswer with <tool_call>{\\"name\\": ..., \\"arguments\\": ...}</tool_call>.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- '<|im_start|>system\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and message.content) or not loop.first %}
                {{- '\\n' }}
            {%- endif %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the source files of Python's standard library."""
    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    corpus = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:150]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(PLAIN),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train([str(path) for path in corpus], trainer)
    raw.add_tokens([AddedToken(word, special=False, normalized=False) for word in PLAIN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        model_max_length=POSITIONS,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(folder: Path, tokenizer: PreTrainedTokenizerFast, size: ModelSize) -> None:
    """Write a model with random weights and its tokenizer."""
    config = Qwen2Config(**settings_of(tokenizer, size))
    save(folder, tokenizer, Qwen2ForCausalLM, config)


def make_hybrid(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a model with random weights, four layers with a sliding window beside two of full attention."""
    config = Gemma3TextConfig(
        **settings_of(tokenizer, TINY._replace(layers=6)),
        head_dim=64,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        sliding_window=WINDOW,
    )
    save(folder, tokenizer, Gemma3ForCausalLM, config)


def make_linear(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a model with random weights, two layers with linear attention beside two of full attention."""
    config = Qwen3NextConfig(
        **settings_of(tokenizer, TINY._replace(layers=4)),
        head_dim=64,
        full_attention_interval=2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        mlp_only_layers=[0, 1, 2],  # vLLM requires one layer with experts
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
    )
    save(folder, tokenizer, Qwen3NextForCausalLM, config)


def settings_of(tokenizer: PreTrainedTokenizerFast, size: ModelSize) -> dict[str, Any]:
    """Return the settings that all these models have in common."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": "bfloat16",
    }


def save(folder: Path, tokenizer: PreTrainedTokenizerFast, model: Any, config: Any) -> None:
    """Write a model with random weights, the same each time."""
    torch.manual_seed(0)
    model(config).to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def make_adapter(folder: Path, size: ModelSize) -> None:
    """Write a LoRA of rank 8 on the query projections, with random weights."""
    folder.mkdir(parents=True)
    settings: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "bias": "none",
    }
    settings |= {"r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1))
    weights = {}
    for layer in range(size.layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = 0.02 * torch.randn(RANK, size.hidden, dtype=torch.float32)
        weights[f"{name}.lora_B.weight"] = 0.02 * torch.randn(size.hidden, RANK, dtype=torch.float32)
    save_file(weights, str(folder / "adapter_model.safetensors"))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    words = make_tokenizer()
    make_model(target / "tiny", words, TINY)
    make_model(target / "mid", words, MID)
    make_hybrid(target / "hybrid", words)
    make_linear(target / "linear", words)
    make_adapter(target / "adapter", TINY)
