"""Instances from a YAML file that may change at any time: hand-edited, written by a deployer, or a mounted ConfigMap.

The file is read, not just stat-ed, every `file_poll_s`, and taken for changed when its bytes differ: 20 KB for 200
instances cost 30 us, while times and sizes miss quick rewrites and symlink swaps. Only changed bytes are parsed, and
broken ones again and again, because what is missing may be something that the list refers to.

A broken file (unreadable, not YAML, an unknown key, two instances of one name, empty because somebody is just
writing it) is logged once and shown as `trouble`; the list it had before stands. An empty *list*, `[]`, is a list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from router.config import schema
from router.config.reader import read_instances
from router.errors import ConfigError

log = logging.getLogger("warmroute.discovery")


class FileDiscovery:
    def __init__(self, path: Path | str, poll_s: float) -> None:
        self._path = Path(path)
        self._poll_s = poll_s
        self._seen: bytes | str | None = None  # the bytes last looked at, or why there were none
        self.instances: list[schema.InstanceConfig] | None = None  # as last read without fault; None: not yet
        self.trouble: str | None = None

    async def watch(self) -> AsyncIterator[list[schema.InstanceConfig]]:
        told: list[schema.InstanceConfig] | None = None
        while True:
            # In a thread: parsing a long list takes long enough to be felt in somebody's first token.
            await asyncio.to_thread(self.poll)
            if self.instances is not None and self.instances != told:
                told = self.instances
                yield list(told)
            await asyncio.sleep(self._poll_s)

    def poll(self) -> None:
        """Bring `instances` and `trouble` up to date."""
        content = self._content()
        if content == self._seen and self.trouble is None:
            return
        self._seen = content
        try:
            self.instances = read_instances(self._path)
            self.trouble = None
        except ConfigError as error:
            if self.trouble != str(error):
                self.trouble = str(error)
                log.error("instance list not taken over, the old one stands: %s", error)

    def _content(self) -> bytes | str:
        try:
            return self._path.read_bytes()
        except OSError as error:
            return str(error)
