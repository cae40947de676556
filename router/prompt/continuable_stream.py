"""A streamed chat or completion that another engine may continue: keeps its token ids, and joins the second part to
the first.

The router requests the ids (`return_token_ids`). The first chunk has the ids of the prompt, every chunk the ids
that it adds; a client that did not request them sees `null` in their place, as the engine itself would have sent.
Only whole events pass, so that a stream breaks between two of them.

    feed     one piece of the answer -> the part of it that the client may see
    find_refusal, resume_ids, rewind, begin_rest    the engine failed: whether the answer can be continued, and from
             where (`answer_tail.py`); then the next engine's answer is fed
    closing  only the end of the stream is missing: nothing needs to be computed

In the second part `id`, `created` and `model` become those of the first, the role of a chat is dropped, and usage
counts both parts: the prompt once, the answer's tokens together, and as cached at most the prompt's own. The
engine's first chunk must have exactly the ids that the engine was sent; otherwise its answer is not a continuation
and none of it is used.

If the engine sends no ids, the text is kept (`answer_text.py`), and nothing shows whether the next engine's answer
is a continuation. No JSON is decoded for a chunk of plain text (`event_bytes.py`). Pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from router.prompt import event_bytes
from router.prompt.answer_ids import AnswerIds, ContinuationBudget
from router.prompt.answer_tail import AnswerTail, StopStrings, match_again
from router.prompt.answer_text import AnswerText, encode_text
from router.prompt.broken_stream import BrokenReason
from router.prompt.event_bytes import DONE, EVENT_END, PlainLayout, find_layout
from router.prompt.joined_usage import join_usage_by_ids, join_usage_by_text, replace_usage
from router.prompt.stream_error import StreamError, is_clients_own, read_error
from router.prompt.usage import NO_USAGE, HideUsage, Usage

EVENT_BYTES = 4 * 1024 * 1024  # the largest event: the first one names the ids of the prompt, about 6 bytes each

_IDS_BYTES = len(event_bytes.IDS)


class ContinuableStream:
    """One answer. `chat`: a chat, else a completion; `tools`: the answer may call a tool; `stop`: the stop strings;
    `hide_ids`, `hide_usage`: the client did not request them. `close` gives the memory back.
    """

    __slots__ = (
        *("_again", "_again_left", "_answer", "_budget", "_by_text", "_chat", "_done", "_events", "_expected"),
        *("_finished", "_head", "_held", "_hide_ids", "_hide_usage", "_ids", "_joined", "_layout", "_passing"),
        *("_plain", "_prompt_tokens", "_reasoning", "_refusal", "_room_bytes", "_second", "_sent_usage", "_tail"),
        *("_text", "ids_ignored", "reported", "stopped"),
    )

    def __init__(
        self,
        budget: ContinuationBudget,
        *,
        chat: bool,
        tools: bool = False,
        stop: StopStrings | None = None,
        hide_ids: bool = True,
        hide_usage: bool = False,
    ) -> None:
        self._hide_usage = HideUsage() if hide_usage else None
        self._chat = chat
        self._hide_ids = hide_ids
        self._plain = b'"delta":{"content":"' if chat else b'"text":"'
        self._held = b""
        self._head = b""  # of the first part's events, up to their choices
        self._budget = budget
        self._ids = AnswerIds(budget)
        self._text: AnswerText | None = None  # None: the answer is known as ids
        self._by_text = hide_ids and not tools and stop is None  # the text can replace the ids, as far as is known
        self._prompt_tokens: int | None = None  # of an answer known as text; None: not counted
        self._answer = self._ids.answer
        self._room_bytes = 0  # that `_answer` may have
        self._tail = AnswerTail(stop) if tools or stop is not None else None  # None: no text is held back
        self._events = None if self._tail is None else self._tail.events
        self._expected: bytes | None = None  # ids that the part's first chunk must name
        self._joined = 0  # tokens of the answer before the part being fed
        self._again = ""  # text that the part must begin with, as the client has it
        self._again_left = ""  # the rest of `_again` that is still to come
        self._second = False  # a part after the first is being fed
        self._layout: PlainLayout | None = None  # None: every event is examined
        self._passing = False  # the stream is not understood, and passes unchanged
        self._finished = self._sent_usage = self._done = self._reasoning = False
        self._refusal: BrokenReason | None = None
        self.stopped = False  # the stream being fed is not part of the answer: no more of it may be used
        self.ids_ignored = False  # stopped because the engine did not use the ids that it was sent
        self.reported = b""  # the event that stopped the part: the engine's own report that it failed

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of the answer; return the whole events of it that the client may see."""
        if (layout := self._layout) is not None and not self._held:
            before, between, after, null, start, skip, end = layout
            at = piece.find(b'"', start) if piece.startswith(before) and piece.endswith(after) else -1
            if at >= 0 and not piece.startswith(between, at):  # an escaped quote, or an event without ids
                at = -1 if piece.count(EVENT_END) > 1 else piece.find(between, at)
            if at >= 0:
                at += skip
                new = piece[at:end]
                if new.isdigit() or (new and b"]" not in new):
                    ids = self._answer
                    ids += new
                    ids += b","
                    if len(ids) > self._room_bytes:
                        self._room_bytes = self._ids.grow()
                    if (events := self._events) is not None:
                        events.append(piece)
                    return piece[: at - _IDS_BYTES] + null if self._hide_ids else piece
        seen = piece if self._passing else self._feed_pieces(piece)
        return seen if self._hide_usage is None else self._hide_usage.feed(seen)

    def flush(self) -> bytes:
        """Return an event that the engine left unfinished at the end of a whole answer."""
        held, self._held = self._held, b""
        return held if self._hide_usage is None else self._hide_usage.feed(held) + self._hide_usage.end()

    def find_refusal(self) -> BrokenReason | None:
        """Return why the answer cannot be continued from here; None if it can be."""
        if self._refusal is not None:
            return self._refusal
        if (self._text or self._ids).full:
            return "memory"
        if self._ids.prompt is None and self._text is None and self.begun:
            return "no_token_ids"
        return "reasoning" if self._reasoning else None

    @property
    def begun(self) -> bool:
        """Whether any part of the answer has passed."""
        return bool(self._head)

    @property
    def finished(self) -> bool:
        """Whether the client has the whole text, and why it ended."""
        return self._finished or self._done

    @property
    def tokens(self) -> int:
        """Number of tokens in the answer so far; a lower bound if the answer is known `by` text."""
        return self._ids.tokens if self._text is None else self._text.tokens

    @property
    def by(self) -> Literal["ids", "text"]:
        """The form in which the next engine receives the answer so far."""
        return "ids" if self._text is None else "text"

    def ids_for_text(self) -> list[int] | None:
        """Return the ids of the answer, whose text may be used in their place; None if it has more than text."""
        return msgspec.json.decode(b"[%b]" % bytes(self._answer[:-1]), type=list[int]) if self._by_text else None

    def use_text(self, text: str) -> None:
        """Continue with `text`, the text of `ids_for_text`."""
        self._text, self._by_text = AnswerText(self._budget, chat=self._chat), False
        self._text.tokens, self._prompt_tokens = self._ids.tokens, self._ids.prompt_tokens
        self._expected = None
        self._ids.close()
        self._text.add(encode_text(text))

    def resume_ids(self) -> list[int] | None:
        """Return the last ids if it is unknown whether all their text was sent; None if it was, or `rewind` decides
        it.
        """
        if self._tail is None or self._tail.stop is not None or self.tokens == self._joined:
            return None
        return self._tail.ids()

    def is_all_sent(self, text: str) -> bool:
        """Return whether the client has all of `text`, the text of `resume_ids`."""
        return self._tail is None or self._tail.is_all(text)

    def drop_unsent(self) -> bool:
        """Drop the last tokens of which no text was sent; return whether there were any."""
        if self._tail is None or not self._hide_ids:  # else the client has these ids
            return False
        self._ids.drop(dropped := self._tail.drop_unsent())
        return dropped > 0

    def rewind(self) -> bool:
        """Go back to where the next engine sees every stop string whole; return whether that position is known."""
        if self._again_left:  # the part has not even repeated the text that it must begin with
            self._ids.drop(self.tokens - self._joined)
        elif self._tail is not None and self._tail.stop is not None:
            if (rewound := self._tail.rewind()) is None:
                return False
            tokens, self._again = rewound
            self._ids.drop(tokens)
        return True

    def begin_rest(self, prompt_tokens: int | None = None) -> bytes | None:
        """Return the ids of the prompt and of the answer so far, as JSON numbers separated by commas; or, `by`
        text, the answer so far as the inside of a JSON string. All that is fed from now on is the answer of an
        engine that received these. None if nothing has `begun`: what is fed is then the answer to the unchanged
        request. `prompt_tokens`: the router's count.
        """
        self._held = self.reported = b""
        self.stopped = self.ids_ignored = False
        self._again_left = self._again
        if self._events is not None:
            self._events.clear()
        if self._ids.prompt is None and self._text is None:
            return None
        self._joined = self.tokens
        self._second = True
        self._layout = None
        if self._text is not None:
            self._prompt_tokens = self._prompt_tokens or prompt_tokens
            return self._text.begin_rest()
        self._expected = self._ids.join()
        return self._expected

    def closing(self, *, with_usage: bool) -> bytes:
        """Return the missing end of a finished answer: usage, if the client requested it, and the last event."""
        if self._done:
            return b""
        if not with_usage or self._sent_usage or self._text is not None:
            return DONE
        prompt, output = self._ids.prompt_tokens, self.tokens
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        return self._head + b'"choices":[],"usage":%b}\n\n' % msgspec.json.encode(usage) + DONE

    def join_usage(self, part: Usage | None) -> Usage | None:
        """Return the usage of the whole answer. `part`: the last engine's counts, None if it sent none."""
        if not self._second:
            return part
        if part is None:
            return self.count()
        if self._text is not None:
            return join_usage_by_text(part, self._prompt_tokens)
        return join_usage_by_ids(part, self._ids.prompt_tokens, self._joined)

    def count(self) -> Usage:
        """Return the usage as counted from the ids; `NO_USAGE` if the answer is known as text."""
        if self._text is not None:
            return NO_USAGE
        return Usage(self._ids.prompt_tokens, None, self.tokens)

    def close(self) -> None:
        """Give the memory back; twice is harmless."""
        self._ids.close()
        if self._text is not None:
            self._text.close()

    def _take_ids(self, event: bytes, before: bytes, after: bytes) -> bytes:
        """Keep the ids of one event, which are between `before` and `after`; return the event as the client sees
        it.
        """
        end = after.find(b"]")
        if self._refusal is None and end > 0:
            ids = self._answer
            ids += after[:end]
            ids += b","
            if len(ids) > self._room_bytes:
                self._room_bytes = self._ids.grow()
            if self._events is not None:
                self._events.append(event)
        if self._again_left:  # without the text that the client has; another text ends the part
            matched = match_again(before, self._plain, self._again_left, last=self._finished)
            before, self._again_left = (self._stop(), self._again_left) if matched is None else matched
        if not before:
            return b""
        return b"".join((before, event_bytes.NULL_IDS, after[end + 1 :])) if self._hide_ids else event

    def _refuse(self, reason: BrokenReason, *, passing: bool = False) -> None:
        """Keep no more ids: the answer is not continued. Ids are still hidden, unless the stream is `passing`."""
        self._passing = self._passing or passing
        if self._refusal is None:
            self._refusal, self._layout = reason, None
            self.close()
            self._text, self._by_text = None, False

    def _feed_pieces(self, piece: bytes) -> bytes:
        """Take any piece, event by event, wherever it was cut."""
        if self.stopped:
            return b""
        if self._held:
            if b"\n" not in piece and len(self._held) < EVENT_BYTES:  # more of a long event, not to be searched again
                self._held += piece
                return b""
            piece = self._held + piece
            self._held = b""
        elif self._text is not None and self._text.take_plain(piece):
            return piece
        out: list[bytes] = []
        at = 0
        while at < len(piece) and not self.stopped:
            whole = (end := piece.find(EVENT_END, at)) >= 0
            event = piece[at : end + len(EVENT_END)] if whole else piece[at:]
            if len(event) > EVENT_BYTES or b"\n\r\n" in event:
                self._refuse("framing", passing=True)
            if self._passing:
                out.append(piece[at:])
                break
            if not whole:
                self._held = event
                break
            out.append(self._feed_event(event))
            at += len(event)
        return b"".join(out)

    def _feed_event(self, event: bytes) -> bytes:
        if event == DONE:
            self._done = True
            return event
        if (at := event.find(event_bytes.CHOICES)) < 0:
            return event if (error := read_error(event)) is None else self._take_error(event, error)
        if (start := event.find(event_bytes.PROMPT_IDS)) >= 0:
            end = event.find(b"]", start)
            ids = event[start + len(event_bytes.PROMPT_IDS) : end]
            if self._expected is None:
                self._ids.open(ids)
            elif ids != self._expected:
                return self._ignore_ids()
            self._expected = b""
            if self._hide_ids or self._second:
                event = event[:start] + event_bytes.NULL_PROMPT_IDS + event[end + 1 :]
                at = event.find(event_bytes.CHOICES)
        elif self._second and self._expected:  # the first chunk names no ids
            return self._ignore_ids()
        if self._second:
            event = self._head + event[at:]
        elif not self._head:
            self._head = event[:at]
            if self._ids.prompt is None and self._by_text:
                self._text, self._by_text = AnswerText(self._budget, chat=self._chat), False
        if event.startswith(b'"choices":[]', len(self._head)):
            self._sent_usage = True
            return replace_usage(event, self.join_usage) if self._second else event
        return self._feed_choice(event)

    def _take_error(self, event: bytes, error: StreamError) -> bytes:
        """Take an error event, after which the engine ends the stream as if it were complete. An error caused by
        the client is its answer; but the error of a continuation, which is the router's request, is no part of the
        answer.
        """
        if is_clients_own(error) and not self._second:
            self._finished = self._sent_usage = True
            return event
        self.reported = event
        return self._stop()

    def _stop(self) -> bytes:
        self.stopped, self._layout = True, None
        if self._again_left:  # nothing of this part has passed
            self._finished = False
            self._ids.drop(self.tokens - self._joined)
        return b""

    def _ignore_ids(self) -> bytes:
        self.ids_ignored = True
        return self._stop()

    def _feed_text(self, event: bytes, text: AnswerText) -> bytes:
        """Take an event of an answer without ids."""
        finish = event_bytes.FINISH.search(event)
        if finish is not None and finish[1] == b"abort":
            return self._stop()
        seen = None if event_bytes.IDS in event else text.take(event)
        if seen is not None:
            self._finished = self._finished or finish is not None
            return seen
        if self._second:
            return self._stop()
        self._refuse("no_token_ids")
        return self._feed_choice(event)

    def _feed_choice(self, event: bytes) -> bytes:
        """Take an event that adds to the answer, whatever it adds."""
        if self._text is not None:
            return self._feed_text(event, self._text)
        before, has_ids, after = event.partition(event_bytes.IDS)
        role = self._chat and event_bytes.ROLE in before and not has_ids
        if (finish := event_bytes.FINISH.search(event)) is not None:
            if finish[1] == b"abort":  # by the engine: a client that aborts is gone
                return self._stop()
            self._finished = True
        elif not (has_ids or role):
            self._refuse("no_token_ids", passing=self._ids.prompt is None)  # there are none to hide either
        if event_bytes.REASONING.search(before) is not None:
            if self._second:  # its parser has begun anew, in an answer that is past its reasoning
                return self._stop()
            self._reasoning, self._layout = True, None  # until an event that adds text is examined
            self._by_text = False  # a text has no reasoning
            if self._events is not None:
                self._events.clear()
        elif event_bytes.CALLS in before:
            self._refuse("tool_call")
        elif finish is None and b'"delta":{}' in before:
            self._watch_tail()
        elif has_ids:
            self._reasoning = self._reasoning and self._plain + b'"' in before
            if not (finish or self._second or self._reasoning or self._refusal):
                self._layout = find_layout(before, after, self._plain)
        if role and self._second:
            return b""
        return self._take_ids(event, before, after) if has_ids else event

    def _watch_tail(self) -> None:
        """Keep the last events from now on: the engine holds text back, and they show whether it still does."""
        self._by_text = False
        if self._tail is None:
            self._tail = AnswerTail()
            self._events = self._tail.events
