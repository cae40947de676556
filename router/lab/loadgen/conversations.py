"""The client's side of a conversation, with prompts as chats of real text or as token ids.

A conversation prepares a turn, sends it, and appends the answer, because the next turn continues from the real
answer. Preparation is a separate step so that it is done before the request is due.

A chat alternates as usual (system, user, assistant, user ...) and contains the answers as received, because engines
have cached these. When a turn keeps less than the whole context, the rest is rendered anew: the message in which
the kept part ends continues with fresh words, the messages after it stay unchanged, and the engine has cached
nothing behind the change. A turn that keeps nothing begins a new conversation.

Positions are the workload's: a message counts as the requested number of tokens, whatever its real number. So real
sizes deviate from the plan, by the template's own tokens and the length of answers as text; the report gives the
deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128
from typing import Literal, NamedTuple, Protocol

from router.lab.loadgen.client import ClientAnswer, ClientFailure, LoadClient, SessionName
from router.lab.workloads.model import Span, Turn, make_token_ids

Prompts = Literal["text", "ids"]

VOCABULARY = range(100, 4000)
"""Token ids that every model has and that have no meaning in any chat template."""

COMMON_WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than into them
can only other time new two
"""
WORDS = tuple(f" {word}" for word in COMMON_WORDS.split())


class TextGenerator:
    """Generator of the text of spans: words of a small vocabulary, always the same for one seed and span.

    A longer span begins with the words of a shorter one, as `make_token_ids` does for ids, so prompts share text
    exactly where their spans do. How many tokens a word takes depends on the model: `tokens_per_word` is measured
    once on the endpoint (`calibration.py`), and then lengths in tokens are near what the workload requests. Every
    word includes the space before it, so texts can be cut and joined at any word without changing how the words
    around them are tokenised.
    """

    def __init__(self, seed: int, tokens_per_word: float = 1.0) -> None:
        self._seed = seed.to_bytes(16, "big", signed=True)
        self._tokens_per_word = tokens_per_word

    def generate(self, *spans: Span) -> list[str]:
        """Return the words of all spans in a row: for each the number that makes its tokens, at least one."""
        lengths = [(span.source, max(1, self.count_words(span.tokens))) for span in spans]
        return [word for source, count in lengths for word in self.generate_words(source, count)]

    def generate_words(self, source: int, count: int) -> list[str]:
        """Return the first `count` words of a source."""
        name = self._seed + source.to_bytes(8, "big")
        return [WORDS[byte % len(WORDS)] for byte in shake_128(name).digest(count)]

    def count_words(self, tokens: float) -> int:
        """Return the number of words that make `tokens` tokens."""
        return round(tokens / self._tokens_per_word)


class ChatMessage(NamedTuple):
    role: Literal["system", "user", "assistant"]
    text: str
    tokens: int  # by the workload's count


class Conversation(Protocol):
    def prepare(self, turn: Turn) -> None:
        """Build the prompt of the next turn."""

    async def send(self, client: LoadClient, session: SessionName) -> ClientAnswer | ClientFailure:
        """Send the prepared turn, once. After a failure no other turn may be sent."""


class TextConversation:
    def __init__(self, texts: TextGenerator) -> None:
        self._texts = texts
        self._context: list[ChatMessage] = []
        self._turn: Turn | None = None

    def prepare(self, turn: Turn) -> None:
        self._turn = turn
        self._context = next_messages(self._context, turn, self._texts)

    async def send(self, client: LoadClient, session: SessionName) -> ClientAnswer | ClientFailure:
        assert self._turn is not None, "no turn was prepared"
        messages = [{"role": message.role, "content": message.text} for message in self._context]
        answer = await client.chat(messages, self._turn.output_tokens, session)
        if isinstance(answer, ClientAnswer):
            self._context.append(ChatMessage("assistant", answer.text, self._turn.output_tokens))
        return answer


class TokenConversation:
    """Conversation as token ids. `context` holds those of the prepared prompt and, once received, of its answer."""

    def __init__(self, seed: int) -> None:
        self.context: list[int] = []
        self._seed = seed
        self._turn: Turn | None = None

    def prepare(self, turn: Turn) -> None:
        self._turn = turn
        fresh = (token for span in turn.fresh for token in make_token_ids(span, self._seed, VOCABULARY))
        self.context = [*self.context[: turn.context_tokens], *fresh]

    async def send(self, client: LoadClient, session: SessionName) -> ClientAnswer | ClientFailure:
        assert self._turn is not None, "no turn was prepared"
        answer = await client.complete(self.context, self._turn.output_tokens, session=session)
        if isinstance(answer, ClientAnswer):
            self.context += answer.token_ids
        return answer


def next_messages(context: Sequence[ChatMessage], turn: Turn, texts: TextGenerator) -> list[ChatMessage]:
    """Return the messages of the turn's request. `context` holds the previous request's messages and its answer."""
    if turn.context_tokens == 0:
        return _open_chat(turn.fresh, texts)
    fresh, tokens = texts.generate(*turn.fresh), sum(span.tokens for span in turn.fresh)
    at, inside = _find_end(context, turn.context_tokens)
    messages = list(context[:at])
    behind = sum(message.tokens for message in context[at:]) - inside  # tokens of the context that are not kept
    if at == len(context):
        return _append_user(messages, fresh, tokens)
    changed = context[at]
    if tokens <= behind:  # fewer tokens than are dropped: the conversation is cut back
        messages += [_cut(changed, inside)] if inside else []
        return _append_user(messages, fresh, tokens)
    anew = texts.count_words(changed.tokens - inside)
    text = _cut(changed, inside).text + "".join(fresh[:anew])
    messages += [ChatMessage(changed.role, text, changed.tokens), *context[at + 1 :]]
    more = max(1, texts.count_words(tokens - behind))
    return _append_user(messages, fresh[anew : anew + more], tokens - behind)


def _open_chat(spans: Sequence[Span], texts: TextGenerator) -> list[ChatMessage]:
    """Return a new chat. The first of several spans is the system prompt, which sessions share."""
    system = [ChatMessage("system", "".join(texts.generate(span)), span.tokens) for span in spans[: len(spans) > 1]]
    own = spans[len(system) :]
    return [*system, ChatMessage("user", "".join(texts.generate(*own)), sum(span.tokens for span in own))]


def _find_end(context: Sequence[ChatMessage], kept: int) -> tuple[int, int]:
    """Return the index of the message in which the first `kept` tokens end, and how many of them are in it."""
    for number, message in enumerate(context):
        if kept < message.tokens:
            return number, kept
        kept -= message.tokens
    return len(context), 0


def _cut(message: ChatMessage, tokens: int) -> ChatMessage:
    """Return the first `tokens` tokens of a message, cut at the end of a word."""
    words = message.text.split(" ")
    return ChatMessage(message.role, " ".join(words[: round(len(words) * tokens / message.tokens)]), tokens)


def _append_user(messages: list[ChatMessage], words: Sequence[str], tokens: int) -> list[ChatMessage]:
    """Append a user message. Two user messages in a row become one, because some templates reject them."""
    text = "".join(words)
    if messages and messages[-1].role == "user":
        last = messages.pop()
        text, tokens = last.text + text, last.tokens + tokens
    return [*messages, ChatMessage("user", text, tokens)]
