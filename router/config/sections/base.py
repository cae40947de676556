"""The base class of all configuration sections, and value types that several of them share."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Positive = Annotated[int, Field(gt=0)]

HOST = r"([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\])"
ADDRESS = re.compile(HOST + r"(:\d{1,5})?")  # without a scheme
SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]{0,15}")
USUAL_URL = re.compile(f"https?://{HOST}(:[1-9]\\d{{0,3}})?")  # read at once: lists have thousands of engines

WEB = ("http", "https")
WILDCARDS = ("*", "0.0.0.0", "[::]", "::")
"""Hosts that a server binds, for all its addresses; nobody can connect to them elsewhere."""


class Section(BaseModel):
    """A frozen model that refuses unknown keys, infinities and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class PluginConfig(BaseModel):
    """A filter, scorer or picker by name; all other keys are its parameters, checked when the policy is built."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: str
    """registered name, see docs/reference/plugins.md"""


def _make_absolute(path: str, info: ValidationInfo) -> str:
    return str(info.context / path) if isinstance(info.context, PurePath) else path


class Shape(NamedTuple):
    """The shape of a text, as an annotation: a pattern for programs, and words for people, such as `HOST:PORT`. Of a
    URL, a fault of the scheme is named by itself.
    """

    pattern: str  # up to its end
    wanted: str
    schemes: Sequence[str] = ()  # of URLs

    def check(self, text: str) -> str:
        """Return `text`. Raises PydanticCustomError, with what is wanted, for a text of another shape, ValueError for a
        URL of another scheme.
        """
        if self.schemes and (fault := find_scheme_fault(text, self.schemes)) is not None:
            raise ValueError(fault)
        if re.search(self.pattern.removesuffix("$") + r"\Z", text) is None:
            raise PydanticCustomError("shape", "{wanted}", {"wanted": self.wanted})
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": self.pattern}


def _check_base_url(url: str) -> str:
    """Return `url`. Raises ValueError for anything but scheme, host and port."""
    if USUAL_URL.fullmatch(url) is None and (found := find_url_fault(url)):
        raise ValueError(found)
    return url


def find_scheme_fault(url: str, schemes: Sequence[str]) -> str | None:
    """Return the fault of the scheme of a URL, what is wanted and an example; None if it is one of these. Only a
    scheme and an address are repeated: other text may be a secret.
    """
    wanted, first = " or ".join(f"{scheme}://" for scheme in schemes), f"{schemes[0]}://"
    if ADDRESS.fullmatch(url.partition("/")[0]):
        return f"found no scheme, wanted {wanted} before the host{f': {first}{url}' if ADDRESS.fullmatch(url) else ''}"
    scheme, separator, _ = url.partition("://")
    if separator and scheme in schemes:
        return None
    if separator and SCHEME.fullmatch(scheme):
        return f"found the scheme {scheme}://, wanted {wanted}"
    return f"found text that does not begin with {wanted}, wanted a URL such as {first}10.0.0.1:8100"


def find_url_fault(url: str) -> str | None:
    """Return the fault of the base URL of a server, what is wanted and an example; None if it is right. What may
    be a secret is not repeated.
    """
    if (fault := find_scheme_fault(url, WEB)) is not None:
        return fault
    scheme, _, rest = url.partition("://")
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    if "@" in netloc:
        return "found a user or password, wanted scheme, host and port alone, such as http://10.0.0.1:8100"
    if re.search(r"\s", url) or not netloc.partition(":")[0]:
        return "found a space or no host, wanted scheme, host and port alone, such as http://10.0.0.1:8100"
    try:
        parts = urlsplit(f"{scheme}://{netloc}")
        port_fits = parts.port != 0 and not netloc.endswith(":")
    except ValueError:
        port_fits = False
    if not port_fits:
        return "found a port that is not a number from 1 to 65535, wanted that of the server"
    if rest != netloc:
        part = {"/": "a path", "?": "a query", "#": "a fragment"}[rest[len(netloc)]]
        return f"found {part} after the port, wanted the URL without it: {scheme}://{netloc}"
    return None


def find_choice_fault(thing: str, given: Mapping[str, bool]) -> str | None:
    """Return the fault of a `thing` (`the alias`) that needs one of the keys, by whether it is `given`; None if
    it has one.
    """
    found = [f"`{key}`" for key, is_given in given.items() if is_given]
    if not found:
        return f"{thing} has neither {' nor '.join(f'`{key}`' for key in given)}: give one of them"
    return None if len(found) == 1 else f"{thing} has {' and '.join(found)}: keep one of them"


def find_repeated(values: Sequence[Hashable]) -> Iterator[int]:
    """Yield the position of each value that stands earlier in the list already."""
    seen: set[Hashable] = set()
    for i, value in enumerate(values):
        if value in seen:
            yield i
        seen.add(value)


def url_host(host: str) -> str:
    """Return a host as written in a URL: an IPv6 address in brackets, whether or not `host` has them already."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def split_base_url(url: str) -> tuple[str, int]:
    """Return host and port of a `BaseUrl`: its scheme's port where it has none."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


PathName = Annotated[str, AfterValidator(_make_absolute)]
"""Relative to the folder of the file that contains it, which `reader.py` passes as the validation context."""

BaseUrl = Annotated[
    str, AfterValidator(_check_base_url), Field(json_schema_extra={"pattern": r"^https?://[^\s/?#@]+$"})
]
"""Scheme, host and port of an HTTP server, without a path."""

ZmqEndpoint = Annotated[
    str, Shape(r"^(tcp://[^\s/]+:[0-9]{1,5}|ipc://\S+)$", "tcp://HOST:PORT or ipc://PATH", ("tcp", "ipc"))
]

HostPort = Annotated[str, Shape(r"^[^\s/]+:[1-9]\d{0,4}$", "HOST:PORT, such as 10.0.0.1:9004")]

VariableName = Annotated[str, Shape(r"^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable")]

SHA256 = Shape("^[0-9a-fA-F]{64}$", "64 hexadecimal digits")

KUBERNETES_NAME = Shape(
    r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", "a name of Kubernetes: lower-case letters, digits, dashes and dots"
)

SOME_TEXT = Shape(r"\S[\s\S]*$", "some text")
