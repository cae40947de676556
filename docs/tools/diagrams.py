"""The diagrams of the pages: SVG made from boxes and arrows on a grid, the same bytes each time."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from typing import Literal, NamedTuple

from docs.tools.pages import ROOT

UNIT = 10  # pixels per grid unit
LOOP = 2.2 * UNIT  # how far an arrow goes out that comes back to the same side
INK, SOFT, PAPER = "#1f2933", "#52606d", "#ffffff"
TONES = {"plain": "#f5f7fa", "ours": "#e3f0ff", "engine": "#fdf0dc", "store": "#e8f6e9", "none": "none"}

Side = Literal["left", "right", "top", "bottom"]


class Box(NamedTuple):
    """A box on the grid: its corner and size in units, a title, and lines of smaller text below it."""

    x: float
    y: float
    width: float
    height: float
    title: str
    lines: Sequence[str] = ()
    tone: str = "plain"


class Arrow(NamedTuple):
    """An arrow between two boxes, from one side to another; `shift` moves both ends along their sides, in units."""

    start: str
    leaves: Side
    end: str
    enters: Side
    label: str = ""
    dashed: bool = False
    shift: float = 0.0


class Drawing(NamedTuple):
    """A diagram: its size in units, its boxes by name, and the arrows between them."""

    title: str
    width: float
    height: float
    boxes: dict[str, Box]
    arrows: Sequence[Arrow] = ()


def render_all() -> dict[str, str]:
    """Return the SVG text of each diagram, by the name of its file."""
    return {name: render(drawing) for name, drawing in DRAWINGS.items()}


def render(drawing: Drawing) -> str:
    """Return one diagram as SVG, on a background of its own so that it is legible on light and dark pages."""
    width, height = drawing.width * UNIT, drawing.height * UNIT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f"<title>{escape(drawing.title)}</title>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3.5" orient="auto">'
        f'<path d="M0,0 L7,3.5 L0,7 z" fill="{SOFT}"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>',
        *(line for box in drawing.boxes.values() for line in _box(box)),
        *(line for arrow in drawing.arrows for line in _arrow(drawing.boxes, arrow)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _box(box: Box) -> Iterator[str]:
    x, y, width, height = (value * UNIT for value in box[:4])
    stroke = "none" if box.tone == "none" else "#9aa5b1"
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" '
        f'fill="{TONES[box.tone]}" stroke="{stroke}"/>'
    )
    middle = x + width / 2
    top = y + height / 2 - 7.5 * len(box.lines) + 4 if height < 12 * UNIT else y + 18
    yield (
        f'<text x="{middle:g}" y="{top:g}" text-anchor="middle" font-weight="bold" fill="{INK}">'
        f"{escape(box.title)}</text>"
    )
    for i, line in enumerate(box.lines, start=1):
        yield (
            f'<text x="{middle:g}" y="{top + 15 * i:g}" text-anchor="middle" font-size="11.5" fill="{SOFT}">'
            f"{escape(line)}</text>"
        )


def _arrow(boxes: dict[str, Box], arrow: Arrow) -> Iterator[str]:
    x1, y1 = _end(boxes[arrow.start], arrow.leaves, arrow.shift)
    x2, y2 = _end(boxes[arrow.end], arrow.enters, arrow.shift)
    x2, y2 = _straighten(boxes[arrow.end], arrow, (x1, y1), (x2, y2))
    bend_x, bend_y = (x1 + x2) / 2, (y1 + y2) / 2
    if arrow.leaves == arrow.enters:
        bend_y = y1 + (LOOP if arrow.leaves == "bottom" else -LOOP)
        path = f"M{x1:g},{y1:g} V{bend_y:g} H{x2:g} V{y2:g}"
    elif arrow.leaves in ("left", "right") and arrow.enters in ("left", "right"):
        path = f"M{x1:g},{y1:g} H{bend_x:g} V{y2:g} H{x2:g}"
    elif arrow.leaves in ("top", "bottom") and arrow.enters in ("top", "bottom"):
        path = f"M{x1:g},{y1:g} V{bend_y:g} H{x2:g} V{y2:g}"
    elif arrow.leaves in ("left", "right"):
        path, bend_y = f"M{x1:g},{y1:g} H{x2:g} V{y2:g}", y1
    else:
        path, bend_x = f"M{x1:g},{y1:g} V{y2:g} H{x2:g}", x1
    dash = ' stroke-dasharray="5 4"' if arrow.dashed else ""
    yield f'<path d="{path}" fill="none" stroke="{SOFT}" stroke-width="1.4"{dash} marker-end="url(#head)"/>'
    if arrow.label:
        upright = arrow.leaves in ("top", "bottom") and arrow.enters != arrow.leaves
        anchor, dx, dy = ("start", 6, 4) if upright else ("middle", 0, -5)
        for i, line in enumerate(arrow.label.split("\n")):
            yield (
                f'<text x="{bend_x + dx:g}" y="{bend_y + dy + 13 * i:g}" text-anchor="{anchor}" font-size="11.5" '
                f'fill="{INK}">{escape(line)}</text>'
            )


def _straighten(box: Box, arrow: Arrow, start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Move the end of an arrow along its side to face the start, where the side is long enough for that."""
    x, y, width, height = (value * UNIT for value in box[:4])
    sides = {arrow.leaves, arrow.enters}
    if sides == {"left", "right"} and y < start[1] < y + height:
        return end[0], start[1]
    if sides == {"top", "bottom"} and x < start[0] < x + width:
        return start[0], end[1]
    return end


