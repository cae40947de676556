"""The router in front of the real engines, and every request through it with its prediction.

`Behind.ask` sends one request, reads the answer as a client would, fetches the decision's record and compares the
prediction (`predicted_tokens`: the overlap of the chosen target by the index) with the delivery (`cached_tokens`: what
the engine reported). Then it waits until the router has applied all events of the engine about it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import httpx

from tests.stack.bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Json
from tests.stack.children import Child, until
from tests.stack.engines import MODEL, Engine

READY_S = 60.0
HEARD_S = 15.0
LISTENING = re.compile(r"listening on \S+:(\d+), admin on \S+:(\d+)\n")


class Asked(NamedTuple):
    """One request as the client and the router saw it."""

    path: str
    stream: bool
    text: str  # of the answer
    record: Json
    exception: str | None  # the name of the one reason why this promise may be broken
    ids: list[int] | None = None  # token ids of the answer, of a completion with `return_token_ids`

    @property
    def target(self) -> str:
        return str(self.record["target"])

    @property
    def instance(self) -> str:
        return self.target.rpartition("/")[0]

    @property
    def predicted(self) -> int | None:
        tokens: int | None = self.record["attempts"][-1]["predicted_tokens"]
        return tokens

    @property
    def cached(self) -> int | None:
        tokens: int | None = self.record["cached_tokens"]
        return tokens

    @property
    def kept(self) -> bool:
        return self.predicted is not None and self.predicted == self.cached

    def held(self, instance: str) -> int | None:
        """Return the overlap that the router assumed at `instance`; `None` if unknown or not a candidate."""
        for row in self.record["attempts"][-1]["candidates"]:
            if row["target"] == f"{instance}/0" and row["overlap"] is not None:
                return int(row["overlap"]["gpu_tokens"])
        return None


class Behind:
    """A running router and its clients. `asked` is everything that went through, in order."""

    def __init__(self, name: str, engines: Sequence[Engine], model: Path, settings: Json, folder: Path) -> None:
        """`settings`: the rest of the router's configuration, the policy `warm` among it."""
        self.engines = engines
        self.asked: list[Asked] = []
        config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"port": 0},
            "fleet": {"instances": [engine.instance() for engine in engines]},
            "tokenizers": {MODEL: {"path": str(model)}},
            "active": "warm",
            **settings,
        }
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        self.child = Child(name, [sys.executable, "-m", "router", "serve", "--config", str(file)], folder)
        self.http = httpx.Client(timeout=180.0)
        self.admin = httpx.Client(timeout=10.0)

    def close(self) -> int | None:
        """SIGTERM; its exit code."""
        self.http.close()
        self.admin.close()
        return self.child.stop()

    def wait(self, *, hear: bool = True) -> None:
        """Wait until it is ready and, to `hear`, receives the events of all engines."""
        self.child.wait(self._listening, READY_S)
        self.child.wait(self._ready, READY_S)
        for engine in self.engines if hear else ():
            self.hear(engine)

    def _listening(self) -> bool:
        """Read its ports, which the system chose, from its log."""
        if (said := LISTENING.search(self.child.log.read_text())) is None:
            return False
        self.http.base_url, self.admin.base_url = (f"http://127.0.0.1:{port}" for port in said.groups())
        return True

    def _ready(self) -> bool:
        return self.http.get("/ready").status_code == 200

    def engine(self, name: str) -> Engine:
        return next(engine for engine in self.engines if engine.name == name)

    def instance(self, name: str) -> Json:
        """The instance in the admin API."""
        listed = self.admin.get("/admin/instances").raise_for_status().json()["instances"]
        found: Json = next(instance for instance in listed if instance["id"] == name)
        return found

    def state(self, name: str) -> str:
        return str(self.instance(name)["state"])

    def hear(self, engine: Engine) -> None:
        """Wait until the router has applied all events of the engine so far."""
        said = engine.said_all()
        until(f"the router hears {engine.name} up to batch {said}", lambda: self._heard(engine) >= said, HEARD_S)

    def _heard(self, engine: Engine) -> int:
        """The number of the last batch that the router has applied; -1 while its stream is not live."""
        stream = self.stream(engine.name)
        seq = stream["last_seq"] if stream is not None and stream["state"] == "live" else None
        return -1 if seq is None else int(seq)

    def stream(self, name: str) -> Json | None:
        """The instance's event stream in the admin API."""
        targets = self.instance(name)["targets"]
        return targets[0]["stream"] if targets else None

    def ask(self, path: str, body: Json, *, tokens_from: str = "local", exception: str | None = None) -> Asked:
        """One request, checked: answered, counted, and its promise kept unless `exception` says why not."""
        asked = self.send(path, body, exception)
        self.asked.append(asked)
        _check(asked, tokens_from)
        self.hear(self.engine(asked.instance))
        return asked

    def send(self, path: str, body: Json, exception: str | None = None) -> Asked:
        """One request, answered."""
        body = {"model": MODEL, **body}
        if body.get("stream"):
            record_id, pieces = self._stream(path, body)
        else:
            answer = self.http.post(path, json=body)
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
            record_id, pieces = answer.headers["x-warmroute-record"], [answer.json()]
        record, ids = self._record(record_id), None
        if body.get("return_token_ids"):
            ids = [id_ for piece in pieces for choice in piece["choices"] for id_ in choice["token_ids"]]
        return Asked(path, bool(body.get("stream")), _text(path, pieces), record, exception, ids)

    def _stream(self, path: str, body: Json) -> tuple[str, list[Json]]:
        with self.http.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.read().decode()}"
            data = [line[len("data: ") :] for line in answer.iter_lines() if line.startswith("data: ")]
        pieces = [json.loads(piece) for piece in data if piece != "[DONE]"]
        if path in (CHAT, COMPLETIONS):
            assert data[-1] == "[DONE]"
            wanted = (body.get("stream_options") or {}).get("include_usage", False)
            assert any(piece.get("usage") for piece in pieces) == wanted, "usage shown as the client asked"
        return answer.headers["x-warmroute-record"], pieces

    def _record(self, record_id: str) -> Json:
        def fetch() -> Json:
            found: Json = self.admin.get(f"/admin/records/{record_id}").raise_for_status().json()
            return found

        until(f"record {record_id} is done", lambda: fetch()["done"])
        return fetch()


