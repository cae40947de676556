"""`python -m tests.stack.renderer_comparison` compares chats of models without a template with vLLM's own renderers.

As `template_comparison`, for the modes in which vLLM renders by code: the same requests, ids and refusals.

    renderer_comparison [--chats N] [--seed S] [MODE ...]    N random chats per mode (2,000)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from router.config.schema import TokenizerSource
from router.lab.local_stack.install import print_line
from router.prompt.tokenization.model_folder import load
from tests.fakes.tekken import tekken
from tests.stack.template_bodies import FIXED, random_chats
from tests.stack.template_comparison import (
    LEAST_BYTES,
    WALL_S,
    Comparison,
    Pair,
    make_model_folder,
    reference,
    render,
    sort_pair,
)

DEEPSEEK = ("deepseek_v32", "deepseek_v4", "deepseek_v41")
MISTRAL = ("mistral_v3", "mistral_v7", "mistral_v11", "mistral_v13", "mistral_v15")
MODES = ("harmony", *DEEPSEEK, *MISTRAL)
RANDOM_CHATS = 2000
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "vocab_size": 201088,
    "max_position_embeddings": 8192,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
}


def compare_mode(mode: str, chats: int, seed: int = 0) -> Comparison:
    """Render the fixed requests and `chats` random ones on both sides."""
    found = Comparison(0, 0, [], [], [])
    bodies = [*FIXED, *random_chats(f"{seed} {mode}", chats)]
    with TemporaryDirectory() as folder:
        model = make_model_folder(Path(folder))
        options = _set_up(mode, model)
        source = TokenizerSource(path=str(model), renderer=mode if mode in DEEPSEEK else "auto")
        ours = load(source, "tokenizers.tiny", lambda: WALL_S, LEAST_BYTES)
        with reference(model, [(None, bodies)], options) as lines:
            for body, theirs in zip(bodies, json.loads(next(lines)), strict=True):
                found = sort_pair(found, Pair(mode, body, render(ours, body), theirs))
    return found


def _set_up(mode: str, model: Path) -> Sequence[str]:
    """Make the folder one of that mode. Return the options of the engine."""
    if mode == "harmony":
        (model / "config.json").write_text(json.dumps(GPT_OSS))
        return ("--tool-call-parser", "openai")
    if mode in DEEPSEEK:
        return ("--tokenizer-mode", mode)
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    (model / "tekken.json").write_text(json.dumps(tekken(mode.removeprefix("mistral_"))))
    return ("--tokenizer-mode", "mistral")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", nargs="*", choices=[[], *MODES])
    parser.add_argument("--chats", type=int, default=RANDOM_CHATS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for mode in given.mode or MODES:
        found = compare_mode(mode, given.chats, given.seed)
        for pair in [*found.unequal, *found.only_ours, *found.only_theirs][:10]:
            print_line(str(pair))
        print_line(f"{mode}: {found}")


if __name__ == "__main__":
    main()
