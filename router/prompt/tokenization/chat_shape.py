"""The shape of a chat: the path that it takes through a template. Chats of one shape are rendered by the same lines.

A wrong rendering is wrong for a shape: with tools, after a tool's result, with thinking turned off. So the router
records which shapes were verified, and does not assume that an unknown shape is rendered correctly.
"""

from __future__ import annotations

from typing import Any

from router.prompt.prompt import Chat

Shape = tuple[object, ...]

MAX_WORD_CHARS = 64  # longer values of template variables do not distinguish shapes


def shape_of(chat: Chat, adapter: str | None) -> Shape:
    """Return the chat's shape: hashable, and small whatever the client sent. An `adapter` may have a template of its
    own.
    """
    return (
        adapter,
        frozenset([(message["role"], *message) for message in chat.messages]),
        chat.tools is not None,
        chat.add_generation_prompt,
        chat.continue_final_message,
        chat.add_special_tokens,
        chat.anthropic,
        tuple([(name, _shape_of_value(chat.template_kwargs[name])) for name in sorted(chat.template_kwargs)]),
    )


def _shape_of_value(value: Any) -> object:
    """Return short values unchanged; of larger ones only the type."""
    if isinstance(value, str):
        return value if len(value) <= MAX_WORD_CHARS else "..."
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__
