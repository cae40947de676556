"""HTTP clients for the examined engines, masters and routers, each with its API key and certificate authority."""

from __future__ import annotations

import ssl

import httpx

from router.backends.fetch import ANSWER_BYTES, HttpAnswer
from router.proxy.upstreams import TlsContexts


class HttpClients:
    """HTTP clients by name, for one examination. `fetch` has the signature that the router's own modules call
    (`backends.fetch.Fetch`).
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._tls = TlsContexts()

    def add(
        self,
        name: str,
        url: str,
        *,
        token: str | None = None,
        ca_file: str | None = None,
        own_certificate: str | None = None,
    ) -> httpx.AsyncClient:
        """Return the client `name`, created for `url` if it does not exist; `token` is sent as a bearer token.
        `own_certificate` is that of the server, which is trusted under any host name. Raises ConfigError for a file
        that cannot be used.
        """
        if name not in self._clients:
            tls: ssl.SSLContext | None = None
            if own_certificate is not None:
                tls = TlsContexts().get(own_certificate)
                tls.check_hostname = False
            elif url.startswith("https"):
                tls = self._tls.get(ca_file)
            self._clients[name] = httpx.AsyncClient(
                base_url=url,
                headers={} if token is None else {"authorization": f"Bearer {token}"},
                timeout=self._timeout_s,
                verify=False if tls is None else tls,
                trust_env=False,
            )
        return self._clients[name]

    def get(self, name: str) -> httpx.AsyncClient:
        """Return the client that was added under this name (KeyError otherwise)."""
        return self._clients[name]

    async def fetch(
        self,
        instance: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float,
        limit_bytes: int = ANSWER_BYTES,
        rank: int | None = None,
    ) -> HttpAnswer | None:
        """Return the whole answer, with an empty body if the body exceeds `limit_bytes`. None on any failure."""
        method, headers = ("GET", {}) if body is None else ("POST", {"content-type": "application/json"})
        if rank is not None:
            headers["x-data-parallel-rank"] = str(rank)
        try:
            answer = await self._clients[instance].request(
                method, path, content=body, headers=headers, timeout=timeout_s
            )
        except httpx.HTTPError:
            return None
        if len(answer.content) > limit_bytes:
            return HttpAnswer(answer.status_code, b"", oversized=True)
        return HttpAnswer(answer.status_code, answer.content)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