def _end(box: Box, side: Side, shift: float) -> tuple[float, float]:
    x, y, width, height = (value * UNIT for value in box[:4])
    along = shift * UNIT
    return {
        "left": (x, y + height / 2 + along),
        "right": (x + width, y + height / 2 + along),
        "top": (x + width / 2 + along, y),
        "bottom": (x + width / 2 + along, y + height),
    }[side]


ARCHITECTURE = Drawing(
    "Warmroute between clients and engines",
    102,
    46,
    {
        "router": Box(24, 2, 56, 42, "Warmroute", (), "none"),
        "clients": Box(2, 8, 16, 8, "Clients", ("OpenAI and", "Anthropic APIs")),
        "operator": Box(2, 21, 16, 8, "Operator", ("warmroute command,", "admin API")),
        "prometheus": Box(2, 34, 16, 8, "Prometheus", ("scrapes /metrics",)),
        "read": Box(26, 8, 15, 8, "Read", ("parse, tokenise,", "block keys"), "ours"),
        "decide": Box(45, 8, 15, 8, "Decide and book", ("policy: filters,", "scorers, picker"), "ours"),
        "relay": Box(64, 8, 15, 8, "Relay", ("byte for byte,", "retries, pairs"), "ours"),
        "control": Box(26, 21, 15, 8, "Control", ("policies, experiments,", "rollback"), "ours"),
        "index": Box(64, 21, 15, 8, "Index", ("which target holds", "which blocks"), "ours"),
        "records": Box(45, 34, 15, 8, "Records", ("why, predicted and", "delivered; metrics"), "ours"),
        "engines": Box(86, 8, 14, 21, "vLLM engines", ("each with its own", "prefix cache"), "engine"),
        "pool": Box(86, 34, 14, 8, "Mooncake Store", ("shared pool,", "optional"), "store"),
    },
    [
        Arrow("clients", "right", "read", "left"),
        Arrow("read", "right", "decide", "left"),
        Arrow("decide", "right", "relay", "left"),
        Arrow("relay", "right", "engines", "left"),
        Arrow("index", "left", "decide", "bottom"),
        Arrow("control", "right", "decide", "bottom", shift=-3),
        Arrow("operator", "right", "control", "left"),
        Arrow("engines", "left", "index", "right", "events", dashed=True, shift=6),
        Arrow("decide", "bottom", "records", "top", dashed=True, shift=3),
        Arrow("records", "left", "prometheus", "right", dashed=True),
        Arrow("index", "bottom", "pool", "left", "what is held?", dashed=True),
    ],
)

REQUEST = Drawing(
    "The path of a request",
    100,
    46,
    {
        "listener": Box(2, 3, 20, 9, "1 Listener", ("proxy/listener.py", "bounds, TLS, HTTP/1 parser"), "ours"),
        "api": Box(28, 3, 20, 9, "2 Public API", ("request/public_api.py", "allow-list, client keys"), "ours"),
        "parse": Box(54, 3, 20, 9, "3 Parse", ("prompt/api/parse.py", "what routing needs"), "ours"),
        "tokens": Box(78, 3, 20, 9, "4 Token ids", ("prompt/tokenization/", "render, tokenise, keys"), "ours"),
        "admit": Box(78, 18, 20, 9, "5 Admission", ("features/admission/", "wait, or pass at once"), "ours"),
        "pool": Box(54, 18, 20, 9, "6 Pool lookup", ("features/pool/", "if a policy needs it"), "store"),
        "choose": Box(28, 18, 20, 9, "7 Choose and book", ("scheduling/scheduler.py", "view, policy, ticket"), "ours"),
        "relay": Box(2, 18, 20, 9, "8 Relay", ("proxy/relay.py", "until the answer ends"), "ours"),
        "engine": Box(2, 33, 20, 9, "Engine", ("vLLM",), "engine"),
        "settle": Box(28, 33, 20, 9, "9 Settle", ("scheduling/feedback.py", "give back, learn"), "ours"),
        "record": Box(54, 33, 20, 9, "10 Record", ("telemetry/", "metrics, decision log"), "ours"),
        "client": Box(78, 33, 20, 9, "Client", ("x-warmroute-record", "names the record")),
    },
    [
        Arrow("listener", "right", "api", "left"),
        Arrow("api", "right", "parse", "left"),
        Arrow("parse", "right", "tokens", "left"),
        Arrow("tokens", "bottom", "admit", "top"),
        Arrow("admit", "left", "pool", "right"),
        Arrow("pool", "left", "choose", "right"),
        Arrow("choose", "left", "relay", "right"),
        Arrow("relay", "bottom", "engine", "top", "request", shift=-5),
        Arrow("engine", "top", "relay", "bottom", "answer", shift=1),
        Arrow("relay", "top", "choose", "top", "not begun: another target", dashed=True),
        Arrow("engine", "right", "settle", "left"),
        Arrow("settle", "right", "record", "left"),
        Arrow("record", "right", "client", "left"),
    ],
)

