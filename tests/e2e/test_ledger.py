"""The decision log of a running router, and its replay: everything that was decided is decided again, whatever became
of the requests; nobody is named in it; and a router that is killed leaves files that can be read.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import itertools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from router.cli.replay.command import replay
from router.features.decision_log.format import LoggedRecord
from router.features.decision_log.reader import UnreadableLine, find_files, read
from tests.e2e.chats import PATH, Chat, ask, beside
from tests.e2e.conftest import MODEL, ROOT, WARM, Json, RouterClient, RouterProcess
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

POLICIES: Json = {
    "warm": WARM,
    "calm": {"scorers": [{"name": "least_requests"}]},
    "sticky": {"scorers": [{"name": "session_affinity"}, {"name": "consistent_hash", "weight": 0.5}]},
    "dice": {"scorers": [{"name": "random"}]},
}
KEY, OWNER, TOKEN = "sk-4711-very-secret", "Umbrella Corporation", "the-operators-token"
SESSION, USER, WORD = "maria.muster@example.org", "maria-muster-4711", "Sesquipedalian"
ADMIN = {
    "tokens": [{"name": "ops", "hash": hashlib.sha256(TOKEN.encode()).hexdigest(), "rights": ["read", "override"]}]
}
EXPERIMENT = {"arms": {"warm": 40, "sticky": 30, "dice": 30}, "seed": 3, "shadows": ["calm"]}


def records_in(folder: Path) -> list[LoggedRecord]:
    """Fails on a line that cannot be read."""
    entries = list(read([folder]))
    assert not [entry for entry in entries if isinstance(entry, UnreadableLine)]
    return [entry for entry in entries if isinstance(entry, LoggedRecord)]


def bytes_of(folder: Path) -> bytes:
    """All that stands in the files, as on the disk and unpacked."""
    raw = [(path, path.read_bytes()) for path in find_files([folder])]
    return b"".join(data for _, data in raw) + b"".join(
        gzip.decompress(data) for path, data in raw if path.suffix == ".gz"
    )


def replayed(folder: Path) -> Json:
    """The report. Raises NotReproduced."""
    file = folder.parent / "report.json"
    assert replay([folder], out_json=file, console=Console(file=io.StringIO()))
    return dict(json.loads(file.read_bytes()))


def settings(folder: Path, keys: Path | None = None, **changed: Any) -> Json:
    common: Json = {"policies": POLICIES, "records": {"decision_log": {"folder": str(folder)}}}
    return common | ({} if keys is None else {"clients": {"keys_file": str(keys)}}) | changed


async def leave(r: RouterClient, fake: FakeEngine, **headers: str) -> None:
    """A client that goes away in the middle of its answer."""
    body = {"model": MODEL, "prompt": f"{WORD} leaves", "stream": True, "max_tokens": 2000, "ignore_eos": True}
    async with r.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_bytes())
    await eventually(lambda: fake.gauges().running == 0)


async def test_everything_that_happens_can_be_replayed_and_nobody_is_named(router: Any, tmp_path: Path) -> None:
    folder, keys = tmp_path / "decision_log", tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} {OWNER}\n")
    async with engine(decode_ms_per_token=1) as a, engine() as b:
        config = settings(folder, keys, active="warm", experiment=EXPERIMENT, admin=ADMIN)
        async with router([a, b], **config) as r:
            r.admin.headers["authorization"] = f"Bearer {TOKEN}"
            refused = await r.post(PATH, {"model": MODEL, "messages": []})
            assert refused.status_code == 401
            r.http.headers["authorization"] = f"Bearer {KEY}"
            sent: Counter[str] = Counter()
            for n in range(8):  # chats of three turns, some named and some not
                r.http.headers["x-session-id"] = f"{SESSION}-{n}" if n % 2 else ""
                talk = Chat(r, f"{WORD}{n}", words=100)
                for turn in range(3):
                    assert (await talk.turn(stream=bool(turn % 2), user=USER)).ok
                    sent["/v1/chat/completions"] += 1
            for n in range(6):
                body = {"model": MODEL, "prompt": f"{WORD} {n} " * 40, "max_tokens": 4, "user": f"{USER}{n}"}
                (await r.post("/v1/completions", body)).raise_for_status()
                sent["/v1/completions"] += 1
            assert (await r.post(PATH, {"model": f"{WORD}-model", "messages": []})).status_code == 404
            for fake in (a, b):
                fake.faults(refuse=True)
            full = await r.post("/v1/completions", {"model": MODEL, "prompt": WORD})
            assert full.status_code == 503  # both were asked: two attempts
            sent["/v1/completions"] += 1
            a.faults(refuse=False)
            await leave(r, a)
            sent["/v1/completions"] += 1
            headers = {"x-warmroute-policy": "calm", "x-warmroute-token": TOKEN}
            (await r.post("/v1/completions", {"model": MODEL, "prompt": WORD}, headers=headers)).raise_for_status()
            sent["/v1/completions"] += 1
            await eventually(r.idle)
    told = records_in(folder)
    assert Counter(record.endpoint for record in told) == sent
    report = replayed(folder)
    assert report["records"] == sent.total()
    assert report["choices"] == report["same"] >= sent.total()
    assert {one["policy"] for one in report["reproduced"]} == {"warm", "sticky", "dice", "calm"}
    by_error = {record.error: record for record in told if record.error is not None}
    assert [choice.end for choice in by_error["busy"].attempts] == ["busy", "busy"]
    assert (by_error["client_gone"].status, by_error["client_gone"].duration_ms is not None) == (200, True)
    assert [record.policy for record in told if record.asked_by is not None] == ["calm"]
    assert all(record.arm == record.policy for record in told if record.asked_by is None)
    assert {shadow.policy for record in told for shadow in record.shadows} == {"calm"}
    assert len({record.client for record in told}) == 1
    assert None not in {record.client for record in told}
    written = bytes_of(folder).lower()
    for name in (KEY, OWNER, TOKEN, SESSION, USER, WORD, "maria", "umbrella"):
        assert name.lower().encode() not in written, name


async def test_a_record_is_a_request_of_a_mooncake_trace(router: Any, tmp_path: Path) -> None:
    folder = tmp_path / "decision_log"
    async with engine() as a, router([a], **settings(folder)) as r:
        talks: list[list[Json]] = [[], []]
        said = []
        for turn in range(3):
            for number, talk in enumerate(talks):
                question = " ".join(f"talk {number} turn {turn} word {n}" for n in range(120))
                talk.append({"role": "user", "content": question})
                said.append(await ask(r, talk, stream=turn == 1))
                talk.append({"role": "assistant", "content": said[-1].text})
        counted = {one.record: await r.record(one.record) for one in said}
    told = {record.id: record for record in records_in(folder)}
    lines = [
        json.loads(line) for path in find_files([folder]) for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    plain = {line["record"]["id"]: line["record"] for line in lines if "record" in line}
    assert set(told) == set(plain) == set(counted)
    for id_, record in plain.items():
        assert record["timestamp"] == round(counted[id_]["at_wall_s"] * 1000)
        assert record["input_length"] == counted[id_]["prompt_tokens"] > 512
        assert record["output_length"] == counted[id_]["output_tokens"] > 0
        assert "hash_ids" in record, counted[id_]  # seen missing once, on a busy machine
        assert len(record["hash_ids"]) == record["input_length"] // 512  # of the full ones
    turns = {talk: [plain[one.record]["hash_ids"] for one in said[talk::2]] for talk in (0, 1)}
    for hashes in turns.values():
        for earlier, later in itertools.pairwise(hashes):
            assert later[: len(earlier)] == earlier
            assert len(later) > len(earlier) > 0
        assert len(set(hashes[-1])) == len(hashes[-1]) >= 3
    assert not set(turns[0][-1]) & set(turns[1][-1])
    assert [record["timestamp"] for record in plain.values()] == sorted(r_["timestamp"] for r_ in plain.values())


async def test_both_halves_of_a_pair_can_be_replayed(router: Any, tmp_path: Path) -> None:
    folder = tmp_path / "decision_log"
    paired = {
        "scorers": [{"name": "prefix_overlap"}],
        "prefill": {"scorers": [{"name": "random"}]},
        "prefill_from_tokens": 64,
    }
    options: Json = {"transfer": "nixl", "transfer_timeout_s": 0.5}
    async with (
        engine(role="prefill", **options) as p,
        engine(role="prefill", **options) as q,
        engine(role="decode", **options) as d,
    ):
        instances = [
            {"url": fake.url, "name": name, "role": fake.server.options.role, "transfer": {"protocol": "nixl"}}
            for name, fake in (("p", p), ("q", q), ("d", d))
        ]
        async with router(instances, **settings(folder, policies={"warm": paired})) as r:
            for n in range(6):
                assert (await Chat(r, f"chat{n}", words=200).turn()).ok
    told = records_in(folder)
    halves = [choice.prefill for record in told for choice in record.attempts]
    assert [half is not None and half.end for half in halves] == ["ok"] * 6
    report = replayed(folder)
    assert report["choices"] == report["same"] == 12
    assert {one["policy"] for one in report["reproduced"]} == {"warm"}


async def load(r: RouterClient) -> None:
    """Requests without a pause. Ends when the router does."""

    async def one_after_the_other(name: str) -> None:
        for n in itertools.count():
            try:
                await ask(r, [{"role": "user", "content": f"{name} {n}"}], max_tokens=2)
            except httpx.TransportError:
                return

    await asyncio.gather(*(one_after_the_other(f"u{n}") for n in range(4)))


async def test_a_router_that_is_killed_leaves_a_ledger_that_can_be_read(
    router_process: Any, fleet_config: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "decision_log"
    async with engine() as a, engine() as b:
        config = fleet_config([a, b], **settings(folder))
        async with router_process(config) as r:
            async with beside(load(r)) as going:
                written = await until_written(r, 200)
                os.kill(r.pid, signal.SIGKILL)
                async with asyncio.timeout(PATIENCE_S):
                    await going
            assert await r.process.wait() == -signal.SIGKILL
        entries = list(read([folder]))
        assert all(entry.torn for entry in entries if isinstance(entry, UnreadableLine)), (
            "only the last line may be unfinished"
        )
        kept = {entry.id for entry in entries if isinstance(entry, LoggedRecord)}
        assert len(kept) >= written, "what was told to be written is there"
        code, out = await command("replay", folder, "--json", tmp_path / "report.json")
        assert code == 0, out
        report = json.loads((tmp_path / "report.json").read_bytes())
        assert (report["records"], report["bad_lines"]) == (len(kept), 0)
        assert report["choices"] == report["same"] >= len(kept)

        async with router_process(config) as r:  # goes on beside what is there, and packs it
            assert (await ask(r, [{"role": "user", "content": "again"}])).ok
            r.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                assert await r.process.wait() == 0
        after = [entry for entry in read([folder]) if isinstance(entry, LoggedRecord)]
        assert len(after) == len(kept) + 1
        assert all(path.suffix == ".gz" for path in find_files([folder]))


async def until_written(r: RouterProcess, records: int) -> float:
    """At least so many. How many it says there are."""
    async with asyncio.timeout(PATIENCE_S):
        while (written := await r.metric("warmroute_decision_log_records_total")) < records:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return written


async def command(*words: str | Path) -> tuple[int | None, str]:
    """Exit code and output of the command, run to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )
    async with asyncio.timeout(PATIENCE_S):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


