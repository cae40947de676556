"""Keys of clients from files and from an issuer's address, as they change."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.backends import client_keys
from router.backends.client_keys import ClientKeys, WatchedFile, fetch_jwks
from router.config.sections.clients import ClientsConfig
from router.errors import ConfigError, NoTarget, Unauthorized
from router.tasks import Tasks
from router.tenants.isolation import derive_salt_key
from tests.fakes.engines import eventually
from tests.router.tenants.issuer import AUDIENCE, ISSUER, Issuer

LOG = "warmroute.clients"


class KeyServer:
    """An issuer's web server: `answers` is what it sends next."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.coding = "identity"
        self.dripped = 0  # bytes that come one by one
        self.requests = self.ended = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        length = len(self.body) + self.dripped
        lines = f"HTTP/1.1 {self.status} X", f"content-length: {length}", f"content-encoding: {self.coding}"
        writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode() + self.body)
        await writer.drain()
        for _ in range(self.dripped):
            writer.write(b" ")
            try:
                async with asyncio.timeout(0.02):
                    await reader.read()  # until the client has left
            except TimeoutError:
                continue
            except ConnectionResetError:  # as above, with bytes that it has not read
                pass
            break
        writer.close()
        self.ended += 1


@asynccontextmanager
async def key_server() -> AsyncIterator[KeyServer]:
    made = KeyServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks.json"
    async with server:
        yield made


@asynccontextmanager
async def followed(**clients: Any) -> AsyncIterator[ClientKeys]:
    tasks = Tasks("test")
    keys = ClientKeys(ClientsConfig.model_validate(clients), derive_salt_key(1))
    keys.start(tasks)
    yield keys
    await tasks.close()


def watched(tmp_path: Path, use: Callable[[bytes, str], None]) -> tuple[Path, WatchedFile]:
    path = tmp_path / "keys"
    path.write_bytes(b"one")
    return path, WatchedFile("clients.keys_file", str(path), use)


def test_a_file_is_used_when_it_changes(tmp_path: Path) -> None:
    used: list[bytes] = []
    path, file = watched(tmp_path, lambda content, where: used.append(content))
    assert (file.load(), file.load()) == (True, False)
    path.write_bytes(b"two")
    file.refresh()
    file.refresh()
    assert used == [b"one", b"two"]


def test_trouble_with_a_file_is_said_once_and_its_end_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def use(content: bytes, where: str) -> None:
        if content == b"broken":
            raise ConfigError(f"{where}: broken")

    caplog.set_level(logging.INFO, LOG)
    path, file = watched(tmp_path, use)
    file.load()
    path.write_bytes(b"broken")
    file.refresh()
    file.refresh()
    path.unlink()
    file.refresh()
    path.write_bytes(b"one")
    file.refresh()
    file.refresh()
    said = [record.getMessage().partition(f" {path}")[0] for record in caplog.records]
    stays = "clients.keys_file: the keys read before stay in use:"
    assert said == [stays, stays, "clients.keys_file: readable again, and unchanged"]


def test_files_that_cannot_be_used_at_the_start_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nobody yet\n")
    with pytest.raises(ConfigError, match="found no key, so nobody could send requests"):
        ClientKeys(ClientsConfig(keys_file=str(tmp_path / "empty")), derive_salt_key(1))
    with pytest.raises(ConfigError, match=": no such file"):
        ClientKeys(ClientsConfig(keys_file=str(tmp_path / "none")), derive_salt_key(1))


def identify(keys: ClientKeys, token: str) -> str:
    fields = {b"authorization": b"Bearer " + token.encode()}
    return keys.directory.identify(fields, trusted=False, now_wall_s=0.0).name


async def test_an_issuers_keys_are_fetched_and_fetched_again_for_a_new_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_keys, "AGAIN_S", 0.02)
    caplog.set_level(logging.INFO, LOG)
    old, new = Issuer("old"), Issuer("new")
    async with key_server() as server:
        server.status = 503
        jwt = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": server.url}
        async with followed(jwt=jwt) as keys:
            await eventually(lambda: "trying again every" in caplog.text)
            with pytest.raises(NoTarget):
                identify(keys, old.token("team"))
            server.status, server.body = 200, old.jwks()
            await eventually(lambda: "the issuer's keys are loaded" in caplog.text)
            assert identify(keys, old.token("team")) == "team"
            before, server.body = server.requests, new.jwks()
            with pytest.raises(Unauthorized):
                identify(keys, new.token("team"))
            await eventually(lambda: server.requests == before + 1)  # long before refresh_s
            await eventually(lambda: "new" in keys._verifier._keys)  # type: ignore[union-attr]
            assert identify(keys, new.token("team")) == "team"
    assert caplog.text.count("trying again every") == 1


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_keys, "FETCH_TIMEOUT_S", 1.0)
    async with key_server() as server:
        server.dripped = 500
        with pytest.raises(ConfigError, match=r"no whole answer within 1 s"):
            await fetch_jwks(server.url)
        await eventually(lambda: server.ended == server.requests)


async def test_nothing_that_is_fetched_is_decompressed() -> None:
    """200 MB of spaces fit into less than is read."""
    pack = zlib.compressobj(wbits=31)
    async with key_server() as server:
        server.coding = "gzip"
        server.body = b"".join([*(pack.compress(b" " * (1 << 20)) for _ in range(200)), pack.flush()])
        assert await fetch_jwks(server.url) == server.body


async def test_what_is_fetched_is_bounded() -> None:
    async with key_server() as server:
        server.body = b" " * (client_keys.MAX_JWKS_BYTES + 1)
        with pytest.raises(ConfigError, match="more than 1,048,576 bytes"):
            await fetch_jwks(server.url)
    with pytest.raises(ConfigError, match="ConnectError"):
        await fetch_jwks(server.url)
