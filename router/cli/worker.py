"""A follower's process: `python -m router.cli.worker FD SOCKET...`, started by the leading worker.

`FD` is the follower's end of the channel to the leader, which sends the configuration and everything else. `SOCKET...`
are the descriptors of its listening sockets, on which the leader accepts when this process does not. SIGTERM ends
it as the leader's stop message does: requests in flight have the grace time. When the leader is gone, it stops
listening at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

import uvloop

from router.app import POLL_S, STOP_IDLE_S, App
from router.cli.terminal.logs import log_to_stderr
from router.control.process import raise_open_file_limit, tune_interpreter
from router.control.workers.follower import FollowerWorker, parse_config
from router.errors import WarmrouteError
from router.proxy.listening_sockets import ListeningSockets
from router.tasks import Tasks
from router.wiring import WorkerRole

log = logging.getLogger("warmroute.app")

ENGINES_TIMEOUT_S = 5.0  # a follower listens after this long even if some instances are still joining


async def follow(sock: socket.socket, sockets: ListeningSockets) -> None:
    """Answer requests until the leader is gone or sends the stop message, or until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    tasks = Tasks("follow")
    follower = FollowerWorker(tasks)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, follower.stopping.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the leader reads the configuration
    try:
        start = await follower.connect(sock)
    except ConnectionError:
        return
    config = parse_config(start)
    log_to_stderr(config.log.level, config.log.format, access=config.log.access, worker=start.number)
    raise_open_file_limit()
    app = App(config, role=WorkerRole(start.number, start.secret, follower), sockets=sockets)
    await app.start()
    opening = tasks.spawn("open", _open(app, follower))
    tune_interpreter()
    await follower.stopping.wait()
    opening.cancel()
    app.release()
    follower.announce_stop()
    await app.stop(STOP_IDLE_S if follower.idle_s is None else follower.idle_s)
    await tasks.close()
    follower.close()


async def _open(app: App, follower: FollowerWorker) -> None:
    """Accept connections once this follower knows the engines; until then, other workers choose better."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + ENGINES_TIMEOUT_S
    while not app.knows_engines() and (loop.time() < give_up_at or app.unready_reason() is not None):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    await app.open()
    follower.announce_up()


if __name__ == "__main__":
    try:
        channel, *passed = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
        uvloop.run(follow(channel, ListeningSockets(passed)))
    except WarmrouteError as failure:
        sys.exit(f"warmroute worker: {failure}")
