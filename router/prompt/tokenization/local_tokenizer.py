"""Local tokenizers: a model folder's `tokenizer.json` and chat template, as Hugging Face loads them.

The template is, in this order: the operator's file, `chat_template.jinja` (with named ones beside it), or the one
in `tokenizer_config.json`, which may be one template or several by name; with tools, the one named "tool_use" takes
precedence.

`tokenize` tokenises a whole prompt: the reference for everything else. If the tokenizer is verified to allow it
(segments.py), `segment` splits a prompt, so that only new segments need be tokenised; otherwise the whole prompt is
one segment. Tokenising costs 1 to 2 us per token, during which the tokenizer releases the interpreter lock, except
for 25 ns per token when a segment's ids are returned: long prompts belong in a thread, segment by segment. Several
segments at once (`encode_batch`) would take every core of the machine, which the engines need.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import msgspec
from tokenizers import Tokenizer

from router.config.schema import TokenizerSource
from router.errors import ConfigError
from router.prompt.api.openai import JINJA_GLOBALS
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Text
from router.prompt.tokenization.chat_template import ChatTemplate, UnrenderableChat
from router.prompt.tokenization.probes import AGENT
from router.prompt.tokenization.renderer import JINJA, Renderer, choose_renderer
from router.prompt.tokenization.segments import (
    LEAST_BYTES,
    Segmenter,
    choose_delimiter,
    find_difference,
    find_special_ids,
)
from router.prompt.tokenization.special_text import SpecialTextFinder

log = logging.getLogger("warmroute.tokens")

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class SegmentedPrompt(NamedTuple):
    """A prompt in segments: its ids are `head`, then those of each segment, then `tail`."""

    head: list[int]
    segments: list[bytes]
    tail: list[int]


class LocalTokenizer:
    """One model's tokenizer and templates."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: dict[str, ChatTemplate],
        variables: dict[str, Any],
        least_bytes: int = LEAST_BYTES,
        renderer: Renderer = JINJA,
    ) -> None:
        """`templates`: by name ("default", "tool_use"); if empty, chats cannot be rendered. `variables`: passed to
        all templates. `least_bytes`: the minimum size of a segment. `renderer`: how the engine renders chats.
        """
        self.renderer = renderer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._templates = templates
        self._variables = variables
        self._segmenter: Segmenter | None = None
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        self.special_text = SpecialTextFinder(special)
        typical = self._render_typical_chat()
        self.chat_tokens = [token for token in special if token in typical]  # those that the template prints
        # why prompts are not segmented; None: prompts are segmented
        self.whole_prompt_reason = self._set_up_segmenter(typical, least_bytes)

    def tokenize(self, source: Chat | Text) -> array[int]:
        """Return the token ids; for a chat with media, the ids certain to come first. Raises UnrenderableChat."""
        return self._encode_whole(self.text(source).decode(), source)

    def text(self, source: Chat | Text) -> bytes:
        """Return the prompt as UTF-8, a chat rendered by its template. Raises UnrenderableChat."""
        chunks = [source.text] if isinstance(source, Text) else self.render_chunks(source)
        try:
            return b"".join([chunk.encode() for chunk in chunks])
        except UnicodeEncodeError:
            raise UnrenderableChat("half of a surrogate pair") from None  # JSON can carry one, UTF-8 cannot

    def render_chunks(self, chat: Chat) -> list[str]:
        """Return the prompt of a chat in the chunks in which the template prints it. Raises UnrenderableChat."""
        return self._template(chat).render_chunks(chat, self._variables)

    @property
    def delimiter_bytes(self) -> int | None:
        """Length of the delimiter with which segments begin; None: prompts are not segmented."""
        return None if self._segmenter is None else len(self._segmenter.delimiter)

    def segment(self, text: bytes, source: Chat | Text) -> SegmentedPrompt:
        """Return the segments of a prompt's `text`; like `tokenize` without the final ids for a chat with media."""
        if self._segmenter is None:
            return SegmentedPrompt([], [text], [])
        segments = self._segmenter.split(text)
        if not source.add_special_tokens:
            return SegmentedPrompt([], segments, [])
        ended = not (isinstance(source, Chat) and source.has_media)
        return SegmentedPrompt(self._segmenter.head, segments, self._segmenter.tail if ended else [])

    def encode_segment(self, segment: bytes, source: Chat | Text) -> list[int]:
        """Return the ids of one segment that `segment` returned."""
        text = segment.decode()
        return self._encode(text, False) if self._segmenter is not None else self._encode_whole(text, source).tolist()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def render(self, chat: Chat) -> str:
        """Return the prompt of a chat. Raises UnrenderableChat."""
        return self._template(chat).render(chat, self._variables)

    def _template(self, chat: Chat) -> ChatTemplate:
        name = "tool_use" if chat.tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise UnrenderableChat("the model has no chat template")
        return self._templates[name]

    def _encode_whole(self, text: str, source: Chat | Text) -> array[int]:
        ids = array("I", self._encode(text, source.add_special_tokens))
        return self._strip_tail(ids, text, source) if isinstance(source, Chat) and source.has_media else ids

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def _strip_tail(self, ids: array[int], text: str, chat: Chat) -> array[int]:
        """Remove the special tokens that the tokenizer puts after a whole prompt: this prompt continues."""
        if not chat.add_special_tokens:
            return ids
        bare = array("I", self._encode(text, False))
        before = next((i for i in range(len(ids) - len(bare) + 1) if ids[i : i + len(bare)] == bare), 0)
        return ids[: before + len(bare)]

    def _set_up_segmenter(self, typical_chat: str, least_bytes: int) -> str | None:
        """Choose a delimiter and verify that segmenting is exact. Return why it is not used; None if it is."""
        added = list(self._tokenizer.get_added_tokens_decoder().values())
        delimiter = choose_delimiter(added, typical_chat)
        if delimiter is None:
            return "no special token that chats hold can be cut at"
        segmenter = Segmenter(delimiter.encode(), *find_special_ids(self._encode), least_bytes)
        failing_text = find_difference(self._encode, segmenter, [token.content for token in added])
        if failing_text is not None:
            return f"cut at {delimiter!r}, the text {failing_text!r} has other ids"
        self._segmenter = segmenter
        return None

    def _render_typical_chat(self) -> str:
        """Render an agent's chat with this model's template; empty if no template takes one."""
        for fields in AGENT:
            prompt = read_prompt("/v1/chat/completions", None, msgspec.json.encode(fields), ReadOptions())
            try:
                if isinstance(prompt.source, Chat):
                    return self.render(prompt.source)
            except UnrenderableChat:
                continue
        return ""


