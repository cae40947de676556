"""The TLS certificate of a listener, read again when its files change, so that a renewal needs no restart."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from router.config.pem_files import PemFault, load_pair
from router.config.sections.listeners import TlsConfig
from router.errors import ConfigError

log = logging.getLogger("warmroute.tls")

POLL_S = 5.0

FileIdentity = tuple[int, int, int]  # inode, size, nanoseconds of the last change


class Certificates:
    """`context` is for handshakes that begin now. Raises `ConfigError` for files that cannot be used."""

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._read = self._identify()
        self.context = self._load()

    async def follow(self) -> None:
        """Refresh every few seconds, until cancelled, in a thread, because a file may be on a slow disk."""
        while True:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Load the files again if they have changed. A key and certificate that do not match change nothing and are
        only logged.
        """
        found = self._identify()
        if found == self._read:
            return
        self._read = found
        try:
            self.context = self._load()
        except ConfigError as error:
            log.error("%s; the certificate read before stays in use", error)
        else:
            log.info("new connections get the changed certificate in %s", self._tls.cert_file)

    def _identify(self) -> tuple[FileIdentity | None, FileIdentity | None]:
        return _identify(self._tls.cert_file), _identify(self._tls.key_file)

    def _load(self) -> ssl.SSLContext:
        loaded = load_pair(self._tls.cert_file, self._tls.key_file)
        if isinstance(loaded, PemFault):
            raise ConfigError(f"tls.{loaded.key}: {loaded.text}")
        return loaded


def _identify(file: str) -> FileIdentity | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
