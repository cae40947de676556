"""`python -m router.testbed.loadgen.client_process`: one process of a load, led over its pipes by the one that started
it.

    in   a `LoadJob`; the common beginning, in seconds of the wall clock; then nothing: where the input ends, the load
    ends out  an empty frame when it is ready; then a `SentRequest` for each request that has ended

So a process whose leader is gone, however that ended, ends too.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import uvloop

from router.clock import SystemClock
from router.tasks import Tasks
from router.testbed.loadgen.framing import encode_frame, read_frame
from router.testbed.loadgen.job import LoadJob, SentRequest
from router.testbed.loadgen.load import load


async def serve() -> None:
    leader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(leader), sys.stdin)
    clock, encode = SystemClock(), msgspec.msgpack.Encoder().encode
    if (told := await read_frame(leader)) is None:
        return
    job = msgspec.msgpack.decode(told, type=LoadJob)
    _say(b"")
    if (told := await read_frame(leader)) is None:
        return
    began_s = clock.now() + msgspec.msgpack.decode(told, type=float) - clock.wall()

    def tell(sent: SentRequest) -> None:
        _say(encode(sent))

    tasks = Tasks("load")
    loading = tasks.spawn("sessions", load(job, clock, began_s, tell))
    left = tasks.spawn("leader", leader.read())
    await asyncio.wait({loading, left}, return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        loading.result()
    await tasks.close()


def _say(message: bytes) -> None:
    """To nobody, once the leader is gone: the end of the input, which ends all, may come a moment later."""
    try:
        sys.stdout.buffer.write(encode_frame(message))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    uvloop.run(serve())


if __name__ == "__main__":
    main()