def ends(told: Sequence[LoggedRecord]) -> Counter[str]:
    return Counter(choice.end for record in told for choice in record.attempts)


async def test_engines_that_die_are_in_the_ledger_as_they_died(router: Any, tmp_path: Path) -> None:
    """A retry decides on what is left: its view is another one, and it is reproduced as well. Where nobody is left,
    there is nothing to reproduce.
    """
    folder = tmp_path / "decision_log"
    for_good = {"breaker": {"open_s": 600}}  # else a slow run tries them again in between
    asked = settings(folder, active="dice", fleet=for_good)
    async with engine() as a, engine() as b, router([a, b], **asked) as r:
        a.faults(die_before_first_byte=1.0)
        for n in range(12):  # until a's breaker opens, which is after 3 in a row
            assert (await ask(r, [{"role": "user", "content": f"hello {n}"}])).ok
        b.faults(die_mid_stream=1.0)
        said = [await ask(r, [{"role": "user", "content": f"again {n}"}], stream=True) for n in range(6)]
        for id in await r.instances():
            await r.admin.post(f"/admin/instances/{id}/drain")
        refused = [await ask(r, [{"role": "user", "content": f"nobody {n}"}]) for n in range(3)]
    assert [one.status for one in (*said, *refused)] == [200] * 6 + [503] * 3
    assert all(one.error is not None for one in said)
    told = records_in(folder)
    found = ends(told)
    assert (found["ok"], found["broken"]) == (12, 6)
    assert 3 <= found["died"] <= 6
    assert [record.error for record in told][-9:] == ["broken"] * 6 + ["unplaced"] * 3
    panic = [record.attempts[-1].panic for record in told[-9:-3]]
    assert panic == [False] * 3 + [True] * 3, "then b's breaker is open, too"
    report = replayed(folder)
    assert (report["records"], report["unplaced"]) == (21, 3)
    assert report["choices"] == report["same"] == found.total()
