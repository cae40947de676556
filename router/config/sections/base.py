"""What every section of the configuration is made of: strict models, and the kinds of values that several share."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _from_folder(path: str, info: ValidationInfo) -> str:
    return str(info.context / path) if isinstance(info.context, PurePath) else path


def _with_a_port_that_can_be(url: str) -> str:
    try:
        parts = urlsplit(url)
        possible = parts.port != 0 and not parts.netloc.endswith(":")
    except ValueError:
        possible = False
    if not possible:
        raise ValueError("the port is not a number from 1 to 65535")
    return url


PathName = Annotated[str, AfterValidator(_from_folder)]
"""Relative to the folder of the file it stands in, which `read.py` gives as the validation's context."""

BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+$"), AfterValidator(_with_a_port_that_can_be)]
"""Scheme, host and port of an HTTP server, without a path."""
