"""Determines how vLLM renders a model's chats, and which of the router's sources of token ids may be right.

Most models have a Jinja template, which the engine, its `/tokenize` and a local tokenizer all render alike. Others
are rendered by code of vLLM or of the model, and then neither the folder's template nor, for some, `/tokenize`
shows what the engine generates from. The selection follows vLLM 0.32 (config/model.py, tokenizers/registry.py,
renderers/registry.py). If an option of the engine overrides it, the proof (`proof.py`) finds the difference.

Plain prompts of `/v1/completions` are tokenised as they are in every mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

Belief = Literal["until_refuted", "once_proved", "never"]
"""Whether a source of ids is used: unless a proof or an answer contradicts it, after a proof, or not at all."""


class Renderer(NamedTuple):
    """One of vLLM's ways to render chats. `local`, `tokenize`: the belief in the ids of a local tokenizer, and in
    those of the engine's `/tokenize`.
    """

    name: str  # vLLM's name of the mode
    local: Belief
    tokenize: Belief


JINJA: Final = Renderer("jinja", "until_refuted", "until_refuted")
HARMONY: Final = Renderer("harmony", "until_refuted", "never")  # /tokenize renders the template, generation does not
MISTRAL: Final = Renderer("mistral", "until_refuted", "until_refuted")
DEEPSEEK_V32: Final = Renderer("deepseek_v32", "until_refuted", "until_refuted")
DEEPSEEK_V4: Final = Renderer("deepseek_v4", "until_refuted", "until_refuted")
DEEPSEEK_V41: Final = Renderer("deepseek_v41", "until_refuted", "until_refuted")
KIMI_K3: Final = Renderer("kimi_k3", "never", "never")  # depends on fields that /tokenize cannot be given
INKLING: Final = Renderer("inkling", "never", "never")  # no rule known

MAYBE_MISTRAL: Final = MISTRAL._replace(local="once_proved")
"""A folder with the tokenizers of both modes and no weights, by which vLLM chooses: the proof decides."""

START_DATE: Final = "VLLM_SYSTEM_START_DATE"
"""The environment variable of engines with the date in all prompts of gpt-oss; without it, it is the present date."""

CHOSEN: Final = {one.name: one for one in (JINJA, HARMONY, MISTRAL, DEEPSEEK_V32, DEEPSEEK_V4, DEEPSEEK_V41)}
"""The renderers that exist here, by name."""

_BY_ARCHITECTURE: Final = {
    "GptOssForCausalLM": HARMONY,
    "KimiK3ForConditionalGeneration": KIMI_K3,
    "DeepseekV32ForCausalLM": DEEPSEEK_V32,
    "DeepseekV4ForCausalLM": DEEPSEEK_V4,
    "DeepseekV4ForConditionalGeneration": DEEPSEEK_V4,
    "DeepseekV41ForCausalLM": DEEPSEEK_V41,
}


def choose_renderer(config: dict[str, Any], files: Sequence[str]) -> Renderer:
    """Return the renderer of a model folder with this `config.json` (empty if missing) and these file names."""
    if config.get("model_type") == "gpt_oss":
        return HARMONY
    architectures = config.get("architectures")
    for name in architectures if isinstance(architectures, list) else ():
        if isinstance(name, str) and name.startswith("Inkling"):
            return INKLING
        if isinstance(name, str) and name in _BY_ARCHITECTURE:
            return _BY_ARCHITECTURE[name]
    return JINJA if find_mistral_file(files) is None else _choose_mistral(files)


def _choose_mistral(files: Sequence[str]) -> Renderer:
    weights = [name for name in files if name.endswith(".safetensors")]
    if any(name.startswith("consolidated") for name in weights) or "tokenizer.json" not in files:
        return MISTRAL
    return JINJA if weights else MAYBE_MISTRAL


def find_mistral_file(files: Sequence[str]) -> str | None:
    """Return the name of Mistral's own tokenizer file among these; None if there is none."""
    if "tekken.json" in files:
        return "tekken.json"
    return max((name for name in files if name.startswith("tokenizer.model.v")), default=None)
