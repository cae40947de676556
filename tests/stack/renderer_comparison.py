"""`python -m tests.stack.renderer_comparison` compares chats of models without a template with vLLM's own renderers.

As `template_comparison`, for the modes in which vLLM renders by code: the same requests, ids and refusals.

    renderer_comparison [--chats N] [--seed S] [MODE ...]    N random chats per mode (2,000)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from router.config.schema import TokenizerSource
from router.lab.local_stack.install import print_line
from router.prompt.tokenization.model_folder import load
from tests.stack.mode_models import DEEPSEEK, MODES, make_mode_folder
from tests.stack.template_bodies import FIXED, random_chats
from tests.stack.template_comparison import (
    LEAST_BYTES,
    WALL_S,
    Comparison,
    Pair,
    reference,
    render,
    sort_pair,
)

RANDOM_CHATS = 2000


def compare_mode(mode: str, chats: int, seed: int = 0) -> Comparison:
    """Render the fixed requests and `chats` random ones on both sides."""
    found = Comparison(0, 0, [], [], [])
    bodies = [*FIXED, *random_chats(f"{seed} {mode}", chats)]
    with TemporaryDirectory() as folder:
        model, options = make_mode_folder(mode, Path(folder))
        source = TokenizerSource(path=str(model), renderer=mode if mode in DEEPSEEK else "auto")
        ours = load(source, "tokenizers.tiny", lambda: WALL_S, LEAST_BYTES)
        with reference(model, [(None, bodies)], options) as lines:
            for body, theirs in zip(bodies, json.loads(next(lines)), strict=True):
                found = sort_pair(found, Pair(mode, body, render(ours, body), theirs))
    return found


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
