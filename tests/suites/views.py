"""Views for tests: builders whose defaults mean "not reported", and hypothesis strategies for every view."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from scorers.contract import Ask, Decode, Load, Overlap, PoolHit, Row, Speed, Transfer, View


def a_load(**known: Any) -> Load:
    """An idle target by our books, whose engine has said nothing. Gauges given are fresh unless an age is."""
    silent: dict[str, Any] = {
        "requests": 0,
        "prefilling": 0,
        "prefill_tokens": 0,
        "context_tokens": 0,
        "queued_ms": 0.0,
        "running": None,
        "waiting": None,
        "kv_usage": None,
        "elsewhere": None,
        "metrics_age_s": 0.1 if known else None,
        "adapters": None,
        "max_adapters": None,
    }
    return Load(**(silent | known))


def an_overlap(gpu: int, cpu: int = 0, disk: int = 0, expected: int = 0) -> Overlap:
    """Tiers are cumulative; one that is left out adds nothing to the faster one."""
    cpu = max(gpu, cpu)
    return Overlap(gpu, cpu, max(cpu, disk), max(gpu, expected), "events", 0.1)


def a_speed() -> Speed:
    return Speed(5.0, 125.0, 1.0, 0, None, None, None, None)


def a_row(instance: str, overlap: Overlap | None = None, load: Load | None = None, rank: int = 0) -> Row:
    return Row(f"{instance}/{rank}", instance, rank, 16, 65_536, overlap, load or a_load(), a_speed())


def a_view(*rows: Row, **known: Any) -> View:
    """A view on these rows; everything else is unknown unless given."""
    unknown: dict[str, Any] = {
        "number": 0,
        "seed": 1,
        "model": "warm-tiny",
        "adapter": None,
        "prompt_tokens": None,
        "prefix": None,
        "session": None,
        "last_target": None,
        "pool": None,
        "busy": None,
    }
    return View(rows=rows, **(unknown | known))


def build_rows(targets: Any, overlaps: Any, now: float, count_held: Any = None) -> tuple[Row, ...]:
    """Rows of the fleet's targets, built anew: the reference for the router's `RowCache`."""
    return tuple(target.build_row(now, count_held)._replace(overlap=overlaps.get(target.id)) for target in targets)


counts = st.integers(0, 100_000)
ages = st.none() | st.floats(0, 1000)
rates = st.floats(0, 1e4)
shares = st.floats(0, 1)
names = st.sampled_from(["a", "b", "c", "d"])
name_sets = st.none() | st.frozensets(names)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def overlaps(draw: st.DrawFn) -> Overlap:
    """As the contract promises them: cumulative, often with no tier but the GPU, which may not keep what it holds."""
    gpu, cpu, disk = sorted(draw(st.tuples(counts, counts, counts)))
    if draw(st.booleans()):
        cpu = disk = gpu
    expected = draw(counts)
    return Overlap(gpu, cpu, disk, expected, draw(st.sampled_from(["events", "approximate"])), draw(ages))


transfers = st.builds(Transfer, rates, rates, counts, ages)
decodes = st.builds(Decode, rates, rates, rates, counts, ages)
speeds = st.builds(Speed, rates, rates, rates, counts, ages, *[maybe(transfers)] * 5, maybe(decodes))
loads = st.builds(
    Load,
    requests=counts,
    prefilling=counts,
    prefill_tokens=counts,
    context_tokens=counts,
    queued_ms=rates,
    running=maybe(counts),
    waiting=maybe(counts),
    kv_usage=maybe(shares),
    elsewhere=maybe(counts),
    metrics_age_s=ages,
    adapters=name_sets,
    max_adapters=maybe(st.integers(0, 8)),
    waiting_adapters=name_sets,
    prompt_tokens=maybe(counts),
    output_tokens_per_s=maybe(rates),
    live_tokens=maybe(counts),
)
asks = st.builds(Ask, maybe(names), maybe(st.integers()), maybe(rates), maybe(rates), maybe(counts))


rows = st.builds(
    Row,
    target=st.just("a/0"),
    instance=st.just("a"),
    rank=st.integers(0, 3),
    block_tokens=maybe(st.sampled_from([16, 128])),
    capacity_tokens=maybe(counts),
    overlap=maybe(overlaps()),
    load=loads,
    speed=speeds,
    held_tokens=maybe(counts),
)
view_facts = st.builds(
    View,
    number=st.integers(0, 2**63),
    seed=st.integers(),
    model=st.just("warm-tiny"),
    adapter=maybe(names),
    prompt_tokens=maybe(counts),
    prefix=maybe(counts),
    session=maybe(st.text()),
    last_target=st.none(),
    pool=maybe(st.builds(PoolHit, counts, st.floats(0, 100), maybe(counts))),
    busy=maybe(shares),
    rows=st.lists(rows, min_size=1, max_size=4).map(tuple),
    turn=counts,
    now_s=rates,
    nominal=maybe(speeds),
    prefixes=st.lists(counts, max_size=4).map(tuple),
    ask=asks,
    others=st.just(0),
    answer_tokens=st.none(),
    program=maybe(names),
    parent=maybe(names),
    parent_target=st.none(),
    session_turn=maybe(counts),
    idle_s=maybe(st.floats(0, 1e4)),
    after_tool_call=maybe(st.booleans()),
    live_share=maybe(shares),
)
last_targets = st.none() | st.integers(-1, 3)


@st.composite
def views(draw: st.DrawFn) -> View:
    """Draw any view that the router may build, with `None` wherever the contract allows it. Strategies are built once,
    outside: building them takes longer than drawing.
    """
    view, last, above = draw(view_facts), draw(last_targets), draw(last_targets)
    named = tuple(
        row._replace(target=f"host-{i}:8000/{row.rank}", instance=f"host-{i}:8000") for i, row in enumerate(view.rows)
    )

    def target(number: int | None) -> str | None:
        return None if number is None else named[number].target if 0 <= number < len(named) else "gone/0"

    return view._replace(rows=named, last_target=target(last), parent_target=target(above))
