"""What templates see beside the chat is what the engine's see: special tokens, and variables of the client's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from router.config.schema import TokenizerSource
from router.lab.local_stack.install import stack_models, stack_venv
from router.prompt.tokenization.model_folder import load
from tests.stack.bodies import Body
from tests.stack.sdists import Template
from tests.stack.template_bodies import CHAT, MODEL
from tests.stack.template_comparison import make_model_folder, reference, render_all

pytestmark = pytest.mark.stack

NAMES = ("range", "dict", "lipsum", "cycler", "joiner", "namespace", "mood", "bos_token", "loop", "strftime_now")
GLOBALS = (
    "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = i %}{% endfor %}{{ ns.n }} {{ dict(a=1).a }} "
    "{{ mood }} {{ bos_token }} {{ messages[0].content }}{% if tools is not none and tools %} tools{% endif %}"
)
DATE = "{{ strftime_now('%Y') }} {{ messages[0].content }}"
LOAD = "import json, sys; from transformers import AutoTokenizer as A\n"
LOAD += "print(json.dumps([A.from_pretrained(f).special_tokens_map for f in sys.argv[1:]]))"


def test_variables_that_shadow_globals(tmp_path: Path) -> None:
    templates = []
    for name, text in (("globals", GLOBALS), ("date", DATE)):
        file = tmp_path / f"{name}.jinja"
        file.write_text(text)
        templates.append(Template(name, file))
    fields: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    kwargs: list[dict[str, Any]] = [{}, *({name: "mine"} for name in NAMES), dict.fromkeys(NAMES[:-1], 7)]
    bodies = [Body(str(one), CHAT, fields | {"chat_template_kwargs": one}) for one in kwargs]
    model = make_model_folder(tmp_path)
    with reference(model, [(template.text, bodies) for template in templates]) as lines:
        for template in templates:
            theirs = json.loads(next(lines))
            ours = render_all(model, template, bodies)
            alike = [
                one == other or (isinstance(one, dict) and isinstance(other, dict))
                for one, other in zip(ours, theirs, strict=True)
            ]
            assert all(alike), [row for row in zip(bodies, ours, theirs, alike, strict=True) if not row[-1]]
            assert sum(isinstance(one, list) for one in theirs) >= len(bodies) - 1


def test_which_file_names_the_special_tokens(tmp_path: Path) -> None:
    folders = []
    for name, config, of_map in (
        ("map wins", {"bos_token": "<a>", "eos_token": "<e>"}, {"bos_token": {"content": "<b>"}, "pad_token": "<p>"}),
        ("map is not read", {"bos_token": "<a>", "added_tokens_decoder": {}}, {"bos_token": "<b>", "pad_token": "<p>"}),
        ("no map", {"bos_token": "<a>", "unk_token": {"__type": "AddedToken", "content": "<u>"}}, None),
        ("no config", None, {"bos_token": "<b>"}),
        ("null", {"bos_token": "<a>"}, {"bos_token": None}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(stack_models(stack_venv()).tiny / "tokenizer.json", folder)
        if config is not None:
            (folder / "tokenizer_config.json").write_text(
                json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | config)
            )
        if of_map is not None:
            (folder / "special_tokens_map.json").write_text(json.dumps(of_map))
        folders.append(folder)
    command = [str(stack_venv() / "bin" / "python"), "-c", LOAD, *map(str, folders)]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for folder, tokens in zip(folders, theirs, strict=True):
        found = load(TokenizerSource(path=str(folder)), "x", lambda: 0.0)._variables
        assert found == tokens, folder.name
