"""Determines how vLLM makes a chat's token ids for a model, and which of the router's sources of ids may be right.

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
    """One of vLLM's ways to render chats. `template`, `tokenize`: the belief in the folder's Jinja template, and in
    the engine's `/tokenize`.
    """

    name: str  # vLLM's name of the mode
    template: Belief
    tokenize: Belief


JINJA: Final = Renderer("jinja", "until_refuted", "until_refuted")
HARMONY: Final = Renderer("harmony", "never", "never")  # /tokenize renders the template, generation does not
KIMI_K3: Final = Renderer("kimi_k3", "never", "never")  # depends on fields that /tokenize cannot be given
INKLING: Final = Renderer("inkling", "never", "never")  # no rule known
MISTRAL: Final = Renderer("mistral", "once_proved", "until_refuted")  # or "jinja", with --tokenizer-mode hf
DEEPSEEK: Final = Renderer("deepseek", "once_proved", "until_refuted")  # V3.2, V4 and V4.1

_BY_ARCHITECTURE: Final = {
    "GptOssForCausalLM": HARMONY,
    "KimiK3ForConditionalGeneration": KIMI_K3,
    "DeepseekV32ForCausalLM": DEEPSEEK,
    "DeepseekV4ForCausalLM": DEEPSEEK,
    "DeepseekV4ForConditionalGeneration": DEEPSEEK,
    "DeepseekV41ForCausalLM": DEEPSEEK,
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
    if any(name == "tekken.json" or name.startswith("tokenizer.model.v") for name in files):
        return MISTRAL
    return JINJA
