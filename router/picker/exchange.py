"""One HTTP request that a gateway carries out: a `ClientRequest` (`proxy/call.py`) whose messages arrive by
ext_proc.

    messages   on_message -> the reply, as soon as there is one
    request    body -> answer (a refusal), or choose -> how the answer that the gateway relayed ended

The gateway sends the request and requests an endpoint. Then it sends the answer, piece by piece (the conforming
profile, in which every piece is sent back), or only its first piece (the thin profile: this stream then ends, and
nothing of the answer depends on the picker). A message that arrives twice, out of order or too late changes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from router.picker.answer_end import AnswerEnd, classify_failure
from router.picker.ext_proc_pb2 import (
    BUFFERED,
    BUFFERED_PARTIAL,
    FULL_DUPLEX_STREAMED,
    NONE,
    HttpBody,
    ProcessingRequest,
)
from router.picker.messages import (
    BodyForm,
    Choice,
    build_choice,
    build_refusal,
    build_response_headers,
    build_response_piece,
    pass_on,
    read_details,
    read_head,
    read_headers,
    read_modes,
    read_served,
    read_subset,
)
from router.picker.names import TEST_SERVED
from router.proxy.call import BodyBudget, ClientDisconnected, Headers
from router.proxy.headers import content_encoding, split_lines
from router.proxy.relay import AnswerWatch
from router.proxy.watched_exchange import PIECE_BYTES, WatchedExchange, check_body_size

UNREAD_BYTES = 1024 * 1024  # of a body that may wait before the reader is woken to count them
NO_REPLIES: tuple[bytes, ...] = ()


class PickerExchange(WatchedExchange):
    """One exchange. `write` adds to the router's own answer; `sender` is named by the gateway's headers."""

    def __init__(
        self, first: ProcessingRequest, send: Callable[[bytes], None], find_sender: Callable[[Headers], str]
    ) -> None:
        super().__init__()
        head = first.request_headers
        self.method, self.path, self.target, self.headers, self.fields = read_head(head.headers)
        self.recorded = False
        self.subset = read_subset(first)
        self.tests = False  # True: headers of conformance tests are obeyed
        modes = read_modes(first)
        self._form: BodyForm = _FORMS.get(modes.request, "none") if not head.end_of_stream else "none"
        self._response_mode = modes.response
        self.task: asyncio.Task[Any] | None = None  # answers the request
        self.left = False  # the stream can be closed, and the exchange continues without it
        self.complete = False  # the stream can be closed, because nothing more will arrive
        self.started = False  # an answer has begun: no other can be sent
        self.status: int | None = None  # of the answer
        self.first_piece = b""
        self.gateway = ""  # its address, as a client's
        self._send = send
        self._find_sender = find_sender
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._received = b""
        self._body_complete = head.end_of_stream
        self._trailers = False
        self._refusal: tuple[int, Headers] = (0, [])
        self._answer = bytearray()
        self._choice: Choice | None = None
        self._answer_headers: list[tuple[str, bytes]] = []
        self._watch: AnswerWatch | None = None
        self._end: asyncio.Future[AnswerEnd] | None = None
        self._head: Headers = []
        self.moving = False  # another endpoint answers, and no watch for its answer is set yet
        self.resume: Callable[[], None] = lambda: None
        self._chosen_s = 0.0
        self._served: str | None = None
        self._begun = False
        self._remaining: int | None = None

    @property
    def thin(self) -> bool:
        """True if the gateway retains the answer: nothing in the answer can be changed here."""
        return self._response_mode != FULL_DUPLEX_STREAMED

    @property
    def supported(self) -> bool:
        """True if the gateway sends the request's body in a mode that lets the choice depend on the body."""
        return self._body_complete or self._form != "none"

    @property
    def buffered(self) -> bool:
        """True if the gateway waits for a reply to the head before it sends the whole body."""
        return self._form == "buffered"

    @property
    def body_complete(self) -> bool:
        """True if the whole request has arrived."""
        return self._body_complete

    @property
    def proxied(self) -> bool:
        """Always True: a gateway sent the request, and sets and removes headers as the operator configured."""
        return True

    @property
    def sender(self) -> str:
        return self.client or self._find_sender(self.headers)

    def _find_task(self) -> asyncio.Task[Any] | None:
        return self.task

    # the request's body

    async def body(self, limit_bytes: int, budget: BodyBudget) -> bytes:
        """Return the whole body, like `ClientRequest.body`. Raises `ClientDisconnected` if the gateway leaves."""
        length = self.fields.get(b"content-length", b"")
        if length.isdigit():
            check_body_size(int(length), limit_bytes)
        taken: list[bytes] = []
        size = 0
        while not self.gone:
            pieces, self._pieces, self._unread = self._pieces, [], 0
            size += sum(map(len, pieces))
            check_body_size(size, limit_bytes)
            if pieces:
                budget.hold(sum(map(len, pieces)) + PIECE_BYTES * len(pieces))
                taken += pieces
            if self._body_complete:
                self._received = taken[0] if len(taken) == 1 else b"".join(taken)
                return self._received
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        await asyncio.sleep(0)  # the cancellation is raised here
        raise ClientDisconnected

    def _take(self, piece: bytes, last: bool) -> None:
        """Take a piece of the request's body."""
        if self._body_complete:
            return
        if piece:
            self._pieces.append(piece)
            self._unread += len(piece)
        self._body_complete = last
        if (last or self._unread >= UNREAD_BYTES) and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # the router's own answer

    def start(self, status: int, headers: Headers) -> None:
        """Begin the router's own answer, which is sent when it is finished."""
        self.started = True
        self.status = status
        self._refusal = status, [*headers, *split_lines(self.own_lines)]

    def write(self, data: bytes) -> None:
        self._answer += data

    def finish(self, last: bytes = b"") -> None:
        """Complete the router's own answer: `refusal` returns it as the message for the gateway."""
        self._answer += last

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self.start(status, headers)
        self.finish(body)

    @property
    def write_paused(self) -> bool:
        return False

    async def drain(self) -> None:
        """Return at once: written data is kept until the answer is whole."""

    def abort(self) -> None:
        """Drop the router's own answer, which is not whole."""
        self._refusal = 0, []

    def refusal(self) -> bytes | None:
        """Return the message with the router's own answer; None without one."""
        status, headers = self._refusal
        if not status:
            return None
        return build_refusal(status, headers, bytes(self._answer), "warmroute")

    # an answer that the gateway relays

    async def choose(self, choice: Choice, answer_headers: list[tuple[str, bytes]], watch: AnswerWatch) -> AnswerEnd:
        """Send the gateway the choice, and return how its answer ended. `answer_headers` are set in the answer,
        which `watch` observes. After an end `moved`, call this again for the endpoint that answers; the gateway is
        not notified again.
        """
        if self._form == "buffered" and choice.body is self._received:
            choice = choice._replace(body=None)
        own_headers = [(name.decode("latin-1"), value) for name, value in split_lines(self.own_lines)]
        self._choice, self._answer_headers, self._watch = choice, answer_headers + own_headers, watch
        loop = asyncio.get_running_loop()
        self._end, self._chosen_s = loop.create_future(), loop.time()
        if not self.moving:
            for message in build_choice(choice, self._form, trailers=self._trailers):
                self._send(message)
        else:
            self._adopt()
        return await self._end

    def settle_head(self, message: ProcessingRequest) -> None:
        """Examine an answer's head. If another endpoint answers than the first one that was named, the exchange is
        `moving` until `choose` sets a watch for its answer: pass it no further message before `resume` is called.
        """
        head = message.response_headers
        headers = read_headers(head.headers)
        fields = dict(headers)
        self._served = read_served(message)
        try:
            self.status = int(fields.get(b":status", b""))
        except ValueError:
            self.status = None
        begun, self.started = self.started, True
        if self._end is None:
            self._abandon()
        if self._end is None or self.status is None or begun:
            return
        detail = read_details(message)
        failure = classify_failure(self.status, detail, fields.get(b"content-type", b""))
        if failure is not None:
            self._finish(AnswerEnd(failure, self.status, self._served, detail or f"the gateway answered {self.status}"))
            return
        assert self._choice is not None
        if self._served is not None and self._served != self._choice.endpoints.partition(",")[0]:
            self.moving, self._head = True, headers
            self._finish(AnswerEnd("moved", self.status, self._served))
            return
        self._read_head(headers)

    def _adopt(self) -> None:
        """Continue with the answer of another endpoint."""
        self.moving = False
        self._read_head(self._head)
        self.resume()

    def _read_head(self, headers: Headers) -> None:
        if self._watch is not None and (encoding := content_encoding(headers)):
            self._watch.on_encoded(encoding)
        length = dict(headers).get(b"content-length", b"")
        self._remaining = int(length) if length.isdigit() else None

    def on_message(self, message: ProcessingRequest) -> tuple[bytes, ...]:
        """Take a message, and return the replies to it."""
        match message.WhichOneof("request"):
            case "request_body":
                self._take(message.request_body.body, message.request_body.end_of_stream)
                return NO_REPLIES
            case "request_trailers":
                self._trailers = True
                self._take(b"", True)
                return NO_REPLIES
            case "response_headers":
                if message.response_headers.end_of_stream or self._response_mode == NONE:
                    self._begin()
                    self._conclude(last=message.response_headers.end_of_stream)
                return (build_response_headers(self._answer_headers + self._test_headers()),)
            case "response_body":
                return self._pass_piece(message.response_body)
            case "response_trailers":
                held = b"" if self._watch is None else self._watch.flush()
                self._conclude(last=True)
                trailers = pass_on("response_trailers")
                return (trailers,) if not held or self.thin else (build_response_piece(held, False), trailers)
        return NO_REPLIES

    def _test_headers(self) -> list[tuple[str, bytes]]:
        if not self.tests:
            return []
        return [(TEST_SERVED, (self._served or "fail: missing envoy lb metadata").encode())]

    def _pass_piece(self, message: HttpBody) -> tuple[bytes, ...]:
        piece, last = message.body, message.end_of_stream
        if not self._begun:
            self.first_piece = piece
            self._begin()
        if self._remaining is not None:
            self._remaining -= len(piece)
        visible = piece
        if self._watch is not None:
            if piece:
                visible = self._watch.feed(piece)
            if last:
                visible += self._watch.flush()
        if self.thin:
            self._conclude(last=last or self._remaining == 0)
            return (pass_on("response_body"),)
        if last:
            self._conclude(last=True)
        return (build_response_piece(visible, last),) if visible or last else NO_REPLIES

    def _begin(self) -> None:
        self._begun = True
        if self._watch is not None and self.status is not None:
            self._watch.on_first_byte(self.status)

    def _conclude(self, *, last: bool) -> None:
        """End the exchange here: the answer is whole (`last`), or its rest does not pass through the picker."""
        self.complete, self.left = last, not last
        if self._end is None:
            self._abandon()
        self._finish(AnswerEnd("whole" if last else "left", self.status, self._served))

    def _finish(self, end: AnswerEnd) -> None:
        self._watch = None
        if self._end is not None and not self._end.done():
            self._end.set_result(end)

    def on_stream_end(self) -> None:
        """Handle that the gateway has ended the stream, or that the stream was cut off."""
        if self.complete or self.left:
            return
        if self.started and self._end is not None:
            self._finish(AnswerEnd("cut", self.status, self._served, "the gateway ended the exchange early"))
            return
        self._abandon()

    def _abandon(self) -> None:
        """Cancel the unused choice: the gateway has left, or has answered without a choice."""
        self.gone = True
        self._cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def release(self) -> None:
        """Remove the watch: what is still to come is relayed unobserved."""
        self._watch = None
        if self.moving:
            self._adopt()

    def check(self, now_s: float, since_s: float, stall_s: float, first_byte_s: float, idle_s: float) -> bool:
        """End an exchange that has waited too long for the gateway; return whether its stream is to be cut off.

        The last message arrived at `since_s`. A request's body may pause for `stall_s`, the answer may begin
        `first_byte_s` after the choice, and may pause for `idle_s` after that.
        """
        silent_s = now_s - max(since_s, self._chosen_s)
        if not self._body_complete:
            return silent_s > stall_s
        if self._end is None:
            return False  # the request is being decided, or is over
        if not self._begun and not self.started and silent_s > first_byte_s:
            self._finish(AnswerEnd("late"))
            return False
        return self.started and silent_s > idle_s


_FORMS: dict[int, BodyForm] = {FULL_DUPLEX_STREAMED: "streamed", BUFFERED: "buffered", BUFFERED_PARTIAL: "buffered"}