def load(
    source: TokenizerSource, where: str, wall: Callable[[], float], least_bytes: int = LEAST_BYTES
) -> LocalTokenizer:
    """Read the model folder. Raises ConfigError, naming the key `where`, for anything missing or broken."""
    if source.path is None:
        raise ConfigError(f"{where}.path: missing; a local tokenizer needs the model folder")
    folder = Path(source.path)
    try:
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}.path: {error}") from None
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for a file it cannot read
        raise ConfigError(f"{where}.path: {folder / 'tokenizer.json'}: {error}") from None
    config = _settings(folder / "tokenizer_config.json", where)
    try:
        texts = _template_texts(folder, config, source.chat_template)
        templates = {name: ChatTemplate(text, wall) for name, text in texts.items()}
    except (OSError, jinja2.TemplateSyntaxError) as error:
        raise ConfigError(f"{where}: chat template: {error}") from None
    if "added_tokens_decoder" in config:  # as transformers reads them; without it the older file takes precedence
        special = _special_tokens(config)
    else:
        special = _special_tokens(config | _settings(folder / "special_tokens_map.json", where))
    defaults = {name: value for name, value in source.template_kwargs.items() if name not in JINJA_GLOBALS}
    renderer = choose_renderer(_settings(folder / "config.json", where), [file.name for file in folder.iterdir()])
    local = LocalTokenizer(tokenizer, templates, special | defaults, least_bytes, renderer)
    if local.whole_prompt_reason is not None:
        reason = local.whole_prompt_reason
        log.warning("%s: every turn tokenises the whole prompt, because segments are not exact: %s", where, reason)
    return local


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
