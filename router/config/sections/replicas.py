"""The section `replicas`: several routers in front of one fleet, which share what they know of its load."""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import HostPort, Port, Section, VariableName
from router.config.sections.discovery import HostName


class ReplicasConfig(Section):
    """Other routers in front of the same engines. All of them may have the same section."""

    peers: list[HostPort] = []
    """host:port of each router's `replicas.port`; this router's own address may be among them. Give one of `peers`,
    `dns` and `selector`"""
    dns: HostName | None = None
    """host name whose addresses are those of all routers, such as a headless Service that publishes addresses which
    are not ready; looked up every 2 s. Each router listens at `port`
    """
    selector: str | None = Field(default=None, min_length=1)
    """label selector of all routers' pods, as for `kubectl get pods -l`, in the namespace of this one; outside of
    the cluster, in that of `fleet.kubernetes`, with its API server. Each router listens at `port`
    """
    secret_env: VariableName
    """environment variable with the secret that all replicas share, of at least 16 characters
    (`openssl rand -hex 32`); without it no process can listen or report"""
    host: str = "0.0.0.0"
    """address on which this router receives from the others: an IP address, 0.0.0.0 or [::]"""
    port: Port = 9004
    """port on which this router receives from the others"""
