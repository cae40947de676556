"""A worker's process: `python -m router.cli.worker FD SOCKET...`, started by the supervisor of its host.

`FD` is the worker's end of the channel to the supervisor, which sends the configuration and the stop message.
`SOCKET...` are the descriptors of the listening sockets of all workers. SIGTERM ends this worker as the
supervisor's stop message does: requests in flight have the grace time. When the supervisor is gone, the worker
stops listening at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import uvloop

from router.app import POLL_S, App
from router.cli.serve.run import STOP_IDLE_S
from router.cli.terminal.logs import log_to_stderr
from router.config.schema import Config
from router.control.core import WorkerRole
from router.control.process import raise_open_file_limit, tune_interpreter
from router.control.workers.messages import (
    Query,
    StartWorker,
    WorkerReady,
    WorkerStarted,
    WorkerStopping,
    WorkerUp,
)
from router.control.workers.metrics_merge import encode_families
from router.control.workers.supervisor_link import SupervisorLink
from router.errors import ConfigError
from router.proxy.listening_sockets import ListeningSockets
from router.tasks import Tasks

ENGINES_TIMEOUT_S = 5.0  # a worker listens after this long even if some instances are still joining


async def work(sock: socket.socket, sockets: ListeningSockets) -> None:
    """Answer requests until the supervisor is gone or sends the stop message, or until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    tasks = Tasks("worker")
    link = SupervisorLink(tasks)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, link.stopping.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor has the worker on duty read the configuration
    try:
        start = await link.connect(sock)
    except ConnectionError:
        return
    config = Config.model_validate_json(start.config)
    log_to_stderr(config.log.level, config.log.format, access=config.log.access, worker=start.number)
    raise_open_file_limit()
    try:
        app = await _start(config, start, link, sockets)
    except ConfigError as error:
        await link.report_failure(str(error))
    else:
        beginning = [_open(app, link), _report_ready(app, link), _join(app, link, start)]
        begun = [tasks.spawn("begin", each) for each in beginning]
        tune_interpreter()
        await link.stopping.wait()
        for each in begun:
            each.cancel()
        app.release()
        if link.gone:
            await app.leave_host()
        link.send(WorkerStopping())
        await app.stop(STOP_IDLE_S if link.idle_s is None else link.idle_s)
    await tasks.close()
    link.close()


async def _start(config: Config, start: StartWorker, link: SupervisorLink, sockets: ListeningSockets) -> App:
    """Start and return this worker's router. Raises ConfigError."""
    file = None if start.file is None else Path(start.file)
    role = WorkerRole(start, link)
    app = App(config, file=file, role=role, only_picker=start.only_picker, sockets=sockets)
    await link.announce_built(app.core.run_id)
    link.answer = partial(_answer, app)
    await app.start(hold=True, join=start.join)
    link.send(WorkerStarted())
    return app


async def _answer(app: App, query: Query) -> bytes:
    """Carry out the supervisor's query, and return the reply."""
    match query:
        case "page" | "counters":
            return await asyncio.to_thread(encode_families, app.metrics_page(), whole=query == "page")
        case "prepare_successor":
            return await app.prepare_successor()
        case "release":
            await app.hand_over()
        case "reload":
            app.reload()
    return b""


async def _open(app: App, link: SupervisorLink) -> None:
    """Accept connections once the supervisor allows it: the worker on duty at once; any other worker when the one
    on duty is ready and this worker knows the engines and its peers, because the one on duty chooses better until
    then.
    """
    await link.may_open.wait()
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + ENGINES_TIMEOUT_S
    while not (app.on_duty or (link.members.ready and app.knows_engines() and app.knows_peers())):
        if loop.time() >= give_up_at and app.unready_reason() is None:
            break
        await asyncio.sleep(POLL_S)
    await app.open()
    link.send(WorkerUp())


async def _report_ready(app: App, link: SupervisorLink) -> None:
    while app.unready_reason() is not None:  # noqa: ASYNC110  many causes, one answer
        await asyncio.sleep(POLL_S)
    link.send(WorkerReady())


async def _join(app: App, link: SupervisorLink, start: StartWorker) -> None:
    """Connect to other hosts once the supervisor allows it, unless the start has done so already."""
    if not start.join:
        await link.may_join.wait()
        await app.join_replicas()


if __name__ == "__main__":
    channel, *passed = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    uvloop.run(work(channel, ListeningSockets(passed)))
