"""Keeps the keys of clients up to date: the file of API keys, and the public keys by which signed tokens are
verified.

Files are read, not only stat-ed, every `POLL_S`, and count as changed when their bytes differ, because times and
sizes miss quick rewrites and symlink swaps. A file that cannot be read or parsed changes nothing and is only
logged, so that a slip in an editor locks nobody out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from router.config.reader import MAX_KEYS_BYTES
from router.config.sections.clients import ClientsConfig, JwtConfig
from router.config.yaml_source import read_bytes
from router.errors import ConfigError
from router.tasks import Tasks
from router.tenants.directory import TenantDirectory

if TYPE_CHECKING:
    from router.tenants.tokens import TokenVerifier

log = logging.getLogger("warmroute.clients")

POLL_S = 5.0
AGAIN_S = 10.0  # before a new fetch after one that failed, or that lacked the key of a token
FETCH_TIMEOUT_S = 10.0
MAX_JWKS_BYTES = 1024 * 1024


class WatchedFile:
    """A file whose content is passed to `use` at first and whenever it changes. `name`: the name of its setting."""

    def __init__(self, name: str, path: str, use: Callable[[bytes, str], None]) -> None:
        self._name = name
        self._path = Path(path)
        self._use = use
        self._content = b""  # in use
        self._refused: tuple[bytes, ConfigError] | None = None  # not parsed again until it changes
        self._trouble = ""

    def load(self) -> bool:
        """Read the file; return whether it has changed. Raises ConfigError."""
        content = read_bytes(self._path, MAX_KEYS_BYTES)
        if self._refused is not None and content == self._refused[0]:
            raise self._refused[1]
        if content == self._content:
            return False
        try:
            self._use(content, str(self._path))
        except ConfigError as error:
            self._refused = content, error
            raise
        self._content, self._refused = content, None
        return True

    def refresh(self) -> None:
        """Read the file again; log a change, and log each error once."""
        try:
            changed = self.load()
        except ConfigError as error:
            if str(error) != self._trouble:
                log.error("%s: the keys read before stay in use: %s", self._name, error)
            self._trouble = str(error)
            return
        if changed:
            log.info("%s: the changed keys are in use", self._name)
        elif self._trouble:
            log.info("%s: readable again, and unchanged", self._name)
        self._trouble = ""


class ClientKeys:
    """Builds the `directory` of tenants, and keeps their keys up to date once started. `salt_key` is the one from
    `derive_salt_key`. Raises ConfigError for files that cannot be used.
    """

    def __init__(self, config: ClientsConfig, salt_key: bytes) -> None:
        self._verifier = verifier = None if config.jwt is None else build_verifier(config.jwt)
        self._fetched = config.jwt if config.jwt is not None and config.jwt.jwks_url is not None else None
        self._wanted = asyncio.Event()  # set when a token is signed with an unknown key
        self._files: list[WatchedFile] = []
        isolates = config.isolation == "tenant"
        self.directory = directory = TenantDirectory(config, verifier, salt_key if isolates else None)
        if config.keys_file is not None:
            self._files.append(WatchedFile("clients.keys_file", config.keys_file, directory.set_keys))
        if verifier is not None:
            verifier.on_unknown_key = self._wanted.set
            if config.jwt is not None and config.jwt.jwks_file is not None:
                self._files.append(WatchedFile("clients.jwt.jwks_file", config.jwt.jwks_file, verifier.set_keys))
        for file in self._files:
            file.load()

    def start(self, tasks: Tasks) -> None:
        """Keep all keys up to date from now on."""
        if self._files:
            tasks.supervise("client keys", self._follow_files)
        if self._verifier is not None and self._fetched is not None:
            tasks.supervise("issuer keys", partial(self._follow_url, self._fetched, self._verifier))

    async def _follow_files(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            for file in self._files:
                await asyncio.to_thread(file.refresh)  # the file may be on a slow disk

    async def _follow_url(self, config: JwtConfig, verifier: TokenVerifier) -> None:
        url = config.jwks_url or ""
        trouble: str | None = None
        while True:
            self._wanted.clear()
            try:
                await asyncio.to_thread(verifier.set_keys, await fetch_jwks(url), url)  # a megabyte takes 0.3 s
            except ConfigError as error:
                if str(error) != trouble:
                    log.error("clients.jwt.jwks_url: trying again every %g s: %s", AGAIN_S, error)
                trouble = str(error)
                await asyncio.sleep(AGAIN_S)
                continue
            if trouble is not None:
                log.info("clients.jwt.jwks_url: the issuer's keys are loaded")
                trouble = None
            await asyncio.sleep(min(AGAIN_S, config.refresh_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, config.refresh_s - AGAIN_S)):
                    await self._wanted.wait()


def build_verifier(config: JwtConfig) -> TokenVerifier:
    """Build the verifier of tokens. PyJWT is loaded only here."""
    from router.tenants.tokens import TokenVerifier

    return TokenVerifier(config)


async def fetch_jwks(url: str) -> bytes:
    """Return the content at `url`, which must be sent plain: a compressed megabyte may stand for a gigabyte. Raises
    ConfigError.
    """
    found = bytearray()
    try:
        async with (
            asyncio.timeout(FETCH_TIMEOUT_S),
            httpx.AsyncClient(timeout=FETCH_TIMEOUT_S, headers={"accept-encoding": "identity"}) as http,
            http.stream("GET", url) as answer,
        ):
            answer.raise_for_status()
            async for piece in answer.aiter_raw():
                found += piece
                if len(found) > MAX_JWKS_BYTES:
                    raise ConfigError(f"{url}: more than {MAX_JWKS_BYTES:,} bytes")
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: {type(error).__name__}: {error}") from error
    except TimeoutError:
        raise ConfigError(f"{url}: no whole answer within {FETCH_TIMEOUT_S:g} s") from None
    return bytes(found)
