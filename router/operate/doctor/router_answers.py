"""Query the admin API of a running router for its state, and fetch its metrics page if its address is known."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

from router.backends.failure import UNTRUSTED, describe_failure
from router.config.schema import Config
from router.config.sections.base import url_host
from router.operate.doctor.clients import HttpClients
from router.operate.doctor.subject import Json, MetricsAddress, MetricsFault, RouterAnswers

NAME_PORT = "give its configuration beside --url, which names the port; or look at Prometheus"
RECORDS = 300  # newest ones; each is some KB


async def ask_router(
    clients: HttpClients, url: str, *, config: Config | None, has_token: bool, ca_file: str | None = None
) -> RouterAnswers:
    """Return the state of the router with the admin listener at `url`. `clients` must have a client named `url`,
    which sends the token, and one named `URL open`, which sends none.
    """
    client = clients.get(url)
    try:
        listing = await client.get("/admin/instances")
    except httpx.HTTPError as failure:
        return RouterAnswers(url, f"no answer: {describe_failure(failure)}")
    if listing.status_code in (401, 403):
        return RouterAnswers(url, "it wants an admin token" if not has_token else "it refuses the admin token")
    found = _json(listing)
    if not isinstance(found.get("instances"), list):
        return RouterAnswers(url, f"GET /admin/instances: {listing.status_code}: not the admin API of a router")
    if config is None:
        address = await _ask_address(client)
    else:
        address = _read_address(config.listen.model_dump(), config.metrics.model_dump())
    pool, policies, workers, records, open_to_all, metrics = await asyncio.gather(
        _get(client, "/admin/pool"),
        _get(client, "/admin/policies"),
        _get(client, "/admin/workers"),
        _get(client, f"/admin/records?limit={RECORDS}"),
        _is_open(clients, url),
        scrape(clients, url, address, ca_file),
    )
    replicas = await _get(client, "/admin/replicas")
    return RouterAnswers(
        url,
        None,
        open_to_all,
        found["instances"],
        found.get("discovery") or {},
        pool,
        policies,
        (workers or {}).get("workers") or [],
        (records or {}).get("records") or [],
        metrics if isinstance(metrics, str) else None,
        metrics_address=address,
        metrics_fault=None if isinstance(metrics, str) else metrics,
        replicas=(replicas or {}).get("replicas") or [],
    )


def _read_address(listen: Json, metrics: Json) -> MetricsAddress:
    """Return the address in the sections `listen` and `metrics` of a configuration."""
    if metrics["port"] is not None:
        return MetricsAddress(metrics["port"])
    if listen["tls"] is None:
        return MetricsAddress(listen["port"])
    return MetricsAddress(listen["port"], "https", listen["tls"]["cert_file"])


async def _ask_address(admin: httpx.AsyncClient) -> MetricsAddress | None:
    """Return the address in the configuration that the router itself reports; None if it reports none."""
    try:
        sections = yaml.safe_load((await admin.get("/admin/config")).text)
        found = _read_address(sections["listen"], sections["metrics"])
    except (httpx.HTTPError, yaml.YAMLError, LookupError, TypeError):  # version 0.1 has no such endpoint
        return None
    return found._replace(cert_file=None)  # a file of the router's machine


async def scrape(
    clients: HttpClients, url: str, address: MetricsAddress | None, ca_file: str | None = None
) -> str | MetricsFault:
    """Return the metrics page of the router with the admin listener `url`, or why it cannot be read."""
    if address is None:
        return MetricsFault("the address of its metrics page is not known", NAME_PORT)
    if address.port == 0:
        return MetricsFault("the port of its metrics page is not known: the system chose it", NAME_PORT)
    at = f"{address.scheme}://{url_host(urlsplit(url).hostname or '')}:{address.port}"
    client = clients.add(f"{url} metrics", at, ca_file=ca_file, own_certificate=address.cert_file)
    try:
        answer = await client.get("/metrics")
    except httpx.HTTPError as failure:
        reason = describe_failure(failure)
        if reason.startswith(UNTRUSTED):
            change = "look whether it was restarted or reloaded since its certificate changed; or --ca-file FILE"
            return MetricsFault(f"the certificate of its metrics page is not trusted{reason[len(UNTRUSTED) :]}", change)
        return MetricsFault(f"its metrics page at {at} does not answer: {reason}", "run this where it is reached")
    if answer.status_code in (401, 403):
        return MetricsFault("its metrics page needs a token", "look at Prometheus, which has it (metrics.token_hash)")
    if answer.status_code != 200:
        return MetricsFault(f"GET {at}/metrics: {answer.status_code}", "look at the log of the router")
    return answer.text


async def _is_open(clients: HttpClients, url: str) -> bool:
    try:
        return (await clients.get(f"{url} open").get("/admin/instances")).status_code == 200
    except httpx.HTTPError:
        return False


async def _get(client: httpx.AsyncClient, path: str) -> dict[str, Any] | None:
    try:
        answer = await client.get(path)
    except httpx.HTTPError:
        return None
    return _json(answer) if answer.status_code == 200 else None


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
