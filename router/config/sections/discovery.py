"""Sources of instances that are asked while the router runs: DNS."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from router.config.sections.base import PathName, Seconds, Section

TcpPort = Annotated[int, Field(ge=1, le=65535)]


class DiscoveredEngines(Section):
    """How the engines that a source lists are reached, where the source itself does not say it."""

    scheme: Literal["http", "https"] = "http"
    """protocol of the engines"""
    api_key_env: str | None = None
    """environment variable that holds the engines' API key; null: no key is sent"""
    ca_file: PathName | None = None
    """PEM file of the CA that signed the engines' certificates; null: the system's CAs"""
    cpu_medium: Literal["pool", "host"] = "pool"
    """meaning of the medium `cpu` (lower case) in the engines' events, as in `fleet.instances`"""


class DnsConfig(DiscoveredEngines):
    name: str = Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$", max_length=253)
    """host name whose addresses are the engines, such as a headless Service; each IPv4 address is one, the IPv6
    addresses are used where there is no other. With `port: null`, the name of SRV records
    (_http._tcp.vllm.llm.svc.cluster.local)"""
    port: TcpPort | None = None
    """port of the engines; null: the SRV records of `name` tell addresses and ports"""
    interval_s: Seconds = 5.0
    """pause between two lookups, seconds"""
