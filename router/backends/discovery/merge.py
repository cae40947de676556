"""Merges the lists of several discovery sources into one list of members.

Two sources that list one address mean one instance. The first of them describes it (name, role, credentials); the
pod's uid is taken from any source that provides it; and the instance receives requests only while all of them say
that it accepts. Two sources that give one name to different addresses conflict: the first is used.

A pod that is gone stays gone: a source that `lags` may list the pod's address for a while longer. The source's
listing of that address is ignored until it has dropped the address, or until a pod has the address again.

Most lists differ from the last one in a few of hundreds of instances, many times a second during a rollout. So an
instance that is listed as before costs one comparison, and only ids whose member changed are returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.backends.discovery.discovery import DiscoveredInstance
from router.config import schema


class Listing(NamedTuple):
    """One instance in the list of one source."""

    source: str
    instance: DiscoveredInstance


class Member(NamedTuple):
    """An instance as all sources together describe it."""

    config: schema.InstanceConfig
    uid: str | None
    accepting: bool
    listings: tuple[Listing, ...]  # at least one; the first describes the instance


class Conflict(NamedTuple):
    """A name that a second source gives to another address; the second source's instance is left out."""

    id: str
    first: str
    second: str


class MergedSources:
    """The newest list of each source, and the members that result from merging them. `precedence` has the names of
    the sources in order; the first source that lists an instance describes it.
    """

    def __init__(self, precedence: Sequence[str] = ()) -> None:
        self._precedence = precedence
        self._lists: dict[str, Sequence[DiscoveredInstance]] = {}  # in the order of precedence
        self._pods: set[str] = set()  # addresses of listed pods, while any source lags
        self._gone: set[str] = set()  # addresses of pods that are gone, which a source that lags still lists
        self.members: dict[str, Member] = {}  # by id
        self.conflicts: set[Conflict] = set()

    def update(self, source: str, instances: Sequence[DiscoveredInstance]) -> list[str]:
        """Replace the list of a source. Return the ids whose member is new, changed or gone."""
        lists = self._lists | {source: instances}
        self._lists = {name: lists[name] for name in sorted(lists, key=self._rank)}
        self._find_gone()
        before, self.members, self.conflicts = self.members, {}, set()
        self._merge(before)
        changed = [id for id, old in before.items() if (new := self.members.get(id)) is not old and new != old]
        return changed + [id for id in self.members if id not in before]

    def _rank(self, source: str) -> int:
        return self._precedence.index(source) if source in self._precedence else -1

    def _find_gone(self) -> None:
        lagging = {i.config.url for listed in self._lists.values() for i in listed if i.lags}
        if not lagging:
            self._pods, self._gone = set(), set()
            return
        pods = {i.config.url for listed in self._lists.values() for i in listed if i.uid is not None}
        self._gone = ((self._gone | (self._pods - pods)) & lagging) - pods
        self._pods = pods

    def _merge(self, before: Mapping[str, Member]) -> None:
        members, gone = self.members, self._gone
        ids: dict[str, str] = {}  # by address, of the preceding sources
        for number, (source, listed) in enumerate(self._lists.items(), 1):
            for instance in listed:
                config = instance.config
                if gone and instance.lags and config.url in gone:
                    continue
                id = (ids.get(config.url) if ids else None) or config.id
                known = members.get(id)
                if known is None:
                    old = before.get(id)
                    same = old is not None and len(old.listings) == 1 and old.listings[0] == (source, instance)
                    members[id] = old if old is not None and same else _start(Listing(source, instance))
                elif known.config.url == config.url:
                    members[id] = _add(known, Listing(source, instance))
                else:
                    self.conflicts.add(Conflict(id, known.listings[0].source, source))
            if number < len(self._lists):
                for instance in listed:
                    ids.setdefault(instance.config.url, instance.config.id)


def _start(listing: Listing) -> Member:
    """Return the member for an instance that one source lists."""
    instance = listing.instance
    return Member(instance.config, instance.uid, instance.accepting, (listing,))


def _add(member: Member, listing: Listing) -> Member:
    """Return the member, extended by the listing of another source."""
    uid = member.uid if member.uid is not None else listing.instance.uid
    accepting = member.accepting and listing.instance.accepting
    return Member(member.config, uid, accepting, (*member.listings, listing))
