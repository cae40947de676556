"""Loads a local tokenizer from a model folder, for the renderer that vLLM uses for that model.

The chat template of a model that has one is, in this order: the operator's file, `chat_template.jinja` (with named
ones beside it), or the one in `tokenizer_config.json`, which may be one template or several by name; with tools, the
one named "tool_use" takes precedence.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from router.config.schema import TokenizerSource
from router.errors import ConfigError, needs_extra
from router.prompt.api.openai import JINJA_GLOBALS
from router.prompt.tokenization.chat_template import ChatTemplate, NamedTemplates
from router.prompt.tokenization.deepseek import DeepseekV4, DeepseekV32
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.message_renderer import TextRenderer
from router.prompt.tokenization.renderer import (
    CHOSEN,
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    DEEPSEEK_V41,
    HARMONY,
    MISTRAL,
    START_DATE,
    Renderer,
    choose_renderer,
    find_mistral_file,
)
from router.prompt.tokenization.segments import LEAST_BYTES
from router.prompt.tokenization.text_codec import HfCodec, TextCodec

log = logging.getLogger("warmroute.tokens")

_DEEPSEEK: dict[Renderer, TextRenderer] = {
    DEEPSEEK_V32: DeepseekV32(),
    DEEPSEEK_V4: DeepseekV4(),
    DEEPSEEK_V41: DeepseekV4(v41=True),
}
TIKTOKEN = "tiktoken.model"  # the vocabulary of Kimi K2
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_all(sources: Mapping[str, TokenizerSource], wall: Callable[[], float]) -> dict[str, LocalTokenizer]:
    """Read the model folders of the models that have one. Raises ConfigError."""
    folders = {model: source for model, source in sources.items() if source.path is not None}
    return {model: load(source, f"tokenizers.{model}", wall) for model, source in folders.items()}


def load(
    source: TokenizerSource, where: str, wall: Callable[[], float], least_bytes: int = LEAST_BYTES
) -> LocalTokenizer:
    """Read the model folder. Raises ConfigError, naming the key `where`, for anything missing or broken, and
    ExtraMissing.
    """
    if source.path is None:
        raise ConfigError(f"{where}.path: missing; a local tokenizer needs the model folder")
    folder = Path(source.path)
    try:
        files = [file.name for file in folder.iterdir()]
    except OSError as error:
        raise ConfigError(f"{where}.path: {error}") from None
    if source.renderer == "auto":
        renderer = choose_renderer(_settings(folder / "config.json", where), files)
    else:
        renderer = CHOSEN[source.renderer]
    if renderer.name == MISTRAL.name:
        local = _load_mistral(folder / (find_mistral_file(files) or "tekken.json"), renderer, where)
    else:
        local = _load_hf(folder, source, renderer, where, wall, least_bytes)
    if local.whole_prompt_reason is not None:
        reason = local.whole_prompt_reason
        log.warning("%s: every turn tokenises the whole prompt, because segments are not exact: %s", where, reason)
    return local


def _load_mistral(file: Path, renderer: Renderer, where: str) -> LocalTokenizer:
    with needs_extra("mistral", where):
        from router.prompt.tokenization.mistral import MistralRenderer, load_file
    try:
        messages = MistralRenderer(load_file(file))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{where}.path: {file}: {error}") from None
    return LocalTokenizer(messages.codec, messages=messages, renderer=renderer)


def _load_hf(
    folder: Path,
    source: TokenizerSource,
    renderer: Renderer,
    where: str,
    wall: Callable[[], float],
    least_bytes: int,
) -> LocalTokenizer:
    """Read the vocabulary of a model whose chats are not rendered by mistral-common, and what renders them."""
    config = _settings(folder / "tokenizer_config.json", where)
    is_kimi = (folder / TIKTOKEN).exists() and not (folder / "tokenizer.json").exists()
    codec = _load_kimi(folder / TIKTOKEN, config, where) if is_kimi else _load_tokenizer(folder, where)
    defaults = {name: value for name, value in source.template_kwargs.items() if name not in JINJA_GLOBALS}
    if renderer is HARMONY:
        with needs_extra("harmony", where):
            from router.prompt.tokenization.harmony import HarmonyRenderer, StartDate
        messages = HarmonyRenderer(StartDate(os.environ.get(START_DATE), wall))
        return LocalTokenizer(codec, messages=messages, renderer=renderer)
    if renderer in _DEEPSEEK:
        return LocalTokenizer(codec, _DEEPSEEK[renderer], defaults, least_bytes, renderer)
    try:
        texts = _template_texts(folder, config, source.chat_template)
        by_name = {name: ChatTemplate(text, wall) for name, text in texts.items()}
    except (OSError, jinja2.TemplateSyntaxError) as error:
        raise ConfigError(f"{where}: chat template: {error}") from None
    if "added_tokens_decoder" in config:  # as transformers reads them; without it the older file takes precedence
        special = _special_tokens(config)
    else:
        special = _special_tokens(config | _settings(folder / "special_tokens_map.json", where))
    templates = NamedTemplates(by_name, sorts_tools=is_kimi)
    return LocalTokenizer(codec, templates, special | defaults, least_bytes, renderer)


def _load_kimi(file: Path, config: dict[str, Any], where: str) -> TextCodec:
    with needs_extra("kimi", where):
        from router.prompt.tokenization.kimi import KimiCodec, read_ranks
    added = config.get("added_tokens_decoder")
    try:
        named = {int(id): str(token["content"]) for id, token in (added or {}).items()}
        return KimiCodec(read_ranks(file), named)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}.path: {file}: {error}") from None


def _load_tokenizer(folder: Path, where: str) -> TextCodec:
    file = folder / "tokenizer.json"
    try:
        return HfCodec(Tokenizer.from_str(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{where}.path: {error}") from None
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for a file it cannot read
        raise ConfigError(f"{where}.path: {file}: {error}") from None


def _settings(file: Path, where: str) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}.path: {file}: {error}") from None
    return settings if isinstance(settings, dict) else {}


def _template_texts(folder: Path, config: dict[str, Any], own: str | None) -> dict[str, str]:
    if own is not None:
        return {"default": Path(own).read_text(encoding="utf-8")}
    files = {"default": folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.exists()}
    inline = config.get("chat_template")
    if not texts and isinstance(inline, str):
        texts = {"default": inline}
    elif not texts and isinstance(inline, list):
        texts = {entry["name"]: entry["template"] for entry in inline if isinstance(entry, dict)}
    return texts


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Return `bos_token` and similar, which templates print; given as text or as an object with `content`."""
    found = {}
    for name in _SPECIAL:
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[name] = token
    return found
