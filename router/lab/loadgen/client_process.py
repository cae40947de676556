"""`python -m router.lab.loadgen.client_process`: one client process of a load, controlled through its pipes.

    stdin   a `LoadJob`; the common start, in seconds of the wall clock; then nothing; end of input ends the load
    stdout  an empty frame when the client is ready; then a `SentRequest` for each request that has ended

So the client ends whenever its parent has ended, for whatever reason.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import uvloop

from router.clock import SystemClock
from router.lab.loadgen.load import LoadJob, SentRequest, encode_frame, load, read_frame
from router.tasks import Tasks


async def serve() -> None:
    """Run the load of one process."""
    parent = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(parent), sys.stdin)
    clock, encode = SystemClock(), msgspec.msgpack.Encoder().encode
    if (frame := await read_frame(parent)) is None:
        return
    job = msgspec.msgpack.decode(frame, type=LoadJob)
    _send(b"")
    if (frame := await read_frame(parent)) is None:
        return
    start_s = clock.now() + msgspec.msgpack.decode(frame, type=float) - clock.wall()

    def report(request: SentRequest) -> None:
        _send(encode(request))

    tasks = Tasks("load")
    loading = tasks.spawn("sessions", load(job, clock, start_s, report))
    closed = tasks.spawn("parent", parent.read())
    await asyncio.wait({loading, closed}, return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        loading.result()
    await tasks.close()


def _send(message: bytes) -> None:
    """Write a frame. If the parent is gone, as end of input will show, discard this and all later frames."""
    try:
        sys.stdout.buffer.write(encode_frame(message))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    uvloop.run(serve())
