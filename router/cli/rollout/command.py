"""`warmroute rollout`: restart the engines of a running router one after the other, while the others serve.

Exit codes: 0 all engines are restarted and proved, 1 it stopped early, 2 wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from router.cli.admin.commands import HERE, AdminOption, TokenOption
from router.cli.terminal.options import CaOption, web_url
from router.cli.terminal.variables import read_variable
from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:  # imported where it is needed: commands start faster
    from router.cli.admin.client import AdminClient
    from router.cli.rollout.report import RolloutReport
    from router.clock import Clock
    from router.operate.rollout.engine import EngineReading
    from router.operate.rollout.figures import TrafficFigures
    from router.operate.rollout.rollout import RolloutStep

T = TypeVar("T")

POLL_S = 0.5
METRICS_TIMEOUT_S = 10.0
PATIENCE_S = 30.0  # how long a router that has answered before may fail to answer

CommandOption = Annotated[
    str | None,
    typer.Option(
        help="restarts one engine; {id}, {url} and {pod} stand for the engine, as do $WARMROUTE_INSTANCE and "
        "$WARMROUTE_URL; it is run without a shell and may return before the engine is ready"
    ),
]
PassiveOption = Annotated[
    bool, typer.Option("--passive", help="prove engines by what the router sees; send them no prompts from here")
]
ApiKeyOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="environment variable with the API key of the engines")
]


def rollout(
    command: CommandOption = None,
    by_others: Annotated[
        bool, typer.Option("--by-others", help="somebody else restarts each engine once it is drained")
    ] = False,
    engine: Annotated[list[str] | None, typer.Option(help="only this engine; repeatable, in this order")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be done, and do nothing")] = False,
    metrics: Annotated[
        str, typer.Option(help="URL of the router's metrics page", callback=web_url("--metrics"))
    ] = "http://127.0.0.1:8000/metrics",
    max_failed: Annotated[
        float, typer.Option(min=0, max=1, help="share of requests that may fail, beyond that before")
    ] = 0.001,
    max_p90: Annotated[float, typer.Option(min=1, help="p90 of the time to first token, times that before")] = 2.0,
    min_hits: Annotated[float, typer.Option(min=0, max=1, help="hit share, times that before")] = 0.5,
    look: Annotated[float, typer.Option(min=0, help="seconds of figures before the first drain")] = 30.0,
    settle: Annotated[float, typer.Option(min=0, help="seconds of figures after each engine")] = 60.0,
    drain_timeout: Annotated[float, typer.Option(min=0, help="seconds for an engine to finish its requests")] = 600.0,
    restart_timeout: Annotated[float, typer.Option(min=0, help="seconds for an engine to be ready again")] = 1800.0,
    passive: PassiveOption = False,
    api_key_env: ApiKeyOption = None,
    ca_file: CaOption = None,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Restart engines one by one without failing a request.

    Each engine is drained, restarted by --command (or by somebody else), proved as `warmroute doctor` does, and gets
    requests again. An engine that is not as it was stays drained. The rollout stops when traffic suffers.

    \f
    Raises ConfigError for options that do not go together, or an engine that cannot be restarted now.
    """
    from router.cli.admin.client import AdminClient
    from router.cli.rollout.report import RolloutReport, print_plan
    from router.cli.terminal.output import readable_console
    from router.clock import SystemClock
    from router.operate.rollout.rollout import Rollout, RolloutBounds, RolloutTimes

    if (command is None) != by_others:
        raise ConfigError("rollout: give --command '...', which restarts an engine, or --by-others, and not both")
    clock, console = SystemClock(), readable_console()
    trusted = None if ca_file is None else str(ca_file)
    router = AdminRouter(AdminClient(admin, token_env, trusted), metrics, clock, ca_file=trusted)
    prove = prover(admin, token_env, api_key_env, passive=passive, ca_file=trusted)
    bounds = RolloutBounds(max_failed, max_p90, min_hits)
    times = RolloutTimes(look, drain_timeout, restart_timeout, settle)
    starter = None if command is None else command_starter(command)
    running = Rollout(router, starter, prove, clock, bounds, times)
    engines = running.choose(engine or ())
    if starter is not None:
        for one in engines:
            _fill(command or "", one)
    router.figures()  # fails now rather than after the first drain
    print_plan(console, engines, command)
    if not dry_run:
        try:
            _play(running.run(engines), RolloutReport(console, clock))
        finally:
            if running.drained is not None:
                console.print(f"{running.drained} is drained: it gets no requests until it is undrained", markup=False)


def _play(steps: Generator[RolloutStep, None, None], report: RolloutReport) -> None:
    """Run all steps, with a pause after each. Ctrl-C undrains an engine that is not restarted yet."""
    try:
        with report:
            for step in steps:
                report.show(step)
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        steps.close()
        sys.exit(130)


