"""Keeps the objects of one collection up to date by list and watch, like the Reflector of client-go.

    list    all objects, in pages                     at first; every `relist_s`, so that the effect of a lost event
                                                      does not last longer; and whenever a watch cannot continue
    watch   changes since the list's version          the server ends each watch after `watch_s`, and the next one
                                                      continues from the last version, which bookmarks keep fresh
    410     "too old resource version"                the version is dropped: list again, at once the first time.
                                                      410 arrives as a status, or as an event in an answer of 200
    silent  nothing by `watch_s` + `grace_s`           the connection may be dead: list again
    else    no answer, an error                       again after a pause that doubles, with jitter, or `Retry-After`

Whatever fails, the objects stay as they were last known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from router.backends.discovery.kubernetes.api import ApiRefused, ApiUnavailable, KubernetesApi
from router.backends.discovery.kubernetes.objects import (
    ApiStatus,
    BookmarkObject,
    ObjectMetadata,
    ObjectPage,
    WatchEvent,
)
from router.backends.feeds.jitter import Jitter
from router.clock import Clock
from router.errors import WarmrouteError

log = logging.getLogger("warmroute.discovery")

GONE = 410
PAGE_OBJECTS = 100  # decoding a page takes a millisecond, during which requests wait
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
SHORT_WATCH_S = 1.0  # a watch that ends sooner has failed, whatever its status
KEEPS_VERSION = frozenset({401, 403, 429, 500, 502, 503})  # refusals after which the watch may continue


class KubernetesObject(Protocol):
    @property
    def metadata(self) -> ObjectMetadata: ...


T = TypeVar("T", bound=KubernetesObject)


class WatchTiming(NamedTuple):
    """Times of lists and watches, seconds."""

    watch_s: float = 30.0  # after which the server ends a watch
    grace_s: float = 5.0  # how much longer a watch may stay silent before it counts as dead
    relist_s: float = 300.0  # between two lists


class VersionExpired(WarmrouteError):
    """The API server no longer has the changes since this version: list again."""


class Reflector(Generic[T]):
    """The objects of the collection at `path` that `query` selects. `on_change` is called after each change of
    `objects`.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        query: dict[str, str],
        kind: type[T],
        clock: Clock,
        jitter: Jitter,
        on_change: Callable[[], None],
        timing: WatchTiming | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._query = query
        self._decode: Callable[[msgspec.Raw], T] = msgspec.json.Decoder(kind).decode
        self._clock = clock
        self._jitter = jitter
        self._on_change = on_change
        self._timing = timing or WatchTiming()
        self._version: str | None = None  # None: list first
        self._relist_at = 0.0
        self.objects: dict[str, T] | None = None  # by uid; None: not listed yet
        self.trouble: str | None = None
        self.confirmed_at: float | None = None
        self.lists = 0

    async def run(self) -> None:
        """List and watch, forever."""
        failures = 0
        while True:
            pause_s: float | None = None
            started = self._clock.now()
            try:
                if self._version is None or started >= self._relist_at:
                    await self._list()
                await self._follow()
                if self._clock.now() - started >= SHORT_WATCH_S:
                    failures = 0
                    continue
            except VersionExpired:
                self._version = None
                if failures == 0:  # usual after the API server was restarted
                    failures = 1
                    continue
            except ApiRefused as error:
                if error.status not in KEEPS_VERSION:
                    self._version = None
                pause_s = error.retry_after_s
                self._fail(str(error))
            except ApiUnavailable as error:
                self._fail(str(error))
            failures += 1
            longest_s = min(FIRST_PAUSE_S * 2.0 ** min(failures, 20), LONGEST_PAUSE_S)
            await asyncio.sleep(max(pause_s or 0.0, longest_s * (0.5 + 0.5 * self._jitter.share())))

    async def _list(self) -> None:
        """Replace all objects with the API server's current ones."""
        objects: dict[str, T] = {}
        query = self._query | {"limit": str(PAGE_OBJECTS)}
        page_token: str | None = None
        while True:
            more = {} if page_token is None else {"continue": page_token}
            try:
                body = await self._api.get(self._path, query | more)
            except ApiRefused as error:
                if error.status == GONE:  # the list took so long that its pages expired
                    raise VersionExpired from error
                raise
            try:
                page = msgspec.json.decode(body, type=ObjectPage)
                for found in map(self._decode, page.items):
                    known = (self.objects or {}).get(found.metadata.uid)
                    objects[found.metadata.uid] = known if known is not None and known == found else found
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ApiUnavailable(f"a list that cannot be read: {error}") from error
            page_token = page.metadata.next_page
            if not page_token:
                break
        self._version = page.metadata.resource_version
        self._relist_at = self._clock.now() + self._jitter.around(self._timing.relist_s)
        self.lists += 1
        self._confirm()
        if objects != self.objects:
            self.objects = objects
            self._on_change()

    async def _follow(self) -> None:
        """Apply events until the watch ends. Raises VersionExpired, ApiRefused or ApiUnavailable."""
        timing = self._timing
        query = self._query | {
            "watch": "1",
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(timing.watch_s))),
        }
        until = self._clock.now() + timing.watch_s + timing.grace_s
        try:
            async with self._api.watch(self._path, query) as lines:
                self._confirm()
                try:
                    while (found := await lines.next(until - self._clock.now())) is not None:
                        self._confirm()
                        if self._apply_all(found):
                            self._on_change()
                except TimeoutError:
                    log.info("discovery.kubernetes: the watch of %s fell silent: listing again", self._path)
                    self._version = None
                except ApiUnavailable as error:  # the next watch continues from here, or reports the trouble
                    log.debug("discovery.kubernetes: the watch of %s broke off: %s", self._path, error)
        except ApiRefused as error:
            if error.status == GONE:
                raise VersionExpired from error
            raise

    def _apply_all(self, lines: list[bytes]) -> bool:
        """Apply one event per line. Return whether any object changed."""
        changed = False
        for line in lines:
            try:
                changed |= self._apply(msgspec.json.decode(line, type=WatchEvent))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._version = None  # the event's change is lost
                raise ApiRefused(0, f"an event that cannot be read: {error}") from error
        return changed

    def _apply(self, event: WatchEvent) -> bool:
        """Apply an event. Return whether an object changed. Raises VersionExpired and ApiRefused for an error."""
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=ApiStatus)
            if status.code == GONE:
                raise VersionExpired
            raise ApiRefused(status.code, status.message)
        if event.type == "BOOKMARK":
            self._version = msgspec.json.decode(event.object, type=BookmarkObject).metadata.resource_version
            return False
        found = self._decode(event.object)
        objects = self.objects = self.objects if self.objects is not None else {}
        uid = found.metadata.uid
        if event.type == "DELETED":
            changed = objects.pop(uid, None) is not None
        else:
            changed = objects.get(uid) != found
            objects[uid] = found
        self._version = found.metadata.resource_version
        return changed

    def _confirm(self) -> None:
        """Note that the API server answered."""
        self.confirmed_at = self._clock.now()
        if self.trouble is not None:
            log.info("discovery.kubernetes: the API server answers again for %s", self._path)
            self.trouble = None

    def _fail(self, trouble: str) -> None:
        if self.trouble is None:
            log.warning("discovery.kubernetes: %s: %s: the previous list stays in force", self._path, trouble)
        self.trouble = trouble
