"""A network namespace per router, on two networks: for clients and engines, and for what routers tell each other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from router.errors import WarmrouteError


class NamespacesUnavailable(WarmrouteError):
    """They need Linux, root, and ip(8)."""


class Place(NamedTuple):
    """Where a router runs: what its command begins with, its addresses, and the link that a cut takes down."""

    command: tuple[str, ...]
    host: str  # for clients and engines
    exchange_host: str
    link: str | None  # None: it cannot be cut off


class Network(NamedTuple):
    engines_host: str
    places: list[Place]


def ip(*words: str) -> None:
    """Run ip(8). Raises NamespacesUnavailable."""
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NamespacesUnavailable(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise NamespacesUnavailable(f"ip {' '.join(words)}: {error.stderr.strip()}") from error


@contextmanager
def namespaces(routers: int) -> Iterator[Network]:
    """Make a namespace per router, with a link to each of two bridges. Raises NamespacesUnavailable."""
    tag = f"wr{os.getpid() % 10_000}"
    bridges = f"{tag}-data", f"{tag}-told"
    net = f"10.{100 + os.getpid() % 100}"
    names = [f"{tag}-r{number}" for number in range(routers)]
    try:
        for bridge in bridges:
            ip("link", "add", bridge, "type", "bridge")
            ip("link", "set", bridge, "up")
        ip("address", "add", f"{net}.1.1/24", "dev", bridges[0])
        places = []
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            for subnet, (kind, bridge) in enumerate(zip("dt", bridges, strict=True), 1):
                outer, inner = f"{tag}{kind}{number}", f"{kind}{number}"
                ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
                ip("link", "set", outer, "master", bridge, "up")
                ip("-n", name, "address", "add", f"{net}.{subnet}.{10 + number}/24", "dev", inner)
                ip("-n", name, "link", "set", inner, "up")
            command = "ip", "netns", "exec", name
            places.append(Place(command, f"{net}.1.{10 + number}", f"{net}.2.{10 + number}", f"{tag}t{number}"))
        yield Network(f"{net}.1.1", places)
    finally:
        made = [("netns", "delete", name) for name in names] + [("link", "delete", bridge) for bridge in bridges]
        for words in made:
            with suppress(NamespacesUnavailable):  # it was not made
                ip(*words)


def loopback(routers: int) -> Network:
    """Return places on the loopback interface, where none can be cut off."""
    return Network("127.0.0.1", [Place((), "127.0.0.1", "127.0.0.1", None)] * routers)
