"""What goes wrong between a command and the admin API, in one line each."""

from __future__ import annotations

import socket

import pytest

from router.cli.admin.client import AdminClient
from router.errors import ConfigError, NotFound, WarmrouteError
from router.lab.emulator.http_server import EmulatorListener
from router.request.error_body import encode_error
from tests.router.cli.admin.conftest import Running


def test_nobody_listens() -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(WarmrouteError) as refused:
            AdminClient(url).get("policies")
    assert (
        str(refused.value)
        == f"--admin: cannot connect to {url}: connection refused; is it the router's admin.host and admin.port?"
    )


@pytest.mark.parametrize("url", ["http://[", "http://a:b", "http://a:0", "http:///x"])
def test_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--admin: found .*, wanted a URL like http://127\.0\.0\.1:8001"):
        AdminClient(url)


@pytest.mark.parametrize(
    ("url", "found"), [("127.0.0.1:8001", "found no scheme"), ("ftp://a", "found the scheme ftp://")]
)
def test_a_url_of_no_web_server(url: str, found: str) -> None:
    with pytest.raises(ConfigError, match=f"--admin: {found}, wanted http:// or https://"):
        AdminClient(url)


def test_a_token_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="--token-env: the environment variable MY_TOKEN is not set"):
        AdminClient("http://127.0.0.1:1", "MY_TOKEN")


def test_tokens_and_rights(guarded_router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WarmrouteError, match=r"an admin token is needed.*\(see --token-env\)"):
        AdminClient(guarded_router.url).get("policies")
    monkeypatch.setenv("MY_TOKEN", "eye-token")
    client = AdminClient(guarded_router.url, "MY_TOKEN")
    assert client.get("policies")["active"] == "near"
    with pytest.raises(WarmrouteError, match='this token has no right to "write"'):
        client.post(None, "undo")


def test_what_was_typed_wrong_is_told_apart(router: Running) -> None:
    client = AdminClient(router.url + "/")
    with pytest.raises(ConfigError, match='unknown policy "fra": did you mean "far"'):
        client.text("policies", "fra")
    with pytest.raises(ConfigError, match="policy new:1: the text is empty"):
        client.put("", "policies", "new")
    with pytest.raises(WarmrouteError, match="there is no switch left to undo") as refused:
        client.post(None, "undo")
    assert not isinstance(refused.value, ConfigError)


def test_an_endpoint_of_a_feature_that_the_router_does_not_have(router: Running) -> None:
    with pytest.raises(ConfigError) as refused:
        AdminClient(router.url).get("usage")
    missing = f"the router at {router.url} has no GET /admin/usage"
    assert str(refused.value).startswith(f"{missing}: it counts usage where `clients` identifies tenants")


PUBLIC = encode_error(NotFound("GET /admin/policies is not served here", code="unknown_path")).body


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(200, b"hello", id="another program"),
        pytest.param(404, PUBLIC, id="the public listener"),
        pytest.param(404, encode_error(NotFound("GET /admin/policies: not found")).body, id="the metrics listener"),
        pytest.param(404, b'{"detail": "Not Found"}', id="a program of FastAPI"),
        pytest.param(404, b'{"error": {"message": "Not Found", "code": 404}}', id="vLLM"),
    ],
)
def test_somebody_else_listens(router: Running, status: int, body: bytes) -> None:
    async def other(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": body})  # type: ignore[operator]

    listener = router.portal.wrap_async_context_manager(EmulatorListener(other, "127.0.0.1", 0))  # type: ignore[arg-type]
    with listener as listening, pytest.raises(ConfigError) as refused:
        AdminClient(listening.url).get("policies")
    found = f"--admin: what answers at {listening.url} is not the admin API of a router"
    assert str(refused.value).startswith(f"{found}, wanted its `admin.host` and `admin.port`")
