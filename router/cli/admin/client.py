"""The admin API of a running router, as commands use it: one call, JSON back, or one clear line of what is wrong.

What the router refuses because of what was typed (a wrong file, an unknown name) is a `ConfigError`, all else that
goes wrong a `WarmrouteError`: exit codes 2 and 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from router.errors import ConfigError, WarmrouteError

DEFAULT = "http://127.0.0.1:8001"
TIMEOUT_S = 60.0  # a plan over 10,000 records of a large and busy fleet takes seconds
TYPED_WRONG = frozenset({404, 413, 422})


class AdminClient:
    """`token_env` names the environment variable with the admin token; None: no token is sent."""

    def __init__(self, url: str = DEFAULT, token_env: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {}
        try:
            parts = urlsplit(self._url)
            wanted = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            wanted = False
        if not wanted:
            raise ConfigError(f"--admin: {url}: wanted http://HOST:PORT")
        if token_env is not None:
            if not (token := os.environ.get(token_env)):
                raise ConfigError(f"--token-env: the environment variable {token_env} is not set")
            self._headers["authorization"] = f"Bearer {token}"

    def get(self, *path: str, **asked: Any) -> dict[str, Any]:
        return self._json(self._call("GET", path, params=asked))

    def text(self, *path: str) -> str:
        return self._call("GET", path).text

    def put(self, text: str, *path: str, **asked: Any) -> dict[str, Any]:
        return self._json(self._call("PUT", path, content=text.encode(), params=asked))

    def post(self, body: Mapping[str, Any] | None, *path: str, **asked: Any) -> dict[str, Any]:
        return self._json(self._call("POST", path, json=body, params=asked))

    def delete(self, *path: str, **asked: Any) -> dict[str, Any]:
        return self._json(self._call("DELETE", path, params=asked))

    def _json(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            told = answer.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise WarmrouteError(f"{self._url} does not answer like an admin API of warmroute: is --admin right?")
        return told

    def _call(self, method: str, path: tuple[str, ...], **call: Any) -> httpx.Response:
        where = "/admin/" + "/".join(quote(part, safe="") for part in path)
        try:
            with httpx.Client(headers=self._headers, timeout=TIMEOUT_S, trust_env=False) as client:
                answer = client.request(method, self._url + where, **call)
        except httpx.ConnectError as refused:
            raise WarmrouteError(
                f"nobody listens at {self._url}: is a router running, and is --admin right?"
            ) from refused
        except httpx.HTTPError as failure:
            raise WarmrouteError(f"{self._url}: {str(failure) or type(failure).__name__}") from failure
        if answer.is_success:
            return answer
        kind = ConfigError if answer.status_code in TYPED_WRONG else WarmrouteError
        raise kind(self._refusal(answer))

    def _refusal(self, answer: httpx.Response) -> str:
        error = self._json(answer).get("error")
        message = error.get("message") if isinstance(error, dict) else None
        said = str(message) if message else f"{self._url}: status {answer.status_code}"
        return said + " (see --token-env)" if answer.status_code == 401 else said
