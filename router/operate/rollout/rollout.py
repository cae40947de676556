"""A rollout: every engine is drained, restarted and proved again, one after the other, while the others serve.

    look      read figures for a while before any engine is touched, for comparison
    drain     send the engine no new requests                 -> until it has none in flight
    restart   by a command, or by somebody else               -> until another process is ready, and warm
    prove     by the caller: health, model, events, prompts   -> the engine is undrained
    settle    the engine serves again                         -> compare this step's figures with those before

Figures are compared with the bounds at every step. Once a bound is violated, no further engine is touched: an
engine that is not restarted yet is undrained at once; one that is being restarted is first brought back, since the
other engines need it. If a command or a proof fails, the engine stays drained, so that it gets no requests before
somebody has looked.

This module uses no sockets: the router, the command and the proof are arguments; the caller sleeps between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from router.clock import Clock
from router.errors import ConfigError, WarmrouteError, list_names
from router.operate.rollout.engine import EngineReading
from router.operate.rollout.figures import TrafficFigures

MIN_REQUESTS = 20  # with fewer, p90 and hits are not compared

Stage = Literal["look", "drain", "restart", "prove", "settle", "done"]


class RolloutStopped(WarmrouteError):
    """The rollout ended early; the message has the reason and the state of the engine."""


class RolloutRouter(Protocol):
    """The router, through its admin API and metrics. The methods raise WarmrouteError if it does not answer."""

    def engines(self) -> list[EngineReading]: ...

    def drain(self, engine: str, on: bool) -> None: ...

    def figures(self) -> TrafficFigures: ...


class RunningCommand(Protocol):
    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def terminate(self) -> None: ...


class RolloutBounds(NamedTuple):
    """Bounds on what the restart of one engine may cost, relative to the figures from before the rollout."""

    failed_share: float = 0.001  # of the requests, in addition to the share before
    p90_factor: float = 2.0
    hits_factor: float = 0.5  # the least hit share, as a factor of the share before


class RolloutTimes(NamedTuple):
    """Durations of `look` and `settle`, and timeouts of `drain` and `restart`."""

    look_s: float = 30.0
    drain_s: float = 600.0
    restart_s: float = 1800.0
    settle_s: float = 60.0


class RolloutStep(NamedTuple):
    """Progress of a rollout."""

    engine: str | None  # None: no engine is touched
    number: int  # of this engine, from 1
    total: int
    stage: Stage
    since_s: float  # when the stage began
    figures: TrafficFigures  # of this engine's step so far; without an engine, those from `look`
    note: str = ""


class Rollout:
    """One rollout. `start_command` is None if somebody else restarts the engines. `prove` returns an engine's
    faults by check; faults from before its restart do not count.
    """

    def __init__(
        self,
        router: RolloutRouter,
        start_command: Callable[[EngineReading], RunningCommand] | None,
        prove: Callable[[str], Mapping[str, str]],
        clock: Clock,
        bounds: RolloutBounds,
        times: RolloutTimes,
    ) -> None:
        self.drained: str | None = None  # the engine that this rollout has drained
        self._router = router
        self._start_command = start_command
        self._prove = prove
        self._clock = clock
        self._bounds = bounds
        self._times = times
        self._before = TrafficFigures()
        self._begin = TrafficFigures()
        self._broken: str | None = None  # the bound that this step violated
        self._number = self._total = 0

    def choose(self, names: Collection[str] = ()) -> list[EngineReading]:
        """Return the engines to restart, in order; all engines if `names` is empty. Raises ConfigError for an
        unknown engine, one that is not ready, and one whose model no other ready engine serves.
        """
        engines = {engine.id: engine for engine in self._router.engines()}
        if unknown := [name for name in names if name not in engines]:
            raise ConfigError(f"unknown engine {unknown[0]}; engines here: {list_names(engines)}")
        chosen = [engines[name] for name in dict.fromkeys(names)] if names else list(engines.values())
        if not chosen:
            raise ConfigError("the router has no engines")
        for engine in chosen:
            if engine.state != "ready":
                reason = f": {engine.trouble}" if engine.trouble else ""
                raise ConfigError(f"{engine.id} is {engine.state}{reason}; every engine must be ready before a rollout")
        for engine in chosen:
            if not _find_substitutes(engine, engines.values()):
                raise ConfigError(f"{engine.id} is the only engine that serves {', '.join(engine.models[:1])}")
        return chosen

    def run(self, engines: Sequence[EngineReading]) -> Generator[RolloutStep, None, None]:
        """Restart `engines`. Yields whenever the caller should wait a moment before it resumes the generator.
        Raises `RolloutStopped`.
        """
        self._total = len(engines)
        yield from self._look()
        for self._number, engine in enumerate(engines, 1):
            self._begin, self._broken = self._router.figures(), None
            known = self._prove(engine.id)
            yield from self._drain(engine)
            before = self._see(engine.id, engine)
            back = yield from self._restart(before)
            yield self._step(back.id, "prove")
            found = [text for check, text in self._prove(back.id).items() if check not in known]
            if faults := [*self._see(back.id, before).find_faults(before), *found]:
                raise RolloutStopped(f"{back.id} is back but not as it was, and stays drained: {'; '.join(faults)}")
            self._set_drained(back.id, False)
            yield from self._settle(back)
        yield self._step(None, "done")

    def _look(self) -> Iterator[RolloutStep]:
        begin, since_s = self._router.figures(), self._clock.now()
        while self._clock.now() < since_s + self._times.look_s:
            yield self._step(None, "look", since_s)
            self._before = self._router.figures().since(begin)

    def _drain(self, engine: EngineReading) -> Iterator[RolloutStep]:
        """Drain the engine and wait until it has no requests in flight; undrain it if the wait ends early."""
        others = _find_substitutes(engine, self._router.engines())
        if not others:
            raise RolloutStopped(f"{engine.id} is the only engine left that serves its model: it was not touched")
        self._set_drained(engine.id, True)
        drained, since_s = False, self._clock.now()
        try:
            yield self._step(engine.id, "drain", since_s)
            while (now := self._see(engine.id, engine)).requests or now.handing_off or self._broken is not None:
                requests = now.requests
                if self._broken is not None:
                    raise RolloutStopped(f"{self._broken}; {engine.id} was not restarted, and is undrained")
                if self._clock.now() > since_s + self._times.drain_s:
                    raise RolloutStopped(f"{engine.id} still has {requests} requests; it is undrained")
                note = "it is handed off" if now.handing_off else f"{requests} requests left"
                yield self._step(engine.id, "drain", since_s, note)
            drained = True
        finally:
            if not drained:
                self._set_drained(engine.id, False)

    def _restart(self, engine: EngineReading) -> Generator[RolloutStep, None, EngineReading]:
        """Restart the engine and wait until a new process is ready. Return the new reading: in Kubernetes the new
        pod has another id, and is drained as soon as it is seen.
        """
        since_s = self._clock.now()
        others = {one.id for one in self._router.engines()}
        command = None if self._start_command is None else self._start_command(engine)
        ended, away = command is None, False
        try:
            while True:
                if command is not None and not ended and (code := command.poll()) is not None:
                    ended = True
                    if code != 0:
                        raise RolloutStopped(f"{engine.id}: the command failed with {code}; the engine stays drained")
                now = self._find_successor(engine, others)
                away = away or now is None or not now.serves or now.id != engine.id
                if now is not None and now.id != self.drained:
                    self._set_drained(now.id, True)
                elif now is not None and now.state == "ready" and not away:
                    raise RolloutStopped(f"{engine.id} was undrained by somebody else before its restart")
                if ended and now is not None and now.serves and (away or now.is_other_process(engine)):
                    if not now.warming:
                        return now
                    away = True
                if self._clock.now() > since_s + self._times.restart_s:
                    seen = "the command runs still" if not ended else "no new process was seen" if not away else "down"
                    raise RolloutStopped(f"{engine.id} did not come back in time ({seen}); it stays drained")
                note = "it is warmed" if now is not None and now.warming else "" if ended else "the command runs"
                yield self._step(engine.id, "restart", since_s, note)
        finally:
            if command is not None and not ended:
                command.terminate()

    def _find_successor(self, engine: EngineReading, others: Collection[str]) -> EngineReading | None:
        """Return the current reading of the engine, or of its successor, which is none of `others`. None if neither
        is listed.
        """
        engines = self._router.engines()
        found = [one for one in engines if one.id == engine.id]
        return next(iter(found or [one for one in engines if one.id not in others and one.may_succeed(engine)]), None)

    def _settle(self, engine: EngineReading) -> Iterator[RolloutStep]:
        since_s = self._clock.now()
        while self._clock.now() < since_s + self._times.settle_s:
            yield self._step(engine.id, "settle", since_s)
        self._step(engine.id, "settle", since_s)
        if self._broken is not None:
            raise RolloutStopped(f"{self._broken}; {engine.id} is back, and no further engine was touched")

    def _set_drained(self, id: str, on: bool) -> None:
        if on:
            self.drained = id  # even if the router's answer is lost
        self._router.drain(id, on)
        if not on:
            self.drained = None

    def _see(self, id: str, last: EngineReading) -> EngineReading:
        """Return the engine's current reading; if the router does not list the engine, `last` without requests."""
        found = next((one for one in self._router.engines() if one.id == id), None)
        return found if found is not None else last._replace(requests=0)

    def _step(self, engine: str | None, stage: Stage, since_s: float | None = None, note: str = "") -> RolloutStep:
        """Compare the figures with the bounds, and return the rollout's progress."""
        figures = self._before if engine is None else self._router.figures().since(self._begin)
        if engine is not None and (broken := find_broken(figures, self._before, self._bounds)) is not None:
            self._broken = broken
        at_s = self._clock.now() if since_s is None else since_s
        return RolloutStep(engine, self._number, self._total, stage, at_s, figures, self._broken or note)


