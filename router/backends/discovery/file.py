"""Instances from a YAML file that may change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from router.backends.discovery.discovery import DiscoveredInstance
from router.clock import Clock
from router.config import schema
from router.config.reader import ListedInstances, load_instances
from router.config.yaml_source import read_bytes
from router.errors import ConfigError

log = logging.getLogger("warmroute.discovery")


class FileDiscovery:
    """Instances from a YAML file that is edited, written by a deployment, or a mounted ConfigMap.

    The file is read, not only stat-ed, every `file_poll_s`, and counts as changed when its bytes differ: 20 KB for
    200 instances cost 30 us, while times and sizes miss quick rewrites and symlink swaps. Unchanged bytes are not
    parsed again; if something that the list refers to is missing, only the missing part is looked for again. A
    broken file (unreadable, not YAML, an unknown key, two instances of one name, empty in the middle of a write) is
    logged once and reported as `trouble`. An empty *list*, `[]`, is valid.
    """

    def __init__(self, path: Path | str, poll_s: float, clock: Clock) -> None:
        self._path = Path(path)
        self._poll_s = poll_s
        self._clock = clock
        self._seen: bytes | str | None = None  # the last bytes read, or the error
        self._list: ListedInstances | None = None  # parsed from these bytes; None: not a list of instances
        self.instances: list[schema.InstanceConfig] | None = None  # the last valid list; None: none yet
        self.trouble: str | None = None
        self.confirmed_at: float | None = None

    async def watch(self) -> AsyncIterator[list[DiscoveredInstance]]:
        """Yield the list after every change."""
        last: list[schema.InstanceConfig] | None = None
        while True:
            # In a thread: parsing a long list would delay the first tokens of requests.
            await asyncio.to_thread(self.poll)
            if self.instances is not None and self.instances != last:
                last = self.instances
                yield [DiscoveredInstance(config, str(self._path)) for config in last]
            await asyncio.sleep(self._poll_s)

    def poll(self) -> None:
        """Read the file and update `instances` and `trouble`."""
        content = self._content()
        changed = content != self._seen
        try:
            if changed:
                self._seen, self._list = content, None
                self._list = load_instances(self._path)
            if self._list is not None and (changed or self.trouble is not None):
                self.instances = self._list.resolve()
                self.trouble = None
            if self.trouble is None:
                self.confirmed_at = self._clock.now()
        except ConfigError as error:
            if self.trouble != str(error):
                self.trouble = str(error)
                log.error("discovery.file: instance list not loaded, the previous list stays in force: %s", error)

    def _content(self) -> bytes | str:
        try:
            return read_bytes(self._path)
        except ConfigError as error:
            return str(error)