EVENT = Drawing(
    "The path of a KV event",
    100,
    33,
    {
        "engine": Box(2, 6, 17, 9, "Engine", ("ZeroMQ PUB and", "replay ROUTER"), "engine"),
        "reader": Box(27, 6, 19, 9, "Read", ("backends/feeds/", "zmq_reader.py, in slices"), "ours"),
        "decode": Box(53, 6, 19, 9, "Decode", ("backends/vllm/kv_events.py", "msgpack to events"), "ours"),
        "order": Box(79, 6, 19, 9, "Put in order", ("event_sequencer.py", "gap, replay, restart"), "ours"),
        "apply": Box(79, 21, 19, 9, "Apply", ("kvcache/target_blocks.py", "hash to own key"), "ours"),
        "index": Box(53, 21, 19, 9, "Index", ("kvcache/index.py", "key to one bit per target"), "ours"),
        "estimate": Box(
            27, 21, 19, 9, "Overlap estimate", ("kvcache/overlap_estimate.py", "plus what was just sent"), "ours"
        ),
        "decision": Box(2, 21, 17, 9, "Decision", ("view of one request",), "ours"),
    },
    [
        Arrow("engine", "right", "reader", "left"),
        Arrow("reader", "right", "decode", "left"),
        Arrow("decode", "right", "order", "left"),
        Arrow("order", "bottom", "apply", "top"),
        Arrow("apply", "left", "index", "right"),
        Arrow("index", "left", "estimate", "right"),
        Arrow("estimate", "left", "decision", "right"),
        Arrow("order", "top", "engine", "top", "a gap: replay", dashed=True),
    ],
)

MEANINGS = {
    "cli": "commands, tables, charts",
    "app, wiring": "build, connect, start, stop",
    "features": "a folder each; none knows another",
    "control": "what an operator may do",
    "lab": "simulator, engines, load, game days",
    "operate": "doctor, rollout",
    "request": "one request from socket to record; admission",
    "picker": "gRPC with a gateway",
    "proxy": "HTTP/1 both ways",
    "telemetry": "metrics, decision log",
    "scheduling": "choose and book; experiments",
    "backends": "engines, feeds, pool",
    "fleet": "targets, load, learned speed",
    "prompt": "from body to token ids",
    "kvcache": "block keys, events, index",
    "tenants": "whose a request is",
    "config, errors, clock, tasks": "imported by all",
    "scorers": "the contract and the plug-ins; standard library only",
}


def _draw_layers() -> Drawing:
    """Draw the import layers of `pyproject.toml`, the highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    short = [layer.replace("router.", "").replace("__main__ : ", "").replace(" : ", ", ") for layer in layers]
    rows = [*(names.split(" | ") for names in short), ["scorers"]]
    boxes: dict[str, Box] = {}
    for row, packages in enumerate(rows):
        width = (76 - 2 * (len(packages) - 1)) / len(packages)
        for column, name in enumerate(packages):
            boxes[name] = Box(2 + column * (width + 2), 2 + row * 6, width, 5, name, (MEANINGS[name],), "ours")
    return Drawing("Packages by layer: imports go downwards only", 80, 2 + 6 * len(rows) + 1, boxes)


PAIRS = Drawing(
    "Prefill and decode on two instances",
    96,
    34,
    {
        "title_m": Box(2, 1, 44, 3, "mooncake: both legs at once", (), "none"),
        "router_m": Box(19, 5, 10, 6, "Router", (), "ours"),
        "prefill_m": Box(3, 21, 16, 8, "Prefill instance", ("computes the prompt",), "engine"),
        "decode_m": Box(30, 21, 16, 8, "Decode instance", ("answers",), "engine"),
        "title_n": Box(50, 1, 44, 3, "nixl: one leg after the other", (), "none"),
        "router_n": Box(67, 5, 10, 6, "Router", (), "ours"),
        "prefill_n": Box(51, 21, 16, 8, "Prefill instance", ("computes the prompt",), "engine"),
        "decode_n": Box(78, 21, 16, 8, "Decode instance", ("answers",), "engine"),
    },
    [
        Arrow("router_m", "left", "prefill_m", "top", "1 transfer id"),
        Arrow("router_m", "right", "decode_m", "top", "1 transfer id"),
        Arrow("prefill_m", "right", "decode_m", "left", "KV", dashed=True),
        Arrow("router_n", "left", "prefill_n", "top", "1 prefill"),
        Arrow("router_n", "right", "decode_n", "top", "2 parameters"),
        Arrow("prefill_n", "right", "decode_n", "left", "KV", dashed=True),
    ],
)

DRAWINGS = {"architecture": ARCHITECTURE, "request": REQUEST, "event": EVENT, "layers": _draw_layers(), "pairs": PAIRS}