class AdminRouter:
    """A `RolloutRouter` (`operate/rollout/rollout.py`). If a router has answered before and then does not (a
    network failure, a restart), the query is retried for `patience_s`: a rollout that ended at once would leave its
    engine drained.
    """

    def __init__(
        self,
        client: AdminClient,
        metrics_url: str,
        clock: Clock,
        patience_s: float = PATIENCE_S,
        ca_file: str | None = None,
    ) -> None:
        self._client = client
        self._metrics_url = metrics_url
        self._clock = clock
        self._patience_s = patience_s
        self._ca_file = ca_file
        self._has_answered = False

    def engines(self) -> list[EngineReading]:
        from router.operate.rollout.engine import read_engine

        answer = self._ask(lambda: self._client.get("instances"))
        return [read_engine(entry) for entry in answer["instances"]]

    def drain(self, engine: str, on: bool) -> None:
        self._ask(lambda: self._client.post(None, "instances", engine, "drain" if on else "undrain"))

    def figures(self) -> TrafficFigures:
        """Return the counters now. Raises WarmrouteError when the page cannot be read."""
        return self._ask(self._read_figures)

    def _ask(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which is retried while it fails. Raises its ConfigError at once, its
        WarmrouteError after `patience_s`.
        """
        give_up_at = self._clock.now() + (self._patience_s if self._has_answered else 0.0)
        while True:
            try:
                found = call()
            except ConfigError:
                raise
            except WarmrouteError:
                if self._clock.now() >= give_up_at:
                    raise
                time.sleep(POLL_S)
            else:
                self._has_answered = True
                return found

    def _read_figures(self) -> TrafficFigures:
        import httpx

        from router.backends.failure import describe_failure
        from router.config.pem_files import trust_of
        from router.operate.rollout.figures import read_figures

        try:
            verify = trust_of(self._metrics_url, self._ca_file)
            answer = httpx.get(self._metrics_url, timeout=METRICS_TIMEOUT_S, trust_env=False, verify=verify)
            return read_figures(answer.raise_for_status().text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as failure:
            raise WarmrouteError(f"--metrics: {self._metrics_url}: {describe_failure(failure)}") from failure


def command_starter(command: str) -> Callable[[EngineReading], subprocess.Popen[bytes]]:
    """Return a function that starts the command for an engine. Raises ConfigError if it cannot be split."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--command: {str(error).lower()}: write it as for a shell") from error
    if not words:
        raise ConfigError("--command: found nothing, wanted the command that restarts an engine")

    def start(engine: EngineReading) -> subprocess.Popen[bytes]:
        filled = [_fill(word, engine) for word in words]
        names = {"WARMROUTE_INSTANCE": engine.id, "WARMROUTE_URL": engine.url}
        try:
            return subprocess.Popen(filled, env=os.environ | names, stdin=subprocess.DEVNULL)
        except OSError as failure:
            raise WarmrouteError(f"--command: {words[0]}: {failure.strerror}; {engine.id} stays drained") from failure

    return start


def _fill(word: str, engine: EngineReading) -> str:
    """Return a word of the command for this engine. Raises ConfigError if `{pod}` stands for no pod."""
    if "{pod}" in word and engine.pod is None:
        raise ConfigError(f"--command: {engine.id} is no pod, so {{pod}} has no meaning")
    name = (engine.pod or "").rpartition("/")[2]
    return word.replace("{id}", engine.id).replace("{url}", engine.url).replace("{pod}", name)


def prover(
    admin: str, token_env: str | None, api_key_env: str | None, *, passive: bool, ca_file: str | None = None
) -> Callable[[str], Mapping[str, str]]:
    """Return a function that examines one engine as the doctor does, and returns the faults by check. Raises
    ConfigError for a variable that is not set.
    """
    token, api_key = read_variable("--token-env", token_env), read_variable("--api-key-env", api_key_env)

    def prove(engine: str) -> dict[str, str]:
        import asyncio

        from router.clock import SystemClock
        from router.operate.doctor.gather import DoctorOptions
        from router.operate.doctor.suite import examine

        only = frozenset((engine,))
        options = DoctorOptions(None, (admin.rstrip("/"),), token, api_key, passive, only, ca_file)
        found = asyncio.run(examine(options, SystemClock())).findings
        return {
            one.finding.check: f"{one.finding.what} [{one.finding.check}]"
            for one in found
            if one.finding.severity == "fault" and any(engine in (at, at.rpartition("/")[0]) for at in one.finding.at)
        }

    return (lambda engine: {}) if passive else prove
