"""One gRPC stream to a picker, as a data plane opens it for one HTTP request. Whatever the peer does is a value here.

Nothing of this knows what the messages mean.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from router.picker import ext_proc_pb2 as pb
from router.picker.names import EXT_PROC

PROCESS = f"/{EXT_PROC}/Process"


class StreamEnd(NamedTuple):
    """The picker ended the stream, with this gRPC status."""

    status: str
    details: str

    @property
    def ok(self) -> bool:
        return self.status == "OK"


class PickerSilence(NamedTuple):
    """The picker sent nothing for so long."""

    seconds: float


NoMessage = StreamEnd | PickerSilence

SEND_FAILURES = (TimeoutError, asyncio.InvalidStateError, grpc.RpcError, grpc.aio.BaseError)
WRITE_FAILED = "Internal error from Core"  # of gRPC for Python, when the stream ends while a message is written
MOST_MESSAGES = 20_000  # of one stream: a picker that never stops is stopped
ENDLESS = StreamEnd("reset by the suite", "messages without end")
UNSEEN = StreamEnd("status unknown", "it ended while a message was on its way")


class PickerStream:
    """A stream of `Process`. `timeout_s` is how long one message may take, in either direction."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._end: NoMessage | None = None
        self._received = 0
        # bytes, not messages: what cannot be decoded is a result, and unknown fields can be sent
        self._call: Any = channel.stream_stream(PROCESS)()
        self._done = asyncio.Event()
        self._call.add_done_callback(lambda _: self._done.set())

    async def send(self, *messages: pb.ProcessingRequest | bytes) -> bool:
        """Send the messages. Return False when the picker took no more of them."""
        try:
            async with asyncio.timeout(self._timeout_s):
                for message in messages:
                    if self._done.is_set():  # a write would replace the status by an error of its own
                        return False
                    data = message if isinstance(message, bytes) else message.SerializeToString()
                    await self._call.write(data)
        except SEND_FAILURES:
            return False
        return True

    async def receive(self) -> pb.ProcessingResponse | NoMessage:
        """Return the picker's next message, or why there is none. Nothing comes after that: it is returned again."""
        if self._end is not None:
            return self._end
        try:
            async with asyncio.timeout(self._timeout_s):
                data = await self._call.read()
                self._received += 1
                if self._received > MOST_MESSAGES:
                    self.cancel()
                    self._end = ENDLESS
                elif data is not grpc.aio.EOF:
                    return pb.ProcessingResponse.FromString(data)
                else:
                    self._end = StreamEnd((await self._call.code()).name, await self._call.details() or "")
        except TimeoutError:
            self._end = PickerSilence(self._timeout_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._end = PickerSilence(self._timeout_s)  # a write that timed out has cancelled the call
        except DecodeError as error:
            self.cancel()
            self._end = StreamEnd("UNREADABLE", f"not a ProcessingResponse: {error}")
        except grpc.aio.AioRpcError as error:
            self._end = (
                UNSEEN if error.details() == WRITE_FAILED else StreamEnd(error.code().name, error.details() or "")
            )
        return self._end

    async def wait_for_end(self, seconds: float) -> None:
        """Wait until the picker ends the stream, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()

    async def half_close(self) -> bool:
        """Tell the picker that nothing more will come. Return False when the stream had ended before."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._call.done_writing()
        except SEND_FAILURES:
            return False
        return True

    def cancel(self) -> None:
        """Reset the stream, as a data plane does when its client leaves."""
        self._call.cancel()