def _check(asked: Asked, tokens_from: str) -> None:
    record = asked.record
    story = f"{asked.path} on {asked.target}: {json.dumps(record)[:3000]}"
    assert record["status"] == 200, story
    assert record["tokens_from"] == tokens_from, story
    assert record["prompt_tokens"] is not None, story
    assert record["prompt_tokens_counted"] == record["prompt_tokens"], story
    if asked.exception is None:
        assert asked.predicted == asked.cached, f"predicted {asked.predicted}, delivered {asked.cached}: {story}"


def _text(path: str, pieces: list[Json]) -> str:
    """The answer's text, whole or from its stream."""
    return "".join(_piece_text(path, piece) for piece in pieces)


def _piece_text(path: str, piece: Json) -> str:
    if path == CHAT:
        return "".join(
            (choice.get("delta") or choice.get("message") or {}).get("content") or "" for choice in piece["choices"]
        )
    if path == COMPLETIONS:
        return "".join(choice["text"] for choice in piece["choices"])
    if path == RESPONSES and piece.get("object") == "response":
        return "".join(part["text"] for item in piece["output"] for part in item.get("content") or [])
    if path == RESPONSES:
        return piece["delta"] if piece.get("type") == "response.output_text.delta" else ""
    assert path == MESSAGES
    if piece["type"] == "message":
        return "".join(block.get("text", "") for block in piece["content"])
    return str(piece["delta"].get("text", "")) if piece["type"] == "content_block_delta" else ""


@contextmanager
def router_in_front(name: str, engines: Sequence[Engine], model: Path, picker: Json, folder: Path) -> Iterator[Behind]:
    """A router that knows no pool and goes by overlap alone; it has just started."""
    policy = {"scorers": [{"name": "prefix_overlap"}], "picker": picker}
    with running(Behind(name, engines, model, {"policies": {"warm": policy}}, folder)) as behind:
        yield behind


Router = TypeVar("Router", bound=Behind)


@contextmanager
def running(behind: Router) -> Iterator[Router]:
    """Started; ended at the end, and it must end well."""
    behind.child.start()
    try:
        yield behind
    finally:
        code = behind.close()
    assert code == 0, f"the router ended with {code}:\n{behind.child.tail()}"
