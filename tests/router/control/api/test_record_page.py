"""The page over every record that can be."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.control.api.record_page import draw_waterfall, render_page, stack_bars
from router.scheduling.policy.decision import Regret, ShadowChoice
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, PrefillRecord
from router.scheduling.policy.record_view import describe_record
from scorers.contract import View
from tests.router.control.api.scene import VIEW, WARM, Rows, a_record
from tests.suites.properties import examples
from tests.suites.views import maybe, names, views


def test_who_was_chosen_and_why() -> None:
    record = a_record()
    text = unescape(render_page(describe_record(record)))
    assert describe_record(record)["why"].startswith("cheap/0: prefix_overlap costs ")
    assert text.count(describe_record(record)["why"]) == 2  # above all, and at its attempt


def test_candidates_stand_by_cost_with_every_term() -> None:
    seen = Rows(render_page(describe_record(a_record())))
    (attempt,) = describe_record(a_record())["attempts"]
    cheap, dear = sorted(attempt["candidates"], key=lambda row: row["cost"])
    costs, parts, state = seen.of("cheap/0")
    terms = cheap["terms"]
    assert costs == [
        "cheap/0 (chosen)",
        f"{terms['queue_depth']['weighted']:.2f} = 1.00 × {terms['queue_depth']['cost']:.2f}",
        f"{terms['prefix_overlap']['weighted']:.2f} = 3.00 × {terms['prefix_overlap']['cost']:.2f}",
        f"{cheap['cost']:.2f}",
        "0.00",
    ]
    assert parts[2:] == [f"{terms[name]['weighted']:.2f}" for name in ("queue_depth", "prefix_overlap")]
    assert state[1:7] == ["3,200", "3,600", "4,096", "3,200", "events", "0.10"]
    assert state[7:] == ["2", "0", "0.00", "2", "1", "–", "0.10"]
    assert seen.of("dear/0")[0][-1] == f"{dear['cost'] - cheap['cost']:.2f}"
    firsts = [row[0].strip() for row in seen.rows]
    assert [first for first in firsts if "/0" in first] == [
        "cheap/0 (chosen)",
        "dear/0",
        "cheap/0",
        "dear/0",
        "cheap/0",
        "dear/0",
    ]
    assert len(seen.chosen) == 3  # its row in each table
    assert "Filtered out: full/0" in render_page(describe_record(a_record()))


def test_who_of_a_large_fleet_was_left_out_is_said_below_the_costs() -> None:
    assert "<p>Not priced: 97 of 100 candidates; " in render_page(describe_record(a_record(VIEW._replace(others=97))))
    assert "Not priced" not in render_page(describe_record(a_record()))


PARTLY = build_policy(
    "partly", schema.PolicyConfig.model_validate({"scorers": [{"name": "warm", "weight": 2}, {"name": "lbgr"}]})
)


def test_costs_are_drawn_in_their_parts_and_the_table_has_the_same_figures() -> None:
    record = a_record(VIEW)
    record.policy, record.attempts = PARTLY, [Attempt(PARTLY.decide(VIEW), 4096, 3200)]
    (attempt,) = describe_record(record)["attempts"]
    cheapest = min(attempt["candidates"], key=lambda row: row["cost"])
    chart = stack_bars(attempt)
    assert chart is not None
    assert chart.names == [
        "warm: compute", "warm: answers held up", "lbgr: compute"
    ]  # and none that is 0 everywhere  # fmt: skip
    first = chart.bars[0]
    assert (first.target, sum(first.values)) == (cheapest["target"], pytest.approx(cheapest["cost"]))
    assert first.values[0] == pytest.approx(2 * cheapest["terms"]["warm"]["parts"]["compute"])
    widths = [sum(segment.width for segment in bar.segments) for bar in chart.bars]
    assert max(widths) == pytest.approx(
        100, abs=0.01
    )  # the dearest takes the whole width, the others their share of it
    costs = sorted(row["cost"] for row in attempt["candidates"])
    assert widths == pytest.approx([100 * cost / costs[-1] for cost in costs], abs=0.01)
    _, parts, _ = Rows(render_page(describe_record(record))).of(first.target)
    assert parts[2:] == [f"{value:.2f}" if abs(value) < 99.995 else f"{value:,.0f}" for value in first.values]


def test_credits_are_drawn_to_the_left() -> None:
    terms = [{"a": {"weight": 1.0, "weighted": cost, "parts": {"load": load, "held": held}}}
             for cost, load, held in ((-1.0, 2.0, -3.0), (5.0, 7.0, -2.0))]  # fmt: skip
    rows = [{"target": str(i), "cost": term["a"]["weighted"], "terms": term} for i, term in enumerate(terms)]
    chart = stack_bars({"candidates": rows})
    assert chart is not None
    assert chart.zero == pytest.approx(30.0)  # from -3 to 7
    assert [[(s.x, s.width) for s in bar.segments] for bar in chart.bars] == [
        [(30.0, 20.0), (0.0, 30.0)], [(30.0, 70.0), (10.0, 20.0)]
    ]  # fmt: skip


def test_parts_that_no_longer_add_up_are_said_to_be_unknown() -> None:
    record = a_record(VIEW)
    decision = PARTLY.decide(VIEW)
    changed = decision.terms[1]._replace(costs=tuple(cost + 1 for cost in decision.terms[1].costs))
    record.policy = PARTLY
    record.attempts = [Attempt(decision._replace(terms=(decision.terms[0], changed)), 4096, 3200)]
    assert "Parts of lbgr are not known: ValueError: its parts do not add up" in render_page(describe_record(record))


def test_what_came_of_it() -> None:
    record = a_record(status=200, ttft_ms=12.345, duration_ms=250.0, cached_tokens=3200, output_tokens=17, done=True)
    record.arm = "warm"
    text = re.sub(r"<[^>]+>", " ", render_page(describe_record(record)))
    flat = " ".join(text.split())
    for fact in (
        "at 2023-11-14 22:13:20.250+00:00", f"policy digest {WARM.digest}", "arm warm", "status 200",
        "first byte, ms 12.35", "duration, ms 250", "cached, predicted 4,096", "cached, delivered 3,200",
        "finished yes", "token ids local",
    ):  # fmt: skip
        assert fact in flat, fact


def test_where_a_prompt_stops_to_repeat_the_turn_before_is_said() -> None:
    record = a_record()
    assert describe_record(record)["prefix_end"] is None
    record.prefix_end = (569, 2310, "reasoning")
    assert "ends at token 569 of 2310: reasoning dropped" in unescape(render_page(describe_record(record)))


def test_every_attempt_and_prefill_leg_is_there() -> None:
    record = a_record()
    record.attempts[0].end = "connect"
    lone = WARM.decide(VIEW._replace(rows=VIEW.rows[:1]))
    record.attempts.append(Attempt(lone, 0, 0, prefill=PrefillRecord(WARM.decide(VIEW), 4096, 3200, "ok", 33.0, 3200)))
    text = unescape(render_page(describe_record(record)))
    assert "Attempt 1 of 2: cheap/0" in text
    assert "Attempt 2 of 2: dear/0" in text
    assert "Prefilled by cheap/0" in text
    assert "dear/0: the only candidate" in text


def test_where_the_time_went_is_drawn_and_the_table_has_the_same_figures() -> None:
    record = a_record(ttft_ms=40.0, duration_ms=80.0)
    record.body_ms, record.prepared_ms = 2.0, 10.0
    attempt = record.attempts[0]
    attempt.start_ms, attempt.decide_ms, attempt.duration_ms = 10.0, 0.02, 70.0
    described = describe_record(record)
    bars = {bar.name: bar for bar in draw_waterfall(described)}
    assert [name for name, bar in bars.items() if bar.segment is None] == [
        "wake", "admission", "pool", "match", "connect",
    ]  # fmt: skip
    assert bars["stream"].segment == (50.0, 50.0, "engine")
    assert bars["decide"].segment == (12.5, 0.4, "router")  # a fortieth of a per cent is not seen
    rows = Rows(render_page(described))
    assert rows.of("first token") == [["first token", "1", "10.02", "29.98", ""]]
    assert rows.of("decide") == [["decide", "1", "10.00", "0.02", ""]]
    assert rows.of("pool") == [["pool", "–", "–", "–", ""]]


def test_promise_and_delivery_stand_side_by_side() -> None:
    record = a_record(ttft_ms=40.0)
    record.attempts[0].start_ms = 10.0
    predicted = describe_record(record)["promise"]["predicted_ttft_ms"]
    text = re.sub(r"<[^>]+>", " ", render_page(describe_record(record)))
    flat = " ".join(text.split())
    assert f"from the choice to the first byte, predicted ms {predicted:.0f} " in flat
    assert "from the choice to the first byte, measured ms 30.00 " in flat


def test_others_say_what_they_would_have_chosen_and_by_how_much() -> None:
    described = describe_record(a_record())
    described["others"] = [
        {"policy": "lmetric", "digest": "d", "target": "dear/0", "why": "", "unit": "ms", "cost": 2.0, "fault": None,
         "actual_cost": 5.5, "difference": {"ttft_ms": -1.5, "overlap_tokens": None}, "notes": ["one", "two"]},
        {"policy": "warm", "digest": "d", "target": "cheap/0", "why": "", "unit": "raw", "cost": 2.0, "fault": None,
         "actual_cost": None, "difference": {"ttft_ms": 0.0, "overlap_tokens": 0}, "notes": []},
        {"policy": "odd", "digest": "d", "fault": "policy odd: boom"},
    ]  # fmt: skip
    seen = Rows(render_page(described))
    assert seen.of("lmetric") == [["lmetric", "dear/0", "-1.50", "–", "2.00", "5.50", "3.50", "ms", "one; two"]]
    assert seen.of("warm")[-1] == ["warm", "the same", "0.00", "0", "2.00", "–", "–", "raw", ""]
    assert seen.of("odd") == [["odd", "failed: policy odd: boom"]]
    assert "Other policies' choices" not in render_page(describe_record(a_record()) | {"others": []})


def test_shadows_say_what_they_would_have_done() -> None:
    record = a_record()
    record.shadows = [
        ShadowChoice("lmetric", "dear/0", Regret(12.5, -3200)),
        ShadowChoice("least_work_left", "cheap/0", Regret(0.0, 0)),
    ]
    seen = Rows(render_page(describe_record(record)))
    assert seen.of("lmetric") == [["lmetric", "dear/0", "12.50", "-3,200"]]
    assert seen.of("least_work_left") == [["least_work_left", "the same", "0.00", "0"]]


def test_a_record_without_an_attempt_has_a_page() -> None:
    record = a_record(status=503, error="no engine can serve this model now; try again")
    record.attempts = []
    assert "no engine can serve this model now; try again" in render_page(describe_record(record))
    record.error = None
    assert "No target was chosen." in render_page(describe_record(record))


EVIL = "</td><script>alert(1)</script>\"'&"


def test_what_clients_and_engines_are_called_is_escaped() -> None:
    """Every text in a record, wherever it stands."""

    def tainted(value: Any) -> Any:
        if isinstance(value, str):
            return EVIL
        if isinstance(value, dict):
            return {key: tainted(item) for key, item in value.items()}
        return [tainted(item) for item in value] if isinstance(value, list) else value

    record = a_record(status=502, error="x", client="x")
    record.arm = record.asked_by = "x"
    record.shadows = [ShadowChoice("p", "t", Regret(1.0, 1))]
    record.attempts[0].prefill = PrefillRecord(WARM.decide(VIEW), 1, 1)
    html = render_page(tainted(describe_record(record)) | {"at_wall_s": 0.0})
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 20
    assert Rows(html).tags == Rows(render_page(describe_record(record))).tags


@examples(40)
@given(views(), maybe(names), st.booleans())
def test_every_record_has_a_page(view: View, word: str | None, done: bool) -> None:
    record = a_record(view, client=word, error=word, done=done)
    seen = Rows(render_page(describe_record(record)))
    candidates = describe_record(record)["attempts"][0]["candidates"]
    for row in candidates:
        assert len(seen.of(row["target"])) >= 2
    assert len(seen.chosen) in (2, 3)
