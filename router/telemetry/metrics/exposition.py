"""The two forms of a metrics page: Prometheus text, and OpenMetrics text, the only one that can carry exemplars."""

from __future__ import annotations

from typing import Literal

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

PageForm = Literal["text", "openmetrics"]

CONTENT_TYPES: dict[PageForm, str] = {"text": CONTENT_TYPE_LATEST, "openmetrics": openmetrics.CONTENT_TYPE_LATEST}
OPENMETRICS = "application/openmetrics-text"


def choose_form(accept: str) -> PageForm:
    """Return the form of a page for this `Accept` header. By default Prometheus lists OpenMetrics first."""
    kinds = (part.partition(";")[0].strip() for part in accept.split(","))
    return "openmetrics" if OPENMETRICS in kinds else "text"


def render_page(page: Collector, form: PageForm) -> bytes:
    """Return the page. Takes tens of milliseconds with hundreds of targets; may be called in another thread."""
    if form == "openmetrics":
        return bytes(openmetrics.generate_latest(page))  # type: ignore[no-untyped-call]
    return generate_latest(page)
