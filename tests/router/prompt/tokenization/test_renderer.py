"""Which renderer vLLM chooses for a model folder."""

from __future__ import annotations

from typing import Any

import pytest

from router.prompt.tokenization.renderer import (
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    DEEPSEEK_V41,
    HARMONY,
    INKLING,
    JINJA,
    KIMI_K3,
    MAYBE_MISTRAL,
    MISTRAL,
    Renderer,
    choose_renderer,
)


@pytest.mark.parametrize(
    ("config", "files", "renderer"),
    [
        ({}, [], JINJA),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, ["tokenizer.json"], JINJA),
        ({"model_type": "gpt_oss"}, ["tokenizer.json"], HARMONY),
        ({"architectures": ["GptOssForCausalLM"]}, [], HARMONY),
        ({"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}, ["tiktoken.model"], JINJA),
        ({"architectures": ["KimiK3ForConditionalGeneration"]}, [], KIMI_K3),
        ({"architectures": ["InklingForConditionalGeneration"]}, [], INKLING),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, [], DEEPSEEK_V32),
        ({"architectures": ["DeepseekV4ForConditionalGeneration"]}, [], DEEPSEEK_V4),
        ({"architectures": ["DeepseekV41ForCausalLM"]}, [], DEEPSEEK_V41),
        ({"model_type": "mistral"}, ["tokenizer.json", "tekken.json", "consolidated.safetensors"], MISTRAL),
        ({"model_type": "mistral"}, ["tokenizer.json", "tekken.json", "model-1.safetensors"], JINJA),
        ({"model_type": "mistral"}, ["tokenizer.json", "tokenizer.model.v3"], MAYBE_MISTRAL),
        ({}, ["tekken.json"], MISTRAL),
        ({"model_type": "llama"}, ["tokenizer.json", "tokenizer.model"], JINJA),
        ({"architectures": "odd", "model_type": 3}, [], JINJA),
        ({"architectures": [None, {}]}, [], JINJA),
    ],
)
def test_the_renderer_of_a_folder(config: dict[str, Any], files: list[str], renderer: Renderer) -> None:
    assert choose_renderer(config, files) == renderer
