"""The `/metrics` page: the counters (`prometheus.py`), and the state (`state.py`) as read at the scrape."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.telemetry.metrics.exposition import PageForm, render_page
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import RouterSnapshot
from router.telemetry.metrics.state import families
from scorers.build import is_compiled


class MetricsPage(Collector):
    """One scrape: the counters of `metrics` and the state `now`, fixed when this is built, on the event loop's
    thread.
    """

    def __init__(self, metrics: Metrics, now: RouterSnapshot) -> None:
        self._tables = [table.freeze() for table in metrics.tables]
        self._in_flight = metrics.in_flight
        # Other parts continue counting in the tables that the snapshot refers to.
        self._now = now._replace(
            targets=[target._replace(skipped=dict(target.skipped)) for target in now.targets],
            policy_faults=dict(now.policy_faults),
            unpaired=dict(now.unpaired),
        )

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("warmroute_build_info", "1, for the build that runs", labels=("version", "compiled"))
        build.add_metric((version("warmroute"), str(is_compiled()).lower()), 1)
        yield build
        yield GaugeMetricFamily("warmroute_in_flight_requests", "requests being answered", value=self._in_flight)
        for table in self._tables:
            yield table.family()
        yield from families(self._now)
        yield from ProcessCollector(registry=None).collect()

    def render(self, form: PageForm = "text") -> bytes:
        """Return the page's text, which takes tens of ms with hundreds of targets. May be called in another
        thread.
        """
        return render_page(self, form)
