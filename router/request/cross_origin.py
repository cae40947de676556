"""Access from pages of other origins (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol), without
credentials.

The router answers for the fleet: its CORS headers are in every answer and replace those of engines. Without
`edge.cors_origins` the router adds no such headers, and those of engines pass unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from router.errors import BadRequest
from router.proxy.call import ClientRequest, Headers

ORIGIN: Final = b"origin"
REQUESTED_METHOD: Final = b"access-control-request-method"
REQUESTED_HEADERS: Final = b"access-control-request-headers"
METHODS: Final = b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
MAX_AGE_S: Final = 600  # how long a browser remembers the answer to a preflight request


class CrossOrigin:
    """The CORS rules for `origins`; with `*`, any page may read the router's answers."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def open(self, call: ClientRequest) -> bool:
        """Add the headers for the page that sends `call` to the answer. Return whether the request is a preflight,
        which needs no API key. Raises `BadRequest` for a preflight of an origin that is not listed.
        """
        origin = call.fields.get(ORIGIN)
        if origin is None or not self._origins:
            return False
        call.cross_origin = True
        allowed = self._any or origin in self._origins
        if self._any:
            call.own_lines += b"access-control-allow-origin: *\r\n"
        elif allowed:
            call.own_lines += b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin
        if call.method != "OPTIONS" or REQUESTED_METHOD not in call.fields:
            return False
        if not allowed:
            raise BadRequest("this origin is not in `edge.cors_origins`", code="origin_not_allowed")
        return True


def describe_rules(fields: Mapping[bytes, bytes]) -> Headers:
    """Return the headers of the answer to a preflight with these `fields`."""
    headers = [(b"access-control-allow-methods", METHODS), (b"access-control-max-age", b"%d" % MAX_AGE_S)]
    if (requested := fields.get(REQUESTED_HEADERS)) is not None:
        headers.append((b"access-control-allow-headers", requested))
    return headers
