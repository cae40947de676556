"""Token ids made here: a model folder's `tokenizer.json` and chat template, as Hugging Face loads them.

The template is, in this order: the operator's file, `chat_template.jinja` (with named ones beside it), or what
`tokenizer_config.json` holds, which may be one template or several by name; with tools, the one named "tool_use" wins.

`ids` tokenises a whole prompt: plain, and what everything else is held against. Where the tokenizer is proved to allow
it (pieces.py, cut_proof.py), `parts` takes a prompt apart, so that only what is new in it need be tokenised; else
`parts` are the one whole. Tokenising costs 1 to 2 us per token, in which the tokenizer leaves the interpreter lock,
but for 25 ns per token when a piece's ids are handed over: long prompts belong into a thread, piece by piece. Several
pieces at once (`encode_batch`) would take every core of the machine, which is the engines' too.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import msgspec
from tokenizers import Tokenizer

from router.config.schema import TokenizerSource
from router.errors import ConfigError
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Text
from router.prompt.tokenization import segment_check
from router.prompt.tokenization.chat_template import ChatTemplate, UnrenderableChat
from router.prompt.tokenization.probes import AGENT
from router.prompt.tokenization.segments import LEAST_BYTES, Segmenter, cut_token

log = logging.getLogger("warmroute.tokens")

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class SegmentedPrompt(NamedTuple):
    """A prompt taken apart: its ids are `head`, then those of each piece, then `tail`."""

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
    ) -> None:
        """`templates` by name ("default", "tool_use"; empty: chats cannot be rendered); `variables` for all of them;
        `least_bytes` of a piece.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._templates = templates
        self._variables = variables
        self._pieces: Segmenter | None = None
        self.whole_prompt_reason = self._try_cutting(least_bytes)  # why prompts are not cut; None: they are

    def tokenize(self, source: Chat | Text) -> array[int]:
        """The prompt's token ids; of a cut chat, the ids that surely come first. Raises Unrenderable."""
        return self._whole(self.text(source).decode(), source)

    def text(self, source: Chat | Text) -> bytes:
        """The prompt as UTF-8, a chat through its template. Raises Unrenderable."""
        chunks = (
            [source.text] if isinstance(source, Text) else self._template(source).render_chunks(source, self._variables)
        )
        try:
            return b"".join([chunk.encode() for chunk in chunks])
        except UnicodeEncodeError:
            raise UnrenderableChat("half of a surrogate pair") from None  # JSON can carry one, UTF-8 cannot

    def segment(self, text: bytes, source: Chat | Text) -> SegmentedPrompt:
        """The pieces of a prompt's `text`; the last ids of a cut chat's text are not there, as in `ids`."""
        if self._pieces is None:
            return SegmentedPrompt([], [text], [])
        pieces = self._pieces.split(text)
        if not source.add_special_tokens:
            return SegmentedPrompt([], pieces, [])
        ended = not (isinstance(source, Chat) and source.has_media)
        return SegmentedPrompt(self._pieces.head, pieces, self._pieces.tail if ended else [])

    def encode_segment(self, piece: bytes, source: Chat | Text) -> list[int]:
        """The ids of one of the pieces in `parts`."""
        text = piece.decode()
        return self._encode(text, False) if self._pieces is not None else self._whole(text, source).tolist()

    def render(self, chat: Chat) -> str:
        """The prompt of a chat. Raises Unrenderable."""
        return self._template(chat).render(chat, self._variables)

    def _template(self, chat: Chat) -> ChatTemplate:
        name = "tool_use" if chat.tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise UnrenderableChat("the model has no chat template")
        return self._templates[name]

    def _whole(self, text: str, source: Chat | Text) -> array[int]:
        ids = array("I", self._encode(text, source.add_special_tokens))
        return self._without_end(ids, text, source) if isinstance(source, Chat) and source.has_media else ids

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def _without_end(self, ids: array[int], text: str, chat: Chat) -> array[int]:
        """Without the special tokens that the tokenizer puts behind a whole prompt: here it has not ended."""
        if not chat.add_special_tokens:
            return ids
        bare = array("I", self._encode(text, False))
        before = next((i for i in range(len(ids) - len(bare) + 1) if ids[i : i + len(bare)] == bare), 0)
        return ids[: before + len(bare)]

    def _try_cutting(self, least_bytes: int) -> str | None:
        """Find where to cut and prove that it may be done; or say why prompts are tokenised whole."""
        added = list(self._tokenizer.get_added_tokens_decoder().values())
        cut = cut_token(added, self._agents_prompt())
        if cut is None:
            return "no special token that chats hold can be cut at"
        pieces = Segmenter(cut.encode(), *segment_check.around(self._encode), least_bytes)
        text = segment_check.difference(self._encode, pieces, [token.content for token in added])
        if text is not None:
            return f"cut at {cut!r}, the text {text!r} has other ids"
        self._pieces = pieces
        return None

    def _agents_prompt(self) -> str:
        """What this model's chats look like; empty where no template takes one."""
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
        templates = {name: ChatTemplate(text, wall) for name, text in texts.items()}
    except (OSError, jinja2.TemplateSyntaxError) as broken:
        raise ConfigError(f"{where}: chat template: {broken}") from None
    special = _special_tokens(_settings(folder / "special_tokens_map.json", where) | config)
    local = LocalTokenizer(tokenizer, templates, special | source.template_kwargs, least_bytes)
    if local.whole_prompt_reason is not None:
        log.warning("%s: prompts are tokenised as a whole on every turn: %s", where, local.whole_prompt_reason)
    return local


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
