"""A model folder becomes a tokenizer; what is missing or broken there names the configuration key."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from router.config.schema import TokenizerSource
from router.errors import ConfigError
from router.prompt.prompt import Chat, Text
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from router.prompt.tokenization.renderer import HARMONY, JINJA

TOOL = {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}


def chat(content: str = "hi", *, tools: list[dict[str, object]] | None = None, special: bool = False) -> Chat:
    message = {"role": "user", "content": [{"type": "text", "text": content}]}
    return Chat([message], tools, {}, True, False, special, False)


def loaded(folder: Path, **source: object) -> LocalTokenizer:
    return load(TokenizerSource(path=str(folder), **source), "tokenizers.m", lambda: 0.0)  # type: ignore[arg-type]


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model_dir, tmp_path / "m")


def test_special_tokens_are_added_where_asked(local: LocalTokenizer, model_dir: Path) -> None:
    plain = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert local.tokenize(Text("the fox", True)) == array("I", plain.encode("the fox").ids)
    assert local.tokenize(Text("the fox", False)) == array("I", plain.encode("the fox", add_special_tokens=False).ids)
    assert local.tokenize(Text("the fox", True))[0] == 0
    assert plain.decode(list(local.tokenize(chat())), skip_special_tokens=False) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_long_prompts_are_whole_whatever_the_file_says_of_truncation(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(loaded(folder).tokenize(Text("fox " * 50, False))) >= 50
    assert len(loaded(folder).tokenize(Text("fox", False))) < 10


def test_a_cut_chat_has_no_end_token(local: LocalTokenizer) -> None:
    cut = chat("one two <media>", special=True)._replace(has_media=True)
    cut.messages[0]["content"].append({"type": "media", "modality": "image"})
    whole = local.tokenize(cut)
    assert whole[0] == 0
    assert 1 not in whole


def test_half_a_surrogate_pair(local: LocalTokenizer) -> None:
    with pytest.raises(UnrenderableChat):
        local.tokenize(Text("\ud800", False))


def test_templates_by_name(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "plain {{ bos_token }}{{ eos_token }}{{ mood }}"},
        {"name": "tool_use", "template": "tools"},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    local = loaded(folder, template_kwargs={"mood": "!"})
    assert local.render(chat()) == "plain <s></s>!"
    assert local.render(chat(tools=[TOOL])) == "tools"


@pytest.mark.parametrize(
    ("config", "printed"),
    [({}, "<b></s>"), ({"added_tokens_decoder": {}}, "<s></s>")],
)
def test_an_older_file_of_special_tokens(folder: Path, config: dict[str, Any], printed: str) -> None:
    """As in transformers 4 and 5: it takes precedence, unless the newer file lists the added tokens."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("added_tokens_decoder", None)
    settings["chat_template"] = "{{ bos_token }}{{ eos_token }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | config))
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<b>", "lstrip": False}}))
    assert loaded(folder).render(chat()) == printed


def test_variables_of_the_operator_that_shadow_globals_are_dropped(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ range(2) | list }}{{ mood }}")
    assert loaded(folder, template_kwargs={"range": 1, "mood": "!"}).render(chat()) == "[0, 1]!"


def test_where_the_template_comes_from(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("from its own file")
    assert loaded(folder).render(chat()) == "from its own file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert loaded(folder).render(chat(tools=[TOOL])) == "with tools"
    (tmp_path / "own.jinja").write_text("the operator's")
    assert loaded(folder, chat_template=str(tmp_path / "own.jinja")).render(chat(tools=[TOOL])) == "the operator's"


def test_without_a_template_texts_still_work(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    local = loaded(folder)
    assert len(local.tokenize(Text("fox", False))) > 0
    with pytest.raises(UnrenderableChat):
        local.render(chat())


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", None),
        ("tokenizer_config.json", "{"),
        ("chat_template.jinja", "{% for %}"),
    ],
)
def test_broken_folders_name_the_key(folder: Path, file: str, content: str | None) -> None:
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizers\.m"):
        loaded(folder)


def test_a_path_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"tokenizers\.m\.path"):
        load(TokenizerSource(), "tokenizers.m", lambda: 0.0)


def test_the_renderer_is_the_folder_s(folder: Path) -> None:

    assert loaded(folder).renderer == JINJA
    (folder / "config.json").write_text('{"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}')
    assert loaded(folder).renderer == HARMONY
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizers\.m\.path: .*config\.json"):
        loaded(folder)
