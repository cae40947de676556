"""A model's chat template, rendered as Hugging Face's tokenizers and vLLM 0.32 render it.

The environment (sandbox, block trimming, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, loop
controls, the `generation` tag) is that of transformers; decisions made by inspecting the template are vLLM's:
whether it iterates over content parts or takes one string, whether it has the role "developer", whether it accepts
system messages in the middle. Templates come from the operator's model folder; a client's own template is never
rendered. This module does not deal with tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, Literal

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import msgspec

from router.prompt.common_prefix import common_length
from router.prompt.known_prompt import ReadMessages
from router.prompt.prompt import MEDIA, Chat
from router.prompt.tokenization.content_format import iterates_content

Message = dict[str, Any]

_MEDIA_MARK = "\ue0ffwarmroute-cut\ue0ff"  # marks where media follow; private use characters, absent from prompts
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "  # Hugging Face's mark, trailing space included
_TEMPLATE_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_DICT_METHODS = frozenset(dir(dict))
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class UnrenderableChat(Exception):
    """The template refused these messages or failed on them; the engine reports the error to the client."""


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %}`, which only marks text for training: its body is printed unchanged."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generate"), [], [], body).set_lineno(line)

    def _generate(self, caller: jinja2.runtime.Macro) -> str:
        return str(caller())


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox of transformers. Members of messages are found without the exception that Jinja raises and catches
    for each: a dict has no attributes but its methods.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is not dict or attribute in _DICT_METHODS:
            return super().getattr(obj, attribute)
        try:
            return obj[attribute]
        except KeyError:
            return self.undefined(obj=obj, name=attribute)


class ChatTemplate:
    """A compiled template. `wall` returns seconds since the epoch, for templates that print the date."""

    def __init__(self, source: str, wall: Callable[[], float]) -> None:
        """Compile `source`. Raises jinja2.TemplateSyntaxError."""
        self.source = source
        code, in_parts = _compile(source)
        environment = _environment(wall)
        # Jinja's own chain of dicts would be copied item by item, in Python, at every rendering.
        self._template = environment.template_class.from_code(environment, code, dict(environment.globals))
        self.content_format: Literal["string", "openai"] = "openai" if in_parts else "string"
        self._knows_developer = '"developer"' in source or "'developer'" in source

    def render(self, chat: Chat, variables: dict[str, Any]) -> str:
        """Return the prompt, up to the first media part of a chat with media. Raises UnrenderableChat."""
        return "".join(self.render_chunks(chat, variables))

    def render_chunks(self, chat: Chat, variables: dict[str, Any]) -> list[str]:
        """Return the prompt as the template prints it, in chunks, to be encoded one by one: in one long string a
        single emoji makes every character four bytes wide, which costs 1 ms for 340 KB. Raises UnrenderableChat.

        `variables`: special tokens and the engine's default template kwargs; the request's own kwargs take
        precedence.
        """
        values = variables | chat.template_kwargs
        messages = chat.messages
        if chat.anthropic:
            messages = self._merge_system(messages)
            values = self._supported_effort(values)
        messages = self._flatten_all(messages, None if chat.anthropic else chat.read)
        if not self._knows_developer:
            messages = _without_developer(messages)
        tools = values.pop("tools", chat.tools)
        if chat.continue_final_message and not chat.has_media:
            return [self._render_continued(messages, tools, values, chat.add_generation_prompt)]
        chunks = self._generate(messages, tools, values, chat.add_generation_prompt)
        if not chat.has_media:
            return chunks
        shown = None
        if self.content_format == "openai":  # a template may print images first, or other text beside them
            seen = [_show_media(message) for message in chat.messages]
            continued = chat._replace(messages=seen, has_media=False, continue_final_message=False, read=None)
            shown = self.render(continued, variables)
        return [_before_media("".join(chunks), shown)]

    def _flatten_all(self, messages: list[Message], read: ReadMessages | None) -> list[Message]:
        """Return the messages with content in the form the template takes, reusing those of a remembered prompt."""
        content_format = self.content_format
        if read is None:
            return [flatten(message, content_format) for message in messages]
        flat: list[Message] = []
        if read.known is not None:
            flat = read.known.flat.get(content_format, [])[: read.known_messages]
        read.flat[content_format] = flat = [*flat, *[flatten(one, content_format) for one in messages[len(flat) :]]]
        return flat

    def _generate(
        self, messages: list[Message], tools: list[Message] | None, values: dict[str, Any], add_generation_prompt: bool
    ) -> list[str]:
        values = {"documents": None, **values}
        context = {**values, "messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            return list(self._template.generate(context))
        except (jinja2.TemplateError, *_TEMPLATE_ERRORS) as refusal:
            raise UnrenderableChat(str(refusal)) from None

    def _render_continued(
        self, messages: list[Message], tools: list[Message] | None, values: dict[str, Any], add_generation_prompt: bool
    ) -> str:
        """Render with the last message left open: a mark is put after its text and the prompt is cut there."""
        if add_generation_prompt or not messages or "content" not in self.source:
            raise UnrenderableChat("this chat's final message cannot be continued")
        messages = [*messages[:-1], deepcopy(messages[-1])]
        content = messages[-1]["content"]
        if isinstance(content, str):
            messages[-1]["content"], last = content + _CONTINUE, content
        else:
            texts = [part for part in content if "text" in part]
            if not texts:
                raise UnrenderableChat("no text to continue")
            last = texts[-1]["text"]
            texts[-1]["text"] = last + _CONTINUE
        text = "".join(self._generate(messages, tools, values, False))
        if last.strip() not in text or _CONTINUE.strip() not in text:
            raise UnrenderableChat("the template does not print the message to continue")
        before, _, after = text.rpartition(_CONTINUE.strip())
        return before if after.startswith(" ") else before.rstrip()

    def _merge_system(self, messages: list[Message]) -> list[Message]:
        """Merge all system messages into one at the front, unseparated, if the template refuses later ones."""
        system = [message for message in messages if message["role"] == "system"]
        if not system or not self._system_first:
            return messages
        text = "".join(part["text"] for message in system for part in message["content"])
        others = [message for message in messages if message["role"] != "system"]
        return [{"role": "system", "content": [{"type": "text", "text": text}]}, *others]

    @cached_property
    def _system_first(self) -> bool:
        """Whether the engine's own probe fails. The probe has no helper functions: a template with one fails."""
        probe = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        messages = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
        try:
            probe.from_string(self.source).render(messages=messages, add_generation_prompt=False)
        except (jinja2.TemplateError, *_TEMPLATE_ERRORS):
            return True
        return False

    def _supported_effort(self, values: dict[str, Any]) -> dict[str, Any]:
        """Replace the effort "none", set by `thinking: disabled`, by "low" for templates without "none"."""
        if values.get("reasoning_effort") != "none" or self._supports_effort_none:
            return values
        return values | {"reasoning_effort": "low"} | ({"enable_thinking": True} if "enable_thinking" in values else {})

    @cached_property
    def _supports_effort_none(self) -> bool:
        none = self._probe("none")
        return none is not None and all(self._probe(effort) != none for effort in _EFFORTS)

    def _probe(self, effort: str) -> str | None:
        content: Any = [{"type": "text", "text": "Hi"}] if self.content_format == "openai" else "Hi"
        values = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        try:
            return "".join(self._generate([{"role": "user", "content": content}], None, values, True))
        except UnrenderableChat:
            return None


