"""Ended requests, and what they leave on a metrics page."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import Attempt, Record, Stages
from router.telemetry.metrics.page import MetricsPage
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import RouterSnapshot
from scorers.contract import Load, Overlap, Row, Speed, View

CHAT = "/v1/chat/completions"
LOAD = Load(0, 0, 0, 0, 0.0, None, None, None, None, None, None, None)
SPEED = Speed(10.0, 100.0, 2.0, 0, None, None, None, None)


def metrics() -> Metrics:
    """Metrics of a router with the models `known...` and the engines `a...`."""
    return Metrics(lambda model: model.startswith("known"), lambda engine: engine.startswith("a"))


def attempt(end: str, overlap: Overlap | None = None, *, engine: str = "a", **changes: object) -> Attempt:
    row = Row(f"{engine}/0", engine, 0, 16, None, overlap, LOAD, SPEED)
    view = View(
        number=0, seed=0, model="known", adapter=None, prompt_tokens=400, prefix=None, session=None, last_target=None,
        pool=None, busy=None, rows=(row,),
    )  # fmt: skip
    return Attempt(Decision("default", view, view.rows, (), (0.0,), 0, ()), None, None, end=end, **changes)


def record(*attempts: Attempt, **changes: object) -> Record:
    record = Record(
        id="id", number=0, arrived_s=0.0, at_wall_s=0.0, endpoint=CHAT, model="known", stream=True,
        tokens_from="local", prompt_tokens_counted=400, stages=Stages(), attempts=list(attempts), status=200,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def ended(*records: Record) -> Metrics:
    into = metrics()
    for one in records:
        into.on_request_start()
        into.on_request_end(one)
    return into


def samples(of: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """Label values in the order of their names -> value."""
    return {
        tuple(value for _, value in sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(MetricsPage(of, RouterSnapshot()).render().decode())
        for s in family.samples
        if s.name == name
    }
