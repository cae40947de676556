"""A follower's process: `python -m router.cli.worker FD`, started by the leading worker.

`FD` is the follower's end of the channel to the leader, which sends the configuration and everything else. SIGTERM ends
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

from router.app import App
from router.cli.terminal.logs import log_to_stderr
from router.control.process import raise_open_file_limit, tune_interpreter
from router.control.workers.follower import FollowerWorker, parse_config
from router.errors import WarmrouteError
from router.tasks import Tasks
from router.wiring import WorkerRole

log = logging.getLogger("warmroute.app")


async def follow(sock: socket.socket) -> None:
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
    app = App(config, role=WorkerRole(start.number, start.secret, follower))
    await app.start()
    tune_interpreter()
    await follower.stopping.wait()
    if follower.stops_alone:  # others take what comes now, or nobody should
        app.refuse()
    await app.stop()
    await tasks.close()
    follower.close()


if __name__ == "__main__":
    try:
        uvloop.run(follow(socket.socket(fileno=int(sys.argv[1]))))
    except WarmrouteError as failure:
        sys.exit(f"warmroute worker: {failure}")
