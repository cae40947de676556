"""Client of a running router's admin API. A call returns the answer, or raises an error with a one-line message.

If the user's input is rejected (a wrong file, an unknown name), the error is a `ConfigError`; any other failure is
a `WarmrouteError`: exit codes 2 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from router.backends.failure import NOT_TLS, describe_failure
from router.cli.terminal.variables import read_variable
from router.config.pem_files import trust_of
from router.config.sections.base import WEB, find_scheme_fault
from router.errors import ConfigError, WarmrouteError

DEFAULT = "http://127.0.0.1:8001"
TIMEOUT_S = 60.0  # a plan over 10,000 records of a large and busy fleet takes seconds
FEATURES = {"GET /admin/usage": "it counts usage where `clients` identifies tenants (keys_file, jwt or tenant_header)"}
"""Why a router may not have an endpoint."""
UNKNOWN_ENDPOINT = "unknown_endpoint"  # the code of the admin API
NO_PATH = (None, "unknown_path", 404)  # of other listeners of a router, and of engines
INPUT_ERRORS = frozenset({404, 413, 422})


class AdminClient:
    """The admin API at `url`. `token_env`: environment variable with the admin token; None sends no token. `ca_file`:
    certificates to trust; None: the system's CAs.
    """

    def __init__(self, url: str = DEFAULT, token_env: str | None = None, ca_file: str | None = None) -> None:
        """Raise ConfigError for a bad URL, or when the environment variable is not set."""
        self._url = url.rstrip("/")
        self._headers = {}
        self._ca_file = ca_file
        try:
            parts = urlsplit(self._url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            fault = find_scheme_fault(url, WEB) or f"found {url}, wanted a URL like {DEFAULT}"
            raise ConfigError(f"--admin: {fault}")
        if (token := read_variable("--token-env", token_env)) is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def get(self, *path: str, **params: Any) -> dict[str, Any]:
        return self._json(self._call("GET", path, params=params))

    def text(self, *path: str, **params: Any) -> str:
        return self._call("GET", path, params=params).text

    def put(self, text: str, *path: str, **params: Any) -> dict[str, Any]:
        return self._json(self._call("PUT", path, content=text.encode(), params=params))

    def post(self, body: Mapping[str, Any] | None, *path: str, **params: Any) -> dict[str, Any]:
        return self._json(self._call("POST", path, json=body, params=params))

    def delete(self, *path: str, **params: Any) -> dict[str, Any]:
        return self._json(self._call("DELETE", path, params=params))

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise self._wrong_listener()
        return body

    def _call(self, method: str, path: tuple[str, ...], **call: Any) -> httpx.Response:
        url = f"{self._url}/admin/" + "/".join(quote(part, safe="") for part in path)
        try:
            verify = trust_of(url, self._ca_file)
            with httpx.Client(headers=self._headers, timeout=TIMEOUT_S, trust_env=False, verify=verify) as client:
                response = client.request(method, url, **call)
        except httpx.ConnectError as refused:
            reason = describe_failure(refused)
            plain = self._url.replace("https:", "http:", 1)
            advice = f"use {plain}" if reason.endswith(NOT_TLS) else "is it the router's admin.host and admin.port?"
            raise WarmrouteError(f"--admin: cannot connect to {self._url}: {reason}; {advice}") from refused
        except httpx.HTTPError as failure:
            raise WarmrouteError(f"{self._url}: {describe_failure(failure)}; check --admin") from failure
        if response.is_success:
            return response
        raise self._refusal(response, f"{method} /admin/{path[0]}")

    def _refusal(self, response: httpx.Response, endpoint: str) -> WarmrouteError:
        error = self._json(response).get("error")
        known = error if isinstance(error, dict) else {}
        if known.get("code") == UNKNOWN_ENDPOINT:
            reason = FEATURES.get(endpoint, "it is of another version than this command")
            return ConfigError(f"the router at {self._url} has no {endpoint}: {reason}")
        if response.status_code == 404 and known.get("code") in NO_PATH:
            return self._wrong_listener()
        text = str(known.get("message") or f"{self._url}: status {response.status_code}")
        if response.status_code == 401:
            text += " (see --token-env)"
        return ConfigError(text) if response.status_code in INPUT_ERRORS else WarmrouteError(text)

    def _wrong_listener(self) -> ConfigError:
        found = f"what answers at {self._url} is not the admin API of a router"
        return ConfigError(f"--admin: {found}, wanted its `admin.host` and `admin.port`, by default {DEFAULT}")
