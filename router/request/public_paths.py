"""The paths of the public listener: the methods of each path, and how its requests are placed.

This table determines routing, the 405 answer for a wrong method with its `Allow`, and the HTTP reference. Any other
path of an engine may be for administration, and gets 404 here. `{id}` stands for the id of a stored response,
`{model}` for the name of a model, which may contain slashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from router.prompt.api.parse import SALTED_OTHERS
from router.prompt.prompt import Endpoint

Placement = Literal["cache", "load", "response", "router", "operation"]
"""`cache`: by the policy, which may match prompts; `load`: by load alone; `response`: at the target that produced
the response; `router`: no engine is involved; `operation`: as `router`, but by the application of `ops_api.py`.
"""

POST: Final = ("POST",)
READ: Final = ("GET", "HEAD")  # for answers by the router itself


class PublicPath(NamedTuple):
    """One path; `meaning` is for the HTTP reference."""

    path: str
    methods: tuple[str, ...]
    placed: Placement
    meaning: str = ""


COUNTING: Final = ("/v1/messages/count_tokens", "/tokenize", "/detokenize")

PATHS: Final = (
    *(PublicPath(endpoint.value, POST, "cache") for endpoint in Endpoint if endpoint is not Endpoint.OTHER),
    *(PublicPath(path, POST, "load") for path in sorted((*SALTED_OTHERS, *COUNTING))),
    PublicPath("/v1/responses/{id}", ("GET", "DELETE"), "response"),
    PublicPath("/v1/responses/{id}/cancel", POST, "response"),
    PublicPath("/v1/responses/{id}/input_items", ("GET",), "response"),
    PublicPath("/v1/models", READ, "router", "the union of the models that the fleet serves; no engine is queried"),
    PublicPath("/v1/models/{model}", READ, "router", "the card of one of them, or 404"),
    PublicPath("/health", READ, "operation", "200 while the process answers"),
    PublicPath("/ready", READ, "operation", "200 when an engine is ready and the router is not stopping, else 503"),
    PublicPath("/metrics", READ, "operation", "[metrics](metrics.md) in the Prometheus text format"),
)
CACHE_ROUTED: Final = frozenset(entry.path for entry in PATHS if entry.placed == "cache")
LOAD_ROUTED: Final = frozenset(entry.path for entry in PATHS if entry.placed == "load")
OPS: Final = frozenset(entry.path for entry in PATHS if entry.placed == "operation")
_PARAMETERS: Final = {"{id}": r"([A-Za-z0-9_\-]{1,128})", "{model}": r"(.{1,512})"}


class FoundPath(NamedTuple):
    """A path of the table, and the value of the path's parameter, empty if it has no parameter."""

    entry: PublicPath
    value: str = ""


class PathTable:
    """Finds the table entry for a request's path. `extra` are methods and paths that the operator adds; their
    requests are placed by load. Paths with the placement `operation` are not included.
    """

    def __init__(self, extra: Iterable[tuple[str, str]]) -> None:
        self._plain: dict[str, PublicPath] = {}
        self._patterns: list[tuple[re.Pattern[str], PublicPath]] = []
        for entry in PATHS:
            if "{" in entry.path:
                self._patterns.append((re.compile(_render_pattern(entry.path), re.DOTALL), entry))
            elif entry.placed != "operation":
                self._plain[entry.path] = entry
        for method, path in extra:
            known = self._plain.get(path, PublicPath(path, (), "load"))
            self._plain[path] = known._replace(methods=tuple(dict.fromkeys((*known.methods, method))))

    def find(self, path: str) -> FoundPath | None:
        """Return the entry for a request's (decoded) path; None if the path is not served."""
        if (plain := self._plain.get(path)) is not None:
            return FoundPath(plain)
        for pattern, entry in self._patterns:
            if (match := pattern.fullmatch(path)) is not None:
                return FoundPath(entry, match[1])
        return None

    def forwarded(self) -> Iterator[tuple[str, str]]:
        """Yield each method and path whose requests are placed by cache or load."""
        for entry in self._plain.values():
            if entry.placed in ("cache", "load"):
                for method in entry.methods:
                    yield method, entry.path


def _render_pattern(path: str) -> str:
    for parameter, pattern in _PARAMETERS.items():
        path = path.replace(parameter, pattern)
    return path
