"""The stack's ports: the system chooses where the configuration says 0, and one in use is named before the start."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from router.config.sections.local_stack import LocalStackConfig
from router.errors import WarmrouteError


class PortTaken(WarmrouteError):
    """Somebody else listens there. Says which setting to change."""


def free_port() -> int:
    """A port that the system has just given out and taken back."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def choose_ports(asked: LocalStackConfig) -> tuple[LocalStackConfig, list[int]]:
    """The section with every 0 replaced, and the engines' ports. Those of engines follow the first, or are all free."""
    names = ("master_port", "master_http_port", "client_port")
    chosen = asked.model_copy(update={name: free_port() for name in names if getattr(asked, name) == 0})
    if asked.first_port == 0:
        return chosen, [free_port() for _ in range(asked.engines)]
    return chosen, [asked.first_port + i for i in range(asked.engines)]


def check_ports(wanted: Mapping[str, int]) -> None:
    """Raises PortTaken if one of them cannot be had. Keys are the settings that name them; 0 can always be had."""
    for setting, port in wanted.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as taken:
                raise PortTaken(f"port {port} is in use: end what listens there, or change {setting}") from taken