def find_broken(now: TrafficFigures, before: TrafficFigures, bounds: RolloutBounds) -> str | None:
    """Return which bound the figures `now` violate, compared with `before`. None: none. A single failed request
    violates `failed_share` while fewer than 1 / `failed_share` requests have ended.
    """
    failed, allowed = now.failed_share, bounds.failed_share + (before.failed_share or 0.0)
    if failed is not None and failed > allowed:
        return f"{now.failed:.0f} of {now.requests:.0f} requests failed, {allowed:.2%} may"
    if now.requests < MIN_REQUESTS or before.requests < MIN_REQUESTS:
        return None
    p90, p90_before = now.ttft_p90_s, before.ttft_p90_s
    if p90 is not None and p90_before is not None and p90 > bounds.p90_factor * p90_before:
        return f"p90 of the time to first token is {p90:.2f} s, before {p90_before:.2f} s"
    hits, hits_before = now.hit_share, before.hit_share
    if hits is not None and hits_before is not None and hits < bounds.hits_factor * hits_before:
        return f"{hits:.0%} of the prompt tokens hit, before {hits_before:.0%}"
    return None


def _find_substitutes(engine: EngineReading, all_: Collection[EngineReading]) -> list[str]:
    """Return the ids of the other ready engines that serve the engine's model."""
    return [
        one.id
        for one in all_
        if one.id != engine.id and one.state == "ready" and (not engine.models or engine.models[0] in one.models)
    ]
