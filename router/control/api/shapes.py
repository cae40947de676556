"""Shapes of answers that all endpoints of the admin API have in common, for their OpenAPI description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class OpenShape(BaseModel):
    """Documents the main fields; further ones are passed on."""

    model_config = ConfigDict(extra="allow")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorShape(BaseModel):
    error: ErrorDetail


def describe_errors(**meanings: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI descriptions of errors by status, each given as `_STATUS="what it means"`."""
    return {int(status[1:]): {"model": ErrorShape, "description": text} for status, text in meanings.items()}
