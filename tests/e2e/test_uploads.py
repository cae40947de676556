"""Uploads (multipart/form-data) over real sockets: each reaches an engine of the model that its form names."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.engines import FakeEngine, engine

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
EDGE = {"extra_endpoints": [{"path": path} for path in PATHS]}
SOUND = bytes(range(256)) * 64
speech = partial(engine, transcribes=True)


def upload(model: str | None, *, model_first: bool = False, boundary: str = "b0undary", quoted: bool = False) -> Any:
    """Return the content and headers of an upload, as clients write them."""
    named = f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode()
    file = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'.encode()
    file += b"Content-Type: audio/wav\r\n\r\n" + SOUND + b"\r\n"
    parts = [file] if model is None else [named, file] if model_first else [file, named]
    kind = f'multipart/form-data; boundary="{boundary}"' if quoted else f"multipart/form-data; boundary={boundary}"
    return {"content": b"".join(parts) + f"--{boundary}--\r\n".encode(), "headers": {"content-type": kind}}


def uploads(fake: FakeEngine) -> int:
    return sum(len(fake.seen(path)) for path in PATHS)


@pytest.mark.parametrize("path", PATHS)
async def test_twenty_uploads_reach_the_engines_of_their_models(router: Any, path: str) -> None:
    async with (
        speech() as a,
        speech(model="whisper") as b,
        router([a, b], edge=EDGE) as r,
    ):
        for model in ("warm-tiny", "whisper"):
            ways = [{"model_first": n % 2 == 0, "quoted": n % 3 == 0} for n in range(10)]
            answers = await asyncio.gather(*(r.http.post(path, **upload(model, **way)) for way in ways))
            assert [answer.status_code for answer in answers] == [200] * 10, answers[0].text
            assert all(answer.json()["text"] == f"{len(SOUND)} bytes of sound" for answer in answers)
            assert (await r.record(answers[0]))["model"] == model
        assert (uploads(a), uploads(b)) == (10, 10)
        by_client = await r.http.post(path, files={"file": ("a.wav", SOUND)}, data={"model": "whisper"})
        assert (by_client.status_code, uploads(b)) == (200, 11)


async def test_an_unknown_model_is_404_as_of_a_json_body(router: Any) -> None:
    async with (
        speech() as a,
        speech(model="whisper") as b,
        router([a, b], edge=EDGE) as r,
    ):
        refused = await r.http.post(PATHS[0], **upload("nope"))
        assert refused.status_code == 404
        assert refused.json() == (await r.post("/v1/embeddings", {"model": "nope", "input": "x"})).json()
        assert (uploads(a), uploads(b)) == (0, 0)


async def test_an_upload_without_a_model_goes_anywhere_unchanged(router: Any) -> None:
    async with speech() as a, router([a], edge=EDGE) as r:
        sent = upload(None)
        assert (await r.http.post(PATHS[0], **sent)).status_code == 200
        assert a.seen(PATHS[0])[0].body == sent["content"]


async def test_what_is_no_form_is_refused(router: Any) -> None:
    async with speech() as a, router([a], edge=EDGE) as r:
        sent = upload("warm-tiny")
        refused = await r.http.post(PATHS[0], content=sent["content"][:-8], headers=sent["headers"])
        assert (refused.status_code, uploads(a)) == (400, 0)


@pytest.mark.parametrize("model_first", [True, False])
async def test_an_alias_is_replaced_in_the_form(router: Any, model_first: bool) -> None:
    aliases = {"ear": {"to": "whisper-large-v3", "defaults": {"temperature": 0.5}, "caps": {"max_tokens": 3}}}
    async with (
        speech(model="whisper-large-v3") as a,
        speech() as b,
        router([a, b], edge=EDGE, models=aliases) as r,
    ):
        answer = await r.http.post(PATHS[0], **upload("ear", model_first=model_first))
        assert answer.status_code == 200
        (got,) = a.seen(PATHS[0])
        assert got.body == upload("whisper-large-v3", model_first=model_first)["content"]
        assert int(got.headers["content-length"]) == len(got.body)
        record = await r.record(answer)
        assert (record["alias"], record["model"]) == ("ear", "whisper-large-v3")


async def test_a_tenant_uploads_to_its_models_alone_and_with_its_priority(router: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(b'k').hexdigest()} somebody")
    classes = {"default": {"models": ["whisper"], "highest_priority": 5}}
    clients = {"keys_file": str(keys), "service_classes": classes}
    async with (
        speech() as a,
        speech(model="whisper") as b,
        router([a, b], edge=EDGE, clients=clients) as r,
    ):

        async def send(model: str | None) -> httpx.Response:
            sent = upload(model)
            answer: httpx.Response = await r.http.post(
                PATHS[0], **(sent | {"headers": sent["headers"] | {"x-api-key": "k"}})
            )
            return answer

        assert (await send("whisper")).status_code == 200
        assert (await send("warm-tiny")).status_code == 403
        assert (await send(None)).status_code == 400, "no model is got by not naming it"
        assert (uploads(a), uploads(b)) == (0, 1)
