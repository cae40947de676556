"""Chats of a client that names no session, over real sockets: records, arms and admission see one session for each."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, Json
from tests.fakes.engines import engine
from tests.paths import DATA

CHATS = 12
STICKY: Json = {"scorers": [{"name": "session_affinity"}]}


def example() -> list[Json]:
    """Return what aider sends before the first message of its user: always the same."""
    body = json.loads((DATA / "clients" / "aider.json").read_text())["requests"][0]["body"]
    return list(body["messages"][:-1])


async def test_chats_that_begin_with_one_example_are_sessions_of_their_own(router: Any) -> None:
    async with engine() as a, engine() as b:
        members = [{"url": fake.url, "name": name} for name, fake in zip("ab", (a, b), strict=True)]
        settings: Json = {
            "policies": {"one": STICKY, "other": {"scorers": [{"name": "session_affinity", "weight": 2.0}]}},
            "experiment": {"arms": {"one": 50, "other": 50}, "seed": 3},
            "admission": {"enabled": True},
        }
        async with router(members, **settings) as r:
            chats = [[*example(), {"role": "user", "content": f"chat {n}"}] for n in range(CHATS)]
            turns: list[list[Json]] = []
            for _ in range(3):
                turns.append([])
                for chat in chats:
                    body = {"model": MODEL, "messages": chat, "max_tokens": 2}
                    answer = (await r.post(PATH, body)).raise_for_status()
                    turns[-1].append(await r.record(answer))
                    chat += [answer.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
            for fact in ("session", "program", "arm", "target"):
                first, *later = ([record[fact] for record in turn] for turn in turns)
                assert later == [first, first], f"a chat keeps its {fact}"
            assert len({record["session"] for record in turns[0]}) == CHATS
            assert {record["arm"] for record in turns[0]} == {"one", "other"}
            (model,) = (await r.admin.get("/admin/admission")).raise_for_status().json()["models"]
            assert model["known_sessions"] == CHATS