class NamedTemplates:
    """A model's templates by name ("default", "tool_use"); if empty, chats cannot be rendered. `sorts_tools`: the
    members of tools are sorted first, as the tokenizer of Kimi K2 does.
    """

    reads_given = False

    def __init__(self, templates: dict[str, ChatTemplate], *, sorts_tools: bool = False) -> None:
        self._templates = templates
        self._sorts_tools = sorts_tools

    def render_chunks(self, chat: Chat, variables: dict[str, Any]) -> list[str]:
        """Return the prompt as the template for this chat prints it. Raises UnrenderableChat."""
        name = "tool_use" if chat.tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise UnrenderableChat("the model has no chat template")
        if self._sorts_tools:
            chat = chat._replace(tools=_sort(chat.tools))
        return self._templates[name].render_chunks(chat, variables)


def _sort(value: Any) -> Any:
    """Return a JSON value with the members of all objects sorted."""
    if isinstance(value, dict):
        return {name: _sort(value[name]) for name in sorted(value)}
    return [_sort(item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=16)  # the template of a model is the same at each of its engines, and compiling it takes 10 ms
def _compile(source: str) -> tuple[CodeType, bool]:
    """Return the code of a template, and whether the template iterates over content parts. Raises
    jinja2.TemplateSyntaxError.
    """
    environment = _environment(lambda: 0.0)
    parsed = environment.parse(source)
    in_parts = iterates_content(parsed)
    return environment.compile(parsed), in_parts


def _environment(wall: Callable[[], float]) -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(pattern: str) -> str:
        return datetime.fromtimestamp(wall()).strftime(pattern)

    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `x` as JSON: unlike Jinja's own filter, escape nothing for HTML and keep the keys' order. Templates
    pass the parameters by name.
    """
    if indent is not None and indent > 0 and separators is None:
        # Python's encoder indents without its C part: 1.2 ms for an agent's 20 tools, every turn; this, 0.3 ms.
        with suppress(msgspec.DecodeError):  # NaN and infinities are not JSON
            return msgspec.json.format(json.dumps(x, ensure_ascii=ensure_ascii, sort_keys=sort_keys), indent=indent)
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def flatten(message: Message, content_format: str) -> Message:
    """Return the message with content in the form the template takes. Tool results are one string in both forms,
    unless they contain more than text.

    vLLM leaves empty parts out only where it builds the string for the template (chat_utils.py).
    """
    parts = message["content"]
    if any(part["type"] == MEDIA for part in parts):
        return message | {"content": _cut_at_media(parts, content_format)}
    only_text = all(part["type"] == "text" for part in parts)
    if content_format == "openai" and not (message["role"] == "tool" and only_text):
        return message
    texts = [part["text"] if part["type"] == "text" else part["name"] for part in parts]
    if content_format == "string":
        texts = [text for text in texts if text]
    return message | {"content": "\n".join(texts)}


def _cut_at_media(parts: list[Message], content_format: str) -> Any:
    """Cut content at the first media part. If content is a string, none of it is certain: the engine may put media
    before all text.
    """
    if content_format == "string":
        return _MEDIA_MARK
    known = parts[: next(i for i, part in enumerate(parts) if part["type"] == MEDIA)]
    return [*known, {"type": "text", "text": _MEDIA_MARK}]


def _show_media(message: Message) -> Message:
    """Return the message with media as the engine passes them to a template that takes parts."""
    parts = [{"type": part["modality"]} if part["type"] == MEDIA else part for part in message["content"]]
    return message | {"content": parts}


def _before_media(text: str, shown: str | None) -> str:
    """Return the text up to the last word before the mark: that word's own tokens may extend into the text that
    follows. `shown`: the text of the same chat with media; the engine's text begins like it, so the result ends
    where both differ.
    """
    known, found, _ = text.partition(_MEDIA_MARK)
    if not found:
        raise UnrenderableChat("the template does not print the part where media stand")
    if shown is not None:
        known = known[: common_length(known, shown)]
    for i in range(len(known) - 1, 0, -1):
        if known[i].isspace() and not known[i - 1].isspace():
            return known[:i]
    return ""


def _without_developer(messages: list[Message]) -> list[Message]:
    """Turn developer messages into system messages, and all system messages into one at the front."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    messages = [_as_system(message) if message["role"] == "developer" else message for message in messages]
    system = [message for message in messages if message["role"] == "system"]
    if len(system) == 1 and messages[0] is system[0]:
        return messages
    texts = [text for message in system if (text := _text(message["content"]))]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _as_system(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
