"""Run a router until a signal ends it or another process takes over: handle the signals, and log its addresses and
what its listeners expose.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from router.clock import SystemClock
from router.config import schema
from router.config.exposure import list_exposures
from router.control.handover import Predecessor, SocketGiver, find_predecessor
from router.control.operator_state import forget_state
from router.control.process import describe_build, notify_service_manager, raise_open_file_limit, tune_interpreter
from router.errors import ConfigError, WarmrouteError
from router.proxy.listening_sockets import ListeningSockets, take_passed_sockets
from router.tasks import Tasks

log = logging.getLogger("warmroute.app")

POLL_S = 0.02
STOP_IDLE_S = 1.0  # lets a client that is between two requests send one more, and learn that it is the last
HOLD_S = 30.0  # for a process with passed sockets to find a ready engine; after it, 503 as from any process
TAKE_OVER_S = 120.0  # for a process that takes over to find one; after it, the running router continues
HANDOVER_IDLE_S = 5.0  # like `STOP_IDLE_S`, for a process whose end nobody waits for


class Router(Protocol):
    """A router of one process (`App`) or of several (`Supervisor`)."""

    @property
    def port(self) -> int: ...

    @property
    def admin_port(self) -> int: ...

    @property
    def metrics_port(self) -> int: ...

    def unready_reason(self) -> str | None: ...

    async def start(self, *, hold: bool = False, join: bool = True) -> None: ...

    async def open(self) -> None: ...

    async def join_replicas(self) -> None: ...

    async def prepare_successor(self) -> bytes: ...

    async def hand_over(self) -> None: ...

    def reload(self) -> None: ...

    def release(self) -> None: ...

    async def stop(self, idle_s: float = 0.0) -> None: ...


async def serve_router(
    config: schema.Config,
    when_ready: Callable[[Router], None] = lambda router: None,
    file: Path | None = None,
    *,
    only_picker: bool = False,
    take_over: bool = False,
    as_configured: bool = False,
) -> None:
    """Run a router until SIGTERM or SIGINT, or until another process takes over; SIGHUP applies changed
    configuration files, watched or not. `when_ready` is called once, when an instance is ready for requests.
    `config` was read from `file`, whose changes take effect as far as possible. `only_picker`: as for `App`. With
    `take_over`, the router that runs at this address, if any, is replaced. `as_configured`: what operators had set
    before is forgotten. Raises `ConfigError` if a port is not available, and `WarmrouteError` if the running router
    cannot be replaced and continues.
    """
    raise_open_file_limit()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the default action ends the process
    predecessor = find_predecessor(config.listen.host, config.listen.port) if take_over else None
    passed = take_passed_sockets(os.environ, os.getpid())
    sockets = ListeningSockets(predecessor.sockets if predecessor is not None else passed)
    state = b"" if predecessor is None else predecessor.state
    if as_configured:
        state = b""
        forget_state(config.admin.audit_file)
    app = _build_router(config, file, sockets, state, only_picker=only_picker)
    stop = asyncio.Event()
    if not await _start(app, stop, hold=sockets.handed_over, join=predecessor is None):
        return
    if sockets.handed_over:
        await _open_when_ready(app, sockets, stop, predecessor)
    tune_interpreter()
    _log_start(config, app)
    notify_service_manager("READY=1")
    owner = Tasks("serve")
    owner.spawn("when ready", _call_when_ready(app, when_ready))
    giver = SocketGiver(sockets, app.prepare_successor, app.hand_over)
    owner.spawn("successor", giver.serve(config.listen.host, app.port))
    owner.spawn("released", _set_after(giver.released, stop))
    await stop.wait()
    notify_service_manager("STOPPING=1")
    log.info("stopping: requests in progress have up to %g s", config.limits.grace_s)
    if passed:  # the service manager has the sockets too: the next process accepts waiting connections
        app.release()
    await owner.close()
    await app.stop(HANDOVER_IDLE_S if giver.released.is_set() else STOP_IDLE_S)


def _build_router(
    config: schema.Config, file: Path | None, sockets: ListeningSockets, state: bytes, *, only_picker: bool
) -> Router:
    """Return the router in this process, or the supervisor of its workers, which loads no router modules."""
    if config.workers > 1:
        from router.control.workers.supervisor import Supervisor

        return Supervisor(config, file, SystemClock(), only_picker=only_picker, sockets=sockets, state=state)
    from router.app import App

    return App(config, file=file, only_picker=only_picker, sockets=sockets, state=state)


async def _start(app: Router, stop: asyncio.Event, *, hold: bool, join: bool) -> bool:
    """Start the router; from now on SIGTERM and SIGINT set `stop`. Return False if one of them ended the start."""
    starting, task, loop = True, asyncio.current_task(), asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        if starting and task is not None:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, app.reload)
    try:
        await app.start(hold=hold, join=join)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        log.info("stopped while starting")
        return False
    starting = False
    return True


def _log_start(config: schema.Config, app: Router) -> None:
    for line in list_exposures(config):
        log.warning(line)
    log.info("%s", describe_build())
    log.info("listening on %s:%d, admin on %s:%d", config.listen.host, app.port, config.admin.host, app.admin_port)
    if config.metrics.port is not None:
        log.info("metrics on %s:%d", config.metrics.host, app.metrics_port)


async def _open_when_ready(
    app: Router, sockets: ListeningSockets, stop: asyncio.Event, predecessor: Predecessor | None
) -> None:
    """Accept connections once this process can serve them; another process may accept them until then. Raises
    ConfigError for passed sockets that no listener has, and WarmrouteError if the predecessor has to continue.
    """
    if unused := sockets.unused():
        if predecessor is None:
            raise ConfigError(
                f"the service manager passed a socket on {unused[0]}, which no listener of the configuration has"
            )
        log.warning("the running router also listens on %s: no process will when it ends", ", ".join(unused))
    hold_s = HOLD_S if predecessor is None else TAKE_OVER_S
    log.info("waiting up to %g s for a ready engine before accepting connections", hold_s)
    with suppress(TimeoutError):
        async with asyncio.timeout(hold_s):
            while app.unready_reason() is not None and not stop.is_set():  # noqa: ASYNC110  many causes, one answer
                await asyncio.sleep(POLL_S)
    reason = "it had to stop" if stop.is_set() else app.unready_reason()
    if predecessor is None:
        await app.open()
        return
    if reason is not None:
        predecessor.leave()
        await app.stop()
        raise WarmrouteError(f"--take-over: not ready within {hold_s:g} s: {reason}; the running router continues")
    await app.open()
    await predecessor.release()
    await app.join_replicas()  # the port is free now
    log.info("took over from the router that ran here, which finishes its requests")


async def _call_when_ready(app: Router, callback: Callable[[Router], None]) -> None:
    while app.unready_reason() is not None:  # noqa: ASYNC110  many causes, one answer
        await asyncio.sleep(POLL_S)
    callback(app)


async def _set_after(event: asyncio.Event, then: asyncio.Event) -> None:
    await event.wait()
    then.set()
