"""The lists of several discovery sources as one list of members.

Two sources that list one address mean one instance. The first of them describes it (name, role, credentials); the pod's
uid counts whichever source knows it, and it gets requests only while all of them say so. Two sources that give one name
to different addresses disagree: the first is used.
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
    listings: tuple[Listing, ...]  # at least one; the first describes it


class Conflict(NamedTuple):
    """A name that a second source gives to another address, which is left out."""

    id: str
    first: str
    second: str


class MergedList(NamedTuple):
    members: dict[str, Member]  # by id
    conflicts: set[Conflict]


def merge_lists(lists: Mapping[str, Sequence[DiscoveredInstance]]) -> MergedList:
    """Merge the lists by source, in the order of precedence."""
    members: dict[str, Member] = {}
    conflicts: set[Conflict] = set()
    ids: dict[str, str] = {}  # by address, of the sources before
    for source, listed in lists.items():
        for instance in listed:
            config = instance.config
            listing = Listing(source, instance)
            id = ids.get(config.url) or config.id
            known = members.get(id)
            if known is None:
                members[id] = Member(config, instance.uid, instance.accepting, (listing,))
            elif known.config.url == config.url:
                uid = known.uid if known.uid is not None else instance.uid
                accepting = known.accepting and instance.accepting
                members[id] = Member(known.config, uid, accepting, (*known.listings, listing))
            else:
                conflicts.add(Conflict(id, known.listings[0].source, source))
        for instance in listed:
            ids.setdefault(instance.config.url, instance.config.id)
    return MergedList(members, conflicts)
