"""The base class of all configuration sections, and value types that several of them share."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Positive = Annotated[int, Field(gt=0)]

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


def _check_port(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.port != 0 and not parts.netloc.endswith(":")
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("the port is not a number from 1 to 65535")
    return url


def url_host(host: str) -> str:
    """Return a host as written in a URL: an IPv6 address in brackets, whether or not `host` has them already."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def split_base_url(url: str) -> tuple[str, int]:
    """Return host and port of a `BaseUrl`: its scheme's port where it has none."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


PathName = Annotated[str, AfterValidator(_make_absolute)]
"""Relative to the folder of the file that contains it, which `reader.py` passes as the validation context."""

BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+$"), AfterValidator(_check_port)]
"""Scheme, host and port of an HTTP server, without a path."""
