"""A record to show, and how to read the tables of its page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from router.config import schema
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from scorers.contract import View
from tests.suites.views import a_load, a_row, a_view, an_overlap

WARM = build_policy(
    "warm",
    schema.PolicyConfig.model_validate(
        {
            "filters": [{"name": "max_waiting", "waiting": 4}],
            "scorers": [{"name": "queue_depth"}, {"name": "prefix_overlap", "weight": 3}],
        }
    ),
)


VIEW = a_view(
    a_row("dear", an_overlap(0), a_load(requests=1, running=1, waiting=0)),
    a_row("cheap", an_overlap(3200, cpu=3600, disk=4096), a_load(requests=2, running=2, waiting=1)),
    a_row("full", an_overlap(4096), a_load(requests=40, running=8, waiting=32)),
    prompt_tokens=5000,
    last_target="dear/0",
)


def a_record(view: View = VIEW, **known: Any) -> Record:
    record = Record(
        "run-7",
        7,
        3.5,
        1_700_000_000.25,
        "/v1/chat/completions",
        "m",
        True,
        "local",
        5000,
        Stages(parse_ms=0.25),
        **known,
    )
    record.policy = WARM
    record.attempts = [Attempt(WARM.decide(view), 4096, 3200, end="ok")]
    return record


class Rows(HTMLParser):
    """The texts of a page's table rows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.chosen: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])
            if ("class", "chosen") in attrs:
                self.chosen.append("")
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data

    def of(self, first: str) -> list[list[str]]:
        return [[cell.strip() for cell in row] for row in self.rows if row and row[0].strip().startswith(first)]
