"""Asking what would happen, over real sockets: it is what then happens, and nobody can tell that somebody asked."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.engines import engine, eventually

MODEL = "warm-tiny"
CHAT = "/v1/chat/completions"
OURS = re.compile(r"^(?!# )(warmroute_\S+) (\S+)$", re.MULTILINE)
TOLD_ANEW = re.compile(r'"(silent_s|metrics_age_s|age_s|lag_s)":[^,}]+')  # ages, which go on by themselves
PATHS = ("/admin/records", "/admin/pool", "/admin/policies", "/admin/instances")


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{text} " * 60}]} | fields


async def asked(r: Any, body: dict[str, Any], **params: str) -> dict[str, Any]:
    answer = await r.admin.post("/admin/explain", params={"path": CHAT} | params, json=body)
    return dict(answer.raise_for_status().json())


async def shown(r: Any) -> dict[str, Any]:
    """All that the router says of itself, but for what time alone changes."""
    admin = {path: TOLD_ANEW.sub(r'"\1":0', (await r.admin.get(path)).raise_for_status().text) for path in PATHS}
    metrics = OURS.findall((await r.http.get("/metrics")).raise_for_status().text)
    lags = ("warmroute_stream_lag", "warmroute_http")
    return admin | {name: value for name, value in metrics if not name.startswith(lags)}


async def calm(r: Any) -> None:
    """The engines were polled since the last answer, and the next polls will say the same."""
    targets = [target.load_book for instance in r.core.fleet for target in instance.targets.values()]
    since = r.app.core.clock.now()
    await eventually(
        lambda: all(b.gauges_at > since and b.gauges.running == 0 == b.output_tokens_per_s for b in targets)
    )


async def test_what_is_told_is_what_then_happens(router: Any) -> None:
    async with engine() as a, engine() as b, router([a, b]) as r:
        for n in range(4):
            told = await asked(r, chat(f"turn {n % 2}"))
            record = await r.record(await r.post(CHAT, chat(f"turn {n % 2}")))
            await r.hear()
            assert (told["target"], told["why"]) == (record["target"], record["why"])
            assert told["decision"]["candidates"][0]["overlap"] is not None
            assert told["tokens"]["prompt_tokens"] == record["prompt_tokens_counted"] == record["prompt_tokens"]


async def test_nobody_can_tell_that_somebody_asked(router: Any) -> None:
    """The metrics page and everything on the admin door is the same text as before."""
    async with engine() as a, engine() as b, router([a, b]) as r:
        for n in range(3):
            await r.post(CHAT, chat(f"turn {n}"))
        await r.hear()
        await calm(r)
        before = await shown(r)
        assert len(before) > 50
        for body in (chat("turn 1"), chat("new"), chat("new", stream=True), chat("x", user="somebody")):
            await asked(r, body, session="s")
        refused = await r.admin.post("/admin/explain", params={"path": CHAT}, json=chat("x", model="none"))
        assert refused.status_code == 404
        assert await shown(r) == before
        await r.post(CHAT, chat("turn 1"))
        assert await shown(r) != before


async def test_a_browser_gets_a_page(router: Any) -> None:
    async with engine() as a, router([a]) as r:
        id = (await r.post(CHAT, chat("x"))).headers["x-warmroute-record"]
        told = (await r.record(id))["why"]
        page = await r.admin.get(f"/admin/records/{id}", headers={"accept": "text/html,*/*;q=0.8"})
        assert page.headers["content-type"].startswith("text/html")
        assert told in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
