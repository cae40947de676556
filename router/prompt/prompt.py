"""A request as the router understands it: the fields that routing needs.

A `Prompt` is read once from the body (`api/parse.py`) and keeps the body, which is forwarded unchanged unless a
field had to be edited (`body_rewrite.py`). Its `source` is what its token ids are computed from;
`router/prompt/tokenization` renders and tokenises it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from router.prompt.answer_tail import StopStrings
from router.prompt.known_prompt import FindKnown, ReadMessages


class Endpoint(Enum):
    """The four endpoints whose prompts are matched against the caches, and `OTHER`, which is placed by load."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    OTHER = "other"


OUTLINED = 64  # limit on kinds of messages, template variables, and characters of a role or variable
MEDIA = "media"  # type of a content part that stands for an image, audio or video


class GivenChat(NamedTuple):
    """A chat before it was normalised for templates: for models whose chats are rendered by code."""

    messages: list[Any]
    items: list[Any] | None  # of `/v1/responses`: its instructions as a system message, and its input
    effort: str | None  # of reasoning, as the request has it
    has_variables: bool  # the request has `chat_template_kwargs`


class Chat(NamedTuple):
    """Messages for the chat template, normalised exactly as vLLM normalises them before rendering.

    Content is always a list of parts, mostly `{"type": "text", "text": ...}`; whether a template sees that list or
    one string depends on the template (`prompt/tokenization/chat_template.py`). `has_media`: a part is `MEDIA`, so
    only the text before the first one can be known.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    has_media: bool
    # from /v1/messages, where vLLM adapts two things to the template: see prompt/tokenization/chat_template.py
    anthropic: bool = False
    read: ReadMessages | None = None  # the same messages, where the prompt may be remembered
    tools_declined: bool = False  # `tool_choice` is none: an engine may leave the tools out
    given: GivenChat | None = None  # None: only the normalised messages are known

    def outline(self) -> Chat | None:
        """Return the chat without its text, enough for token-id pass-through to distinguish kinds of chats. None
        for a chat with more kinds of messages, more variables or longer roles than chats have.
        """
        kinds = {(message["role"], *message) for message in self.messages}
        if max(len(kinds), len(self.template_kwargs)) > OUTLINED or any(len(role) > OUTLINED for role, *_ in kinds):
            return None
        return self._replace(
            messages=[dict.fromkeys(keys) | {"role": role} for role, *keys in kinds],
            tools=None if self.tools is None else [],
            template_kwargs={name: _shorten(value) for name, value in self.template_kwargs.items()},
            read=None,
            given=None,
        )


def _shorten(value: Any) -> Any:
    """Return a value that looks the same to token-id pass-through."""
    if isinstance(value, str):
        return value[: OUTLINED + 1]
    return value if isinstance(value, bool | int | float | None) else type(value)()


class Text(NamedTuple):
    """A plain prompt of `/v1/completions`."""

    text: str
    add_special_tokens: bool


class Ids(NamedTuple):
    """A prompt sent as token ids."""

    ids: list[int]  # each in [0, 2**32)


class UnknownIds(NamedTuple):
    """No token ids, and the reason (one of a closed set of short words: it is a metric's label)."""

    reason: str


Source = Chat | Text | Ids | UnknownIds


class PromptFields(NamedTuple):
    """The source of a prompt's token ids, and the fields with which an engine's `/tokenize` gives the same ids."""

    source: Source
    remote_fields: dict[str, Any]

    def outline(self) -> PromptFields:
        """Return the part of a tokenised prompt that is still needed: an answer may take minutes, and the Python
        objects made from a body can be 25 times as large as the body.
        """
        chat = self.source.outline() if isinstance(self.source, Chat) else None
        return PromptFields(chat or UnknownIds("dropped"), {})


class PromptReader(Protocol):
    """Converts the messages of a body."""

    def __call__(
        self, text_limit_bytes: int | None, find: FindKnown | None = None, slow: bool | None = None
    ) -> PromptFields:
        """Return the prompt, or why it was not read. `text_limit_bytes`: the longest text that the model can take
        (None: any). Messages that `find` finds are not read again; the prompt has no `remote_fields` then. `slow`:
        what `reads_slowly` found about the body; None: not examined yet. Raises BadRequest. May run in any thread.
        """


class Unread(NamedTuple):
    """A prompt whose messages are still bytes."""

    read: PromptReader


class Prompt(msgspec.Struct):
    """One request. `body` is forwarded as it is: already stripped, and with usage requested where `hide_usage`."""

    endpoint: Endpoint
    path: str
    model: str | None  # None: the body has none
    body: bytes
    source: Source | Unread
    stream: bool = False
    hide_usage: bool = False  # the router requested the usage chunk, the client did not
    hide_ids: bool = False  # the same for the answer's token ids
    answers: int = 1  # largest number that the engine makes for all prompts of the request
    several_answers: bool = False  # the prompt is computed for several answers, which find each other's blocks
    has_tools: bool = False  # of a chat that can be continued: the answer may call a tool
    stop: StopStrings | None = None  # of an answer that can be continued
    uncontinuable: str | None = "off"  # why no other engine can continue the answer: see `api/continuable.py`
    salt: str | None = None
    session: str | None = None  # these three: as the client names them, see `api/lineage.py`
    parent: str | None = None
    program: str | None = None
    conversation: bytes | UnsetType | None = UNSET  # if no session is named: see `scheduling/conversations.py`
    previous_response_id: str | None = None
    remote_fields: dict[str, Any] = {}  # fields that POST /tokenize needs beside `model`
    priority: int | None = None  # lower is more urgent, as in vLLM
    output_tokens: int | None = None  # the client's limit on the answer
    returns_prompt_text: bool = False  # the answer must contain the prompt as text
    ttft_ms: float | None = None  # requested objectives: time to first token and time per output token
    tpot_ms: float | None = None
    delimiter: bytes | None = None  # of a form: the bytes that separate its parts

    @property
    def is_object(self) -> bool:
        """Whether the body is a JSON object by its first byte: not a form, not another file, and not empty."""
        return self.body.lstrip().startswith(b"{")
