"""Model folders for vLLM's modes of rendering by code, with and without weights.

The weights are those of the stack's tiny model: its architecture does not matter to a renderer. The rows of its
embedding are repeated until each id of the mode's vocabulary has one.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.kimi import write_kimi
from tests.fakes.tekken import tekken
from tests.stack.template_comparison import make_model_folder

DEEPSEEK = ("deepseek_v32", "deepseek_v4", "deepseek_v41")
MISTRAL = ("mistral_v3", "mistral_v7", "mistral_v11", "mistral_v13", "mistral_v15")
MODES = ("harmony", *DEEPSEEK, *MISTRAL, "kimi_k2")
REMOTE_CODE = Path(__file__).parent / "remote_code.py"
MEASURED = json.loads((Path(__file__).parents[2] / "docs" / "measurements" / "renderers.json").read_text())
"""What the tests find with the installed vLLM, by mode: the page "Which models" shows it."""
VOCABULARY = 201_088  # gpt-oss has the largest
EMBEDDING = "model.embed_tokens.weight"
WEIGHTS = "model.safetensors"


def make_mode_folder(mode: str, parent: Path) -> tuple[Path, Sequence[str]]:
    """Return a folder of that mode without weights, and the options of the engine that select the mode."""
    model = make_model_folder(parent)
    if mode == "harmony":
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"model_type": "gpt_oss"}))
        return model, ("--tool-call-parser", "openai")
    if mode in DEEPSEEK:
        return model, ("--tokenizer-mode", mode)
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    if mode == "kimi_k2":
        write_kimi(model)
        shutil.copy(REMOTE_CODE, model)
        file = model / "tokenizer_config.json"
        where = {"auto_map": {"AutoTokenizer": [f"{REMOTE_CODE.stem}.KimiLikeTokenizer", None]}}
        file.write_text(json.dumps(json.loads(file.read_text()) | where | {"tokenizer_class": "KimiLikeTokenizer"}))
        return model, ("--trust-remote-code",)
    (model / "tekken.json").write_text(json.dumps(tekken(mode.removeprefix("mistral_"))))
    return model, ("--tokenizer-mode", "mistral")


def add_weights(model: Path, tiny: Path) -> None:
    """Give the folder the weights of `tiny`, with `VOCABULARY` rows in the embedding."""
    raw = (tiny / WEIGHTS).read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header, begin = json.loads(raw[8 : 8 + size]), 8 + size
    tensors = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            tensors[name] = raw[begin + first : begin + last]
    rows, width = header[EMBEDDING]["shape"]
    row_bytes = len(tensors[EMBEDDING]) // rows
    tensors[EMBEDDING] = (tensors[EMBEDDING] * (VOCABULARY // rows + 1))[: VOCABULARY * row_bytes]
    header[EMBEDDING]["shape"] = [VOCABULARY, width]
    end = 0
    for name, content in tensors.items():
        header[name]["data_offsets"] = [end, end := end + len(content)]
    head = json.dumps(header).encode()
    (model / WEIGHTS).write_bytes(struct.pack("<Q", len(head)) + head + b"".join(tensors.values()))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY}))
