"""Token ids made here: a model folder's `tokenizer.json` and chat template, as Hugging Face loads them.

The template is, in this order: the operator's file, `chat_template.jinja` (with named ones beside it), or what
`tokenizer_config.json` holds, which may be one template or several by name; with tools, the one named "tool_use" wins.
Rendering and tokenising cost about 2 us per token, and the tokenizer leaves the interpreter lock while it works: long
prompts belong into a thread, and nothing here minds which one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from router.config.schema import TokenizerSource
from router.errors import ConfigError
from router.prompt.prompt import Chat, Text
from router.tokens.template import Template, Unrenderable

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Local:
    """One model's tokenizer and templates."""

    def __init__(self, tokenizer: Tokenizer, templates: dict[str, Template], variables: dict[str, Any]) -> None:
        """`templates` by name ("default", "tool_use"; empty: chats cannot be rendered); `variables` for all of them."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._templates = templates
        self._variables = variables

    def ids(self, source: Chat | Text) -> array[int]:
        """The prompt's token ids; of a cut chat, the ids that surely come first. Raises Unrenderable."""
        text = source.text if isinstance(source, Text) else self.render(source)
        ids = self._encode(text, source.add_special_tokens)
        return self._without_end(ids, text, source) if isinstance(source, Chat) and source.cut else ids

    def render(self, chat: Chat) -> str:
        name = "tool_use" if chat.tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise Unrenderable("the model has no chat template")
        return self._templates[name].render(chat, self._variables)

    def _encode(self, text: str, add_special_tokens: bool) -> array[int]:
        try:
            return array("I", self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
        except (TypeError, UnicodeEncodeError):
            raise Unrenderable("half of a surrogate pair") from None  # JSON can carry one, UTF-8 cannot

    def _without_end(self, ids: array[int], text: str, chat: Chat) -> array[int]:
        """Without the special tokens that the tokenizer puts behind a whole prompt: here it has not ended."""
        if not chat.add_special_tokens:
            return ids
        bare = self._encode(text, False)
        before = next((i for i in range(len(ids) - len(bare) + 1) if ids[i : i + len(bare)] == bare), 0)
        return ids[: before + len(bare)]


def load(source: TokenizerSource, where: str, wall: Callable[[], float]) -> Local:
    """Reads the model folder. `where` is the configuration key, for the ConfigError that anything missing raises."""
    if source.path is None:
        raise ConfigError(f"{where}.path: is needed to tokenise here")
    folder = Path(source.path)
    try:
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError as missing:
        raise ConfigError(f"{where}.path: {missing}") from None
    except Exception as broken:  # noqa: BLE001  the library raises bare Exception for a file it cannot read
        raise ConfigError(f"{where}.path: {folder / 'tokenizer.json'}: {broken}") from None
    config = _settings(folder / "tokenizer_config.json", where)
    try:
        texts = _template_texts(folder, config, source.chat_template)
        templates = {name: Template(text, wall) for name, text in texts.items()}
    except (OSError, jinja2.TemplateSyntaxError) as broken:
        raise ConfigError(f"{where}: chat template: {broken}") from None
    special = _special_tokens(_settings(folder / "special_tokens_map.json", where) | config)
    return Local(tokenizer, templates, special | source.template_kwargs)


def _settings(file: Path, where: str) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as broken:
        raise ConfigError(f"{where}.path: {file}: {broken}") from None
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
    """`bos_token` and its like, which templates print; written as text or as an object with the text in `content`."""
    found = {}
    for name in _SPECIAL:
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[name] = token
    return found
