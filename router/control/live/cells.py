"""Cells and header of the live page: the displayed state of each target and of the router, as plain JSON types.

They are composed every second while a page is open, for hundreds of targets, so only what is at hand is read: no
copies of whole parts, no sizes that must be computed. Values are rounded to what an eye can distinguish, because
only differences from the last picture are sent. None means unknown.
"""

from __future__ import annotations

from importlib.metadata import version
from math import log10
from typing import Any

from router.control.status import Status
from router.fleet.instance import Target
from router.fleet.step_change import STEP_RATIO
from router.scheduling.scheduler import Scheduler

VERSION = version("warmroute")

Cell = dict[str, Any]

SHARE_STEPS = 200  # of a target's KV memory
SILENT_STEP_S = 5


def describe_cell(
    scheduler: Scheduler, target: Target, trouble: str | None, faults: list[dict[str, Any]], now: float
) -> Cell:
    """Describe one target. `trouble` is the trouble of its instance's probes, `faults` are the instance's silent
    faults.
    """
    instance, load, accuracy = target.instance, target.load_book, target.overlap_accuracy
    config, gauges, peers = instance.config, load.gauges, scheduler.peers
    speed, stream = target.latency_model.speed(now), scheduler.indexer.sequencer(target.id)
    capacity, slowdown = target.capacity_tokens, target.latency_model.slowdown
    distrust = instance.limits.distrust
    return {
        "instance": instance.id,
        "rank": target.rank,
        "ranks": len(instance.targets),
        "url": config.url,
        "model": instance.base,
        "state": instance.state.value,
        "panic": scheduler.fleet.in_panic(instance),
        "trouble": trouble,
        "silent_faults": faults,
        "drained": instance.drained,
        "role": config.role,
        "transfer": None if config.transfer is None else config.transfer.protocol,
        "revision": config.revision,
        "pairable": _is_pairable(target, peers),
        "breaker": target.breaker.state(now),
        "slowdown": round(slowdown, 1) if slowdown >= STEP_RATIO else None,
        "stuck": None if target.stall is None else str(target.stall),
        "requests": load.requests,
        "prefilling": load.prefilling,
        "queued_ms": round(load.queued_ms(speed)),
        "running": gauges.running,
        "waiting": gauges.waiting,
        "elsewhere": load.elsewhere,
        "polled": load.gauges_at is not None,
        "capacity": capacity,
        "live": _thin(load.live_tokens, capacity),
        "held": _thin(scheduler.view_builder.held_tokens(target), capacity),
        "kept": accuracy.confirmed,
        "broken": accuracy.overestimated,
        "missed": accuracy.underestimated,
        "trusted": accuracy.trusted,
        "silent": stream is not None and stream.silent,
        "alarm": accuracy.alarm if stream is not None and stream.trusted and not stream.joined_late else None,
        "distrust": None if distrust is None else distrust.detail,
        "stream": None if stream is None else stream.state,
        "joined_late": None if stream is None else stream.joined_late,
        "unplaced": scheduler.indexer.keyless_blocks(target.id),
        "lag_ms": None if stream is None or stream.lag_s is None else round_digits(stream.lag_s * 1e3),
        "silent_s": None if stream is None or stream.last_heard_s is None else _step(now - stream.last_heard_s),
        "gaps": None if stream is None else stream.gaps,
        "samples": speed.samples,
    }


def _is_pairable(target: Target, peers: Any) -> bool | None:
    """Return whether a prefill target can be paired with a decode target now; None if the target is no prefill
    target.
    """
    config = target.instance.config
    if config.role != "prefill":
        return None
    if config.transfer is None:
        return False
    return config.transfer.protocol != "mooncake" or peers.mooncake_peer(target) is not None


def _thin(tokens: int | None, capacity: int | None) -> int | None:
    """Round to a fraction of the capacity that is narrower than a pixel of the target's bar."""
    if tokens is None or not capacity:
        return tokens
    step = max(1, capacity // SHARE_STEPS)
    return round(tokens / step) * step


def _step(seconds: float) -> int:
    return int(seconds) // SILENT_STEP_S * SILENT_STEP_S


def round_digits(value: float, digits: int = 2) -> float:
    """Round to so many significant digits."""
    if value == 0:
        return 0.0
    return round(value, digits - 1 - int(log10(abs(value)) // 1))


def describe_header(status: Status, late_ms: float, interval_s: float) -> dict[str, Any]:
    """Describe the router itself: policies, experiment, pool, workers, discovery. `late_ms` is the longest recent
    delay of the event loop in running the feed; `interval_s` is the time between two pictures.
    """
    workers = status.describe_workers()
    policies = status.control.describe_policies()
    experiment = status.scheduler.experiment
    admission = status.describe_feature("admission")
    return {
        "run": status.run_id,
        "version": VERSION,
        "started_at_s": status.started_wall_s,
        "workers": [len([worker for worker in workers if worker["up"]]), len(workers)],
        "worker_trouble": next((worker["trouble"] for worker in workers if worker["trouble"]), None),
        "late_ms": round_digits(late_ms),
        "interval_s": round(interval_s, 1),
        "policies": policies,
        "experiment": experiment is not None,
        "admission": [_queue(model) for model in admission["models"]] if admission and admission["models"] else None,
        "pool": _describe_pool(status),
        "tenants": "tenants" in status.features,
        "discovery": status.describe_discovery(),
        "silent_faults": status.describe_silent_faults(),
        "decision_log": status.describe_feature("decision_log"),
    }


def _queue(model: dict[str, Any]) -> dict[str, Any]:
    return {name: model[name] for name in ("model", "queued", "live_sessions", "capacity_tokens")}


def _describe_pool(status: Status) -> dict[str, Any] | None:
    pool = status.describe_feature("pool")
    if pool is None:
        return None
    models = [{name: model.get(name) for name in ("model", "calibration", "trouble")} for model in pool["models"]]
    return {"leader": pool["leader"], "answers": pool["answers"], "models": models}
