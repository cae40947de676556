"""What kind of chat it is: the way that it takes through a template. Two of one kind are rendered by the same lines.

A rendering that is wrong is wrong for a kind: with tools, after a tool's result, with thinking turned off. So what was
seen to be right is remembered by kind, and a kind that was never seen is not taken for right.
"""

from __future__ import annotations

from typing import Any

from router.prompt.prompt import Chat

Kind = tuple[object, ...]

LONGEST_WORD = 64  # of a template variable's value that counts as a word, and tells kinds apart


def kind_of(chat: Chat, adapter: str | None) -> Kind:
    """Hashable, and small whatever the client sent. `adapter`: it could have a template of its own."""
    return (
        adapter,
        frozenset([(message["role"], *message) for message in chat.messages]),
        chat.tools is not None,
        chat.add_generation_prompt,
        chat.continue_final_message,
        chat.add_special_tokens,
        chat.anthropic,
        tuple([(name, _word(chat.template_kwargs[name])) for name in sorted(chat.template_kwargs)]),
    )


def _word(value: Any) -> object:
    """A switch's position as it is; of anything larger only its type."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_WORD else "..."
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__
