"""Who can serve what, and whose cache is whose: several models, adapters, ranks and salts behind one router."""

from __future__ import annotations

import asyncio
from typing import Any

from router.lab.emulator.vocabulary import DATA
from tests.fakes.engines import engine, eventually

MODEL = "warm-tiny"


def chat(text: str, model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": f"{text} " * 60}]} | fields


def predicted(record: dict[str, Any]) -> int | None:
    tokens: int | None = record["attempts"][-1]["predicted_tokens"]
    return tokens


async def test_models_are_the_union_of_the_fleet(router: Any) -> None:
    async with (
        engine(loras=("poet=/adapters/poet",)) as a,
        engine() as b,
        engine(model="other") as c,
        router([a, b, c]) as r,
    ):
        told = (await r.http.get("/v1/models")).json()
        direct = (await r.http.get(f"{a.url}/v1/models")).json()
    cards = {card["id"]: card for card in told["data"]}
    assert told["object"] == "list"
    assert set(cards) == {MODEL, "poet", "other"}
    for theirs in direct["data"]:
        ours = cards[theirs["id"]]
        for name in ("id", "object", "owned_by", "root", "parent", "max_model_len"):
            assert ours[name] == theirs[name]
        assert isinstance(ours["created"], int)


async def test_a_request_goes_only_where_its_model_is_served(router: Any) -> None:
    async with (
        engine() as a,
        engine(model="other") as b,
        router([a, b]) as r,
    ):
        for number in range(4):
            answer = await r.post("/v1/chat/completions", chat(f"story {number}", "other"))
            record = await r.record(answer)
            assert (answer.status_code, record["target"]) == (200, f"{b.address}/0")
            assert record["tokens_from"] == "remote"  # no tokenizer is configured for it
            assert record["prompt_tokens"] == record["prompt_tokens_counted"]
        embedded = await r.post("/v1/embeddings", {"model": "other", "input": "x"})
        assert embedded.headers["x-warmroute-target"] == f"{b.address}/0"
        refused = await r.post("/v1/chat/completions", chat("story", "third"))
        assert refused.status_code == 404
        assert MODEL in refused.json()["error"]["message"]
        assert "other" in refused.json()["error"]["message"]
    assert not a.seen("/v1/chat/completions")


async def test_an_adapter_goes_only_where_it_is_loaded_and_has_a_cache_of_its_own(router: Any) -> None:
    async with engine(loras=("poet",)) as a, engine() as b, router([a, b]) as r:
        await r.post("/v1/chat/completions", chat("ode", "poet"))
        await r.hear()
        again = await r.record(await r.post("/v1/chat/completions", chat("ode", "poet")))
        assert again["target"] == f"{a.address}/0"
        assert predicted(again) == again["cached_tokens"] > 0
        assert [row["target"] for row in again["attempts"][0]["candidates"]] == [f"{a.address}/0"]

        base = await r.record(await r.post("/v1/chat/completions", chat("ode")))
        assert not predicted(base)
        assert base["cached_tokens"] == 0


async def test_salts_keep_caches_apart(router: Any) -> None:
    async with engine() as a, router([a]) as r:
        first = await r.record(await r.post("/v1/chat/completions", chat("secret", cache_salt="mine")))
        await r.hear()
        mine = await r.record(await r.post("/v1/chat/completions", chat("secret", cache_salt="mine")))
        theirs = await r.record(await r.post("/v1/chat/completions", chat("secret", cache_salt="theirs")))
        none = await r.record(await r.post("/v1/chat/completions", chat("secret")))
    assert first["cached_tokens"] == 0
    assert predicted(mine) == mine["cached_tokens"] > 0
    assert predicted(theirs) == theirs["cached_tokens"] == 0
    assert predicted(none) == none["cached_tokens"] == 0


async def test_ranks_are_targets_of_their_own(router: Any) -> None:
    """Each rank has a cache, a stream and a place in the header that only the router sets."""
    async with engine(ranks=2) as a, router([a]) as r:
        sent: dict[str, str] = {}
        for number in range(6):
            answer = await r.post("/v1/chat/completions", chat(f"tale {number}"), headers={"x-data-parallel-rank": "1"})
            sent[f"tale {number}"] = answer.headers["x-warmroute-target"]
            rank = a.seen("/v1/chat/completions")[-1].headers["x-data-parallel-rank"]
            assert sent[f"tale {number}"] == f"{a.address}/{rank}"
        assert set(sent.values()) == {f"{a.address}/0", f"{a.address}/1"}
        await r.hear()
        for text, target in sent.items():
            record = await r.record(await r.post("/v1/chat/completions", chat(text)))
            assert record["target"] == target
            assert predicted(record) == record["cached_tokens"] > 0
        told = (await r.instances())[a.address]["targets"]
        assert [target["rank"] for target in told] == [0, 1]
        assert all(target["stream"]["blocks"]["gpu"] > 0 for target in told)


async def test_an_engine_without_ranks_gets_no_rank_header(router: Any) -> None:
    async with engine() as a, router([a]) as r:
        await r.post("/v1/chat/completions", chat("tale"), headers={"x-data-parallel-rank": "0"})
        assert "x-data-parallel-rank" not in a.seen("/v1/chat/completions")[-1].headers


async def test_without_a_tokenizer_the_engine_is_asked_and_hits_are_still_predicted(router: Any) -> None:
    async with engine() as a, engine() as b, router([a, b], tokenizers={}) as r:
        first = await r.record(await r.post("/v1/chat/completions", chat("far")))
        await r.hear()
        again = await r.record(await r.post("/v1/chat/completions", chat("far")))
    assert (first["tokens_from"], again["tokens_from"]) == ("remote", "remote")
    assert again["target"] == first["target"]
    assert again["prompt_tokens_counted"] == again["prompt_tokens"]
    assert predicted(again) == again["cached_tokens"] > 0


async def test_a_wrong_template_is_found_out_before_it_predicts_anything(router: Any, tmp_path: Any) -> None:
    """The comparison at the start sees that ours renders otherwise; from then on the engine is asked."""
    template = tmp_path / "other.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    wrong = {MODEL: {"path": str(DATA), "chat_template": str(template)}}
    async with engine() as a, router([a], tokenizers=wrong, wait=False) as r:
        await eventually(lambda: r.app.core.tokenization.report()[MODEL].refuted)
        record = await r.record(await r.post("/v1/chat/completions", chat("x")))
        assert record["tokens_from"] == "remote"
        assert record["prompt_tokens_counted"] == record["prompt_tokens"]
        assert await r.metric("warmroute_tokenizer_mismatches_total", model=MODEL) >= 1


async def test_engines_of_different_block_sizes_mix(router: Any) -> None:
    async with engine(block_tokens=16) as a, engine(block_tokens=64) as b, router([a, b]) as r:
        # All at once: their queues spread them. One by one, who has the first would be liked for all that begin alike.
        await asyncio.gather(*(r.post("/v1/chat/completions", chat(f"mix {number}")) for number in range(6)))
        await r.hear()
        targets = set()
        for number in range(6):
            record = await r.record(await r.post("/v1/chat/completions", chat(f"mix {number}")))
            targets.add(record["target"])
            assert predicted(record) == record["cached_tokens"] > 0
        assert targets == {f"{a.address}/0", f"{b.address}/0"}
