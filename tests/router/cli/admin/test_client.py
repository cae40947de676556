"""What goes wrong between a command and the admin API, in one line each."""

from __future__ import annotations

import socket

import pytest

from router.cli.admin.client import AdminClient
from router.errors import ConfigError, WarmrouteError
from router.lab.emulator.http_server import EmulatorListener
from tests.router.cli.admin.conftest import Running


def test_nobody_listens() -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(WarmrouteError) as refused:
            AdminClient(url).get("policies")
    assert (
        str(refused.value)
        == f"cannot connect to {url}: connection refused; check that a router is running, and --admin"
    )


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "ftp://a", "http://[", "http://a:b", "http://a:0", "http:///x"])
def test_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--admin: found .*, wanted a URL like http://127\.0\.0\.1:8001"):
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


def test_somebody_else_listens(router: Running) -> None:
    async def other(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"hello"})  # type: ignore[operator]

    listener = router.portal.wrap_async_context_manager(EmulatorListener(other, "127.0.0.1", 0))  # type: ignore[arg-type]
    with listener as listening, pytest.raises(WarmrouteError, match="does not answer like an admin API of warmroute"):
        AdminClient(listening.url).get("policies")
