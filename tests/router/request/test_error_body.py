"""Errors in the client's dialect, whoever refuses."""

from __future__ import annotations

import json

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from router import errors
from router.request.error_body import encode_error, install_error_handlers, speaks_anthropic


def test_openai_shape_names_everything() -> None:
    answer = encode_error(errors.BadRequest("model is missing", param="model", code="missing"))
    assert answer.status == 400
    assert json.loads(answer.body) == {
        "error": {"message": "model is missing", "type": "invalid_request_error", "param": "model", "code": "missing"}
    }
    assert answer.headers == [(b"content-type", b"application/json")]


def test_anthropic_shape_on_messages() -> None:
    answer = encode_error(errors.NotFound("no such model"), anthropic=True)
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "no such model"},
    }


@pytest.mark.parametrize(
    ("refused", "status", "kind"),
    [
        (errors.BadRequest, 400, "invalid_request_error"),
        (errors.Unauthorized, 401, "authentication_error"),
        (errors.NotFound, 404, "not_found_error"),
        (errors.TooLarge, 413, "request_too_large"),
        (errors.TooBusy, 429, "rate_limit_error"),
        (errors.BadGateway, 502, "api_error"),
        (errors.NoTarget, 503, "overloaded_error"),
        (errors.DeadlineExceeded, 504, "timeout_error"),
    ],
)
def test_every_refusal_has_an_anthropic_type(refused: type[errors.RequestRefused], status: int, kind: str) -> None:
    answer = encode_error(refused("x"), anthropic=True)
    assert (answer.status, json.loads(answer.body)["error"]["type"]) == (status, kind)


def test_busy_says_when_to_come_back() -> None:
    assert (b"retry-after", b"3") in encode_error(errors.TooBusy("full", retry_after_s=3)).headers


def test_unauthorized_says_how() -> None:
    assert (b"www-authenticate", b"Bearer") in encode_error(errors.Unauthorized("who?")).headers


@pytest.mark.parametrize(
    ("path", "fields", "anthropic"),
    [
        ("/v1/messages", {}, True),
        ("/v1/messages/count_tokens", {}, True),
        ("/v1/models", {b"anthropic-version": b"2023-06-01"}, True),
        ("/nowhere", {b"anthropic-version": b""}, True),
        ("/v1/chat/completions", {b"x-api-key": b"k"}, False),
        ("/v1/models", {}, False),
    ],
)
def test_whose_dialect_it_is(path: str, fields: dict[bytes, bytes], anthropic: bool) -> None:
    assert speaks_anthropic(path, fields) is anthropic


def app() -> TestClient:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/number/{n}")
    async def number(n: int) -> int:
        raise errors.TooBusy("full", retry_after_s=1)

    @app.get("/crash")
    async def crash() -> int:
        raise ZeroDivisionError

    return TestClient(app, raise_server_exceptions=False)


def test_an_exception_inside_fastapi_has_the_same_shape() -> None:
    answer = app().get("/crash")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/json")
    assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == ("server_error", "internal_error")


def test_refusals_inside_fastapi() -> None:
    answer = app().get("/number/1")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["type"] == "rate_limit_error"


def test_the_frameworks_own_refusals_have_the_same_shape() -> None:
    client = app()
    unknown, wrong_method, invalid = client.get("/nowhere"), client.post("/number/1"), client.get("/number/x")
    assert (unknown.status_code, wrong_method.status_code, invalid.status_code) == (404, 405, 422)
    assert unknown.json()["error"]["type"] == "not_found_error"
    assert wrong_method.headers["allow"] == "GET"
    assert wrong_method.json()["error"]["message"] == "POST /number/1: method not allowed"
    assert invalid.json()["error"]["param"] == "n"
