"""One session's side of a conversation, in either way to say a turn: as a chat of real text, or as token ids.

A talk is told turn by turn what to prepare, sends it, and remembers the answer, because the next turn goes on from what
was really said. Preparing is apart from asking so that the work is done before the moment at which the request is due.
"""

from __future__ import annotations

from typing import Literal, Protocol

from router.testbed.loadgen.chat_messages import ChatMessage, next_messages
from router.testbed.loadgen.client import ClientAnswer, ClientFailure, LoadClient
from router.testbed.loadgen.text import TextGenerator
from router.testbed.workloads import Turn, make_token_ids

Prompts = Literal["text", "ids"]

VOCABULARY = range(100, 4000)
"""Token ids that every model has and that no chat template gives a meaning to."""


class Conversation(Protocol):
    def prepare(self, turn: Turn) -> None: ...

    async def ask(self, client: LoadClient, session: str) -> ClientAnswer | ClientFailure:
        """The prepared turn; once, and no other turn after a failure."""


class TextConversation:
    def __init__(self, texts: TextGenerator) -> None:
        self._texts = texts
        self._context: list[ChatMessage] = []
        self._turn: Turn | None = None

    def prepare(self, turn: Turn) -> None:
        self._turn = turn
        self._context = next_messages(self._context, turn, self._texts)

    async def ask(self, client: LoadClient, session: str) -> ClientAnswer | ClientFailure:
        assert self._turn is not None, "nothing was prepared"
        messages = [{"role": message.role, "content": message.text} for message in self._context]
        answer = await client.chat(messages, self._turn.output_tokens, session)
        if isinstance(answer, ClientAnswer):
            self._context.append(ChatMessage("assistant", answer.text, self._turn.output_tokens))
        return answer


class TokenConversation:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._context: list[int] = []
        self._turn: Turn | None = None

    def prepare(self, turn: Turn) -> None:
        self._turn = turn
        fresh = (token for span in turn.fresh for token in make_token_ids(span, self._seed, VOCABULARY))
        self._context = [*self._context[: turn.kept_tokens], *fresh]

    async def ask(self, client: LoadClient, session: str) -> ClientAnswer | ClientFailure:
        assert self._turn is not None, "nothing was prepared"
        answer = await client.complete(self._context, self._turn.output_tokens, session=session)
        if isinstance(answer, ClientAnswer):
            self._context += answer.token_ids
        return answer
