"""The supervisor of a host's workers: it starts, replaces and ends them, and holds their listening sockets.

The supervisor also merges the workers' metrics pages. It serves no requests, makes no decisions about them and
relays nothing: workers exchange their state among themselves (`control/peers`).

Workers are new processes, not forks: a running event loop with threads and sockets cannot be forked. Each worker
gets one end of a socket pair and all listening sockets. A worker that ends is restarted after a pause, which
doubles as long as processes keep ending soon after their start. Workers stop when their supervisor is gone, to
leave the port to the next router.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from asyncio.subprocess import Process
from functools import partial
from pathlib import Path

from router.clock import Clock
from router.config.schema import Config
from router.config.sections.base import Section
from router.control.key_secret import load_snapshot, resolve_key_secret
from router.control.workers import metrics_merge
from router.control.workers.channel import Channel
from router.control.workers.messages import (
    AnyMessage,
    JoinHosts,
    LivingWorker,
    Members,
    OpenListeners,
    Query,
    StartWorker,
    StopWorker,
    WorkerBuilt,
    WorkerFailed,
    WorkerMessage,
    WorkerReady,
    WorkerStarted,
    WorkerStopping,
    WorkerUp,
)
from router.control.workers.metrics_merge import MergedMetrics, MetricFamily
from router.errors import ConfigError
from router.proxy.listening_sockets import ListeningSockets
from router.tasks import FIRST_PAUSE_S, LONGEST_PAUSE_S, Tasks
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.shared_scrape import SharedScrape

log = logging.getLogger("warmroute.workers")

STABLE_S = 30.0  # a process that ran this long did not end because of a failed start
WORKER_END_S = 4.5  # for workers to end the streams that outlived the grace time
SAVE_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 10.0
PING_PAUSE_S = 2.0
PING_TIMEOUT_S = 3.0
MISSED_PINGS = 2  # in a row, then a worker is replaced; one may be missed because the supervisor itself was stopped


class Worker:
    """One worker process, from its start to its end."""

    def __init__(self, number: int, process: Process) -> None:
        self.number = number
        self.process = process
        self.channel: Channel
        self.run: str | None = None  # None: it is not built yet
        self.started = self.ready = self.up = self.stopping = False
        self.families: list[MetricFamily] = []  # its metrics, as last received
        self.missed_pings = 0  # in a row

    @property
    def member(self) -> LivingWorker | None:
        """The worker as a member for the others; None if the worker is not built yet."""
        return None if self.run is None else LivingWorker(self.number, self.run, self.process.pid, self.up)


class Supervisor:
    """Keeps workers running, from `start` to `stop`, as one router; `App` is the counterpart with one process.
    `file` is the path that the configuration was read from; `sockets` includes the sockets that were handed over to
    this process, and `state` is what was handed over with them.
    """

    def __init__(
        self,
        config: Config,
        file: Path | None,
        clock: Clock,
        *,
        only_picker: bool,
        sockets: ListeningSockets,
        state: bytes = b"",
    ) -> None:
        self._config = config
        self._file = file
        self._only_picker = only_picker
        self._sockets = sockets
        self._state = state
        self._clock = clock
        self._tasks = Tasks("workers")
        self._host, self._name = secrets.token_hex(4), f"@warmroute-{secrets.token_hex(8)}"
        self._peer_secret = secrets.token_bytes(32)
        self._workers: dict[int, Worker] = {}  # those that run, by number
        self._on_duty = 0
        self._hold = self._join = False
        self._page = SharedScrape(self.scrape, self._tasks, clock)
        self._ended: list[MetricFamily] = []  # counters of workers that ended
        self._started: asyncio.Future[None]
        self._open = asyncio.Event()  # the worker on duty accepts connections
        self._stopping = False
        self._key_secret = resolve_key_secret(config, load_snapshot(config, whole=False))

    @property
    def port(self) -> int:
        """The public port."""
        return self._config.listen.port

    @property
    def admin_port(self) -> int:
        """The port of the admin API."""
        return self._config.admin.port

    @property
    def metrics_port(self) -> int:
        """The port that serves the metrics."""
        return self._config.metrics.port or self.port

    def unready_reason(self) -> str | None:
        """Return why this router should receive no requests now; None if it is ready."""
        return "stopping" if self._stopping else None if self._is_ready() else "no instance is ready"

    def _is_ready(self) -> bool:
        worker = self._workers.get(self._on_duty)
        return worker is not None and worker.ready

    async def start(self, *, hold: bool = False, join: bool = True) -> None:
        """Start the workers, and return when the one on duty is started. With `hold` the workers accept connections
        only after `open`, without `join` they connect to other hosts only after `join_replicas`. Raises ConfigError
        when a worker cannot start with this configuration.
        """
        self._config = await bind_addresses(self._config, self._sockets)
        self._hold, self._join = hold, join
        self._started = asyncio.get_running_loop().create_future()
        for number in range(self._config.workers):
            self._tasks.supervise(f"worker {number}", partial(self._keep_running, number))
        try:
            await self._started
        except (ConfigError, asyncio.CancelledError):
            await self.stop()
            raise
        self._tasks.supervise("pings", self._ping_always)

    async def open(self) -> None:
        """Let the workers accept connections. Return when the worker on duty does, which also accepts for all
        workers that do not yet.
        """
        self._hold = False
        self._send_to_all(OpenListeners())
        await self._open.wait()

    async def join_replicas(self) -> None:
        """Let the workers connect to other hosts."""
        self._join = True
        self._send_to_all(JoinHosts())

    async def ask_on_duty(self, query: Query, timeout_s: float) -> bytes | None:
        """Return the reply of the worker on duty; None if no reply comes in time or no worker is on duty."""
        worker = self._workers.get(self._on_duty)
        return None if worker is None else await worker.channel.ask(query, timeout_s=timeout_s)

    async def prepare_successor(self) -> bytes:
        """Request that the worker on duty write the index snapshot. Return the state that operators have
        set; nothing if it does not reply.
        """
        return await self.ask_on_duty("prepare_successor", SAVE_TIMEOUT_S) or b""

    def reload(self) -> None:
        """Apply the changes of the configuration files that need no restart."""
        self._tasks.spawn("reload", self.ask_on_duty("reload", RELEASE_TIMEOUT_S))

    def release(self) -> None:
        """Close the listening sockets in this process, so that the other processes get all new connections: the
        workers, which are stopping, accept none.
        """
        for listening in self._sockets.all:
            listening.close()

    async def hand_over(self) -> None:
        """Leave all ports to a process that has the sockets. Return when no worker accepts connections any more."""
        self._stopping = True
        asked = [worker.channel.ask("release", timeout_s=RELEASE_TIMEOUT_S) for worker in self._workers.values()]
        await asyncio.gather(*asked)

    async def stop(self, idle_s: float = 0.0) -> None:
        """Let all workers finish their requests within the grace time and exit; kill the workers that do not.
        `idle_s` is that of `App.stop`.
        """
        self._stopping = True
        self._send_to_all(StopWorker(idle_s))
        workers = list(self._workers.values())
        if waiting := [self._tasks.spawn("end", worker.process.wait()) for worker in workers]:
            await asyncio.wait(waiting, timeout=self._config.limits.grace_s + WORKER_END_S)
        for worker in workers:
            if worker.process.returncode is None:
                log.error("worker %d did not exit in time: killing it", worker.number)
                worker.process.kill()
                await worker.process.wait()
        await self._tasks.close()

    async def scrape(self, form: PageForm) -> bytes:
        """Return the metrics page of all workers."""
        started = [worker for worker in self._workers.values() if worker.started]
        await asyncio.gather(*(self._fetch_families(worker) for worker in started))
        workers = dict(self._workers)
        on_duty = workers.pop(self._on_duty, None)
        others = [worker.families for worker in workers.values()]
        merged = MergedMetrics([] if on_duty is None else on_duty.families, [*others, self._ended])
        return await asyncio.to_thread(merged.render, form)

    async def _fetch_families(self, worker: Worker) -> None:
        payload = await worker.channel.ask("page" if worker.number == self._on_duty else "counters")
        if payload is not None:
            worker.families = await asyncio.to_thread(metrics_merge.decode_families, payload)

    # a worker's life

    async def _keep_running(self, number: int) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping:
            started_at = self._clock.now()
            worker = await self._start_process(number)
            status = await worker.process.wait()
            if self._stopping:
                return
            if self._clock.now() - started_at > STABLE_S:
                pause_s = FIRST_PAUSE_S
            log.warning("worker %d ended with status %s; starting it again in %.1f s", number, status, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _start_process(self, number: int) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            passed = [theirs.fileno(), *(listening.fileno() for listening in self._sockets.all)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "router.cli.worker", *map(str, passed)),
                pass_fds=passed,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is for the supervisor, which then stops its workers
            )
        worker = Worker(number, process)
        on_message, on_close = partial(self._on_message, worker), partial(self._on_close, worker)
        worker.channel = Channel(on_message, self._on_query, on_close, self._tasks)
        self._workers[number] = worker
        await worker.channel.open(ours)
        worker.channel.send(self._describe_start(number))
        return worker

    def _describe_start(self, number: int) -> StartWorker:
        return StartWorker(
            number,
            self._config.model_dump_json(),
            None if self._file is None else str(self._file),
            self._only_picker,
            self._key_secret,
            self._host,
            self._name,
            self._peer_secret,
            learn=any(worker.up for worker in self._workers.values()),
            hold=self._hold,
            join=self._join,
            state=self._state,
        )

    def _on_message(self, worker: Worker, message: AnyMessage) -> None:
        match message:
            case WorkerBuilt(run):
                worker.run = run
                self._publish_members()
            case WorkerFailed(error):
                log.error("worker %d cannot start: %s", worker.number, error)
                if self._started.done():
                    worker.channel.close()  # it ends, and is started again
                else:
                    self._started.set_exception(ConfigError(error))
            case WorkerStarted():
                worker.started = True
                self._note_progress()
            case WorkerReady():
                worker.ready = True
                self._publish_members()
            case WorkerUp():
                worker.up = True
                log.info("worker %d accepts connections (pid %d)", worker.number, worker.process.pid)
                self._note_progress()
                self._publish_members()
            case WorkerStopping():
                worker.up = False
                worker.stopping = True
                self._move_duties()
                self._publish_members()
            case _:
                log.error("unexpected message from worker %d, ignored: %s", worker.number, type(message).__name__)

    async def _on_query(self, query: Query, argument: str) -> bytes:
        return await self._page("openmetrics" if argument == "openmetrics" else "text")  # the only query of workers

    def _on_close(self, worker: Worker) -> None:
        """Forget a worker that has ended, and keep its counters in the sums."""
        if self._workers.get(worker.number) is worker:
            del self._workers[worker.number]
        self._ended = metrics_merge.merge_families([self._ended, metrics_merge.select_counters(worker.families)])
        self._move_duties()
        self._note_progress()
        self._publish_members()

    def _move_duties(self) -> None:
        """Give the duties to another worker if the worker that has them has ended, or stops by itself."""
        worker = self._workers.get(self._on_duty)
        if not self._stopping and (worker is None or worker.stopping):
            others = [one.number for one in self._workers.values() if one.run is not None and not one.stopping]
            self._on_duty = min(others, default=self._on_duty)

    def _note_progress(self) -> None:
        """Note how far the worker on duty has come."""
        worker = self._workers.get(self._on_duty)
        if worker is not None and worker.started and not self._started.done():
            self._started.set_result(None)
        if worker is not None and worker.up:
            self._open.set()

    def _publish_members(self) -> None:
        members = [worker.member for _, worker in sorted(self._workers.items())]
        living = [member for member in members if member is not None]
        self._send_to_all(Members(living, self._on_duty, self._is_ready()))

    def _send_to_all(self, message: WorkerMessage) -> None:
        for worker in self._workers.values():
            worker.channel.send(message)

    # workers that do not answer

    async def _ping_always(self) -> None:
        """Until cancelled, replace workers that stopped replying, since the kernel still assigns connections to
        them.
        """
        while True:
            await asyncio.sleep(PING_PAUSE_S)
            await asyncio.gather(*(self._ping(worker) for worker in list(self._workers.values()) if worker.up))

    async def _ping(self, worker: Worker) -> None:
        answered = await worker.channel.ask("ping", timeout_s=PING_TIMEOUT_S) is not None
        worker.missed_pings = 0 if answered else worker.missed_pings + 1
        if worker.missed_pings >= MISSED_PINGS and worker.process.returncode is None:
            log.error("worker %d has not answered %d pings: killing it", worker.number, worker.missed_pings)
            worker.process.kill()


async def bind_addresses(config: Config, sockets: ListeningSockets) -> Config:
    """Bind all addresses that workers listen on. Return the configuration with the bound ports. Raises ConfigError
    when an address cannot be bound.
    """
    changes: dict[str, object] = {"listen": await _bind(config.listen, "port", sockets, config.workers)}
    changes["admin"] = await _bind(config.admin, "port", sockets)
    if config.metrics.port is not None:
        changes["metrics"] = await _bind(config.metrics, "port", sockets)
    if config.picker is not None:
        picker = await _bind(config.picker, "port", sockets, config.workers)
        changes["picker"] = await _bind(picker, "health_port", sockets, config.workers)
    if config.keda is not None:
        changes["keda"] = await _bind(config.keda, "port", sockets)
    return config.model_copy(update=changes)


async def _bind(section: Section, key: str, sockets: ListeningSockets, copies: int = 1) -> Section:
    groups = await sockets.open(getattr(section, "host"), getattr(section, key), copies)  # noqa: B009
    return section.model_copy(update={key: groups[0][0].getsockname()[1]})
