"""Admin endpoints for policies, experiments, undo and the audit log. `admin.py` decides who may call them.

A body is a policy, several by name, or an experiment, as YAML or JSON (which is YAML too), read as strictly as a
file. Every change accepts `dry_run`: the answer is the same, plan included, and nothing happens.

Bodies are read by dependencies that come after the caller's authorisation, and no further than `BODY_BYTES`:
FastAPI's own would read any length from anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.config.yaml_source import POLICY
from router.control.api.shapes import OpenShape
from router.control.control import Control
from router.control.summaries import SwitchSummary
from router.errors import ConfigError, TooLarge
from router.proxy.asgi import read_body
from router.request.error_body import InvalidRequest

BODY_BYTES = POLICY.max_bytes

Responses = dict[int | str, Any]
"""OpenAPI descriptions of answers, by status."""


class PoliciesShape(OpenShape):
    active: str
    names: list[str]
    needs: list[str]
    experiment: str | None
    errors: dict[str, Any]
    undo: list[str]


class SwitchShape(OpenShape):
    what: str
    dry_run: bool
    changed: bool
    plan: dict[str, Any] | None
    notes: list[str]


class ExperimentShape(OpenShape):
    running: bool


class AuditList(BaseModel):
    entries: list[dict[str, Any]]


class ErrorDescriptions(NamedTuple):
    """Error answers in the OpenAPI description, by kind of endpoint."""

    not_there: Responses
    not_now: Responses
    text: Responses  # endpoints with a text body
    json: Responses  # endpoints with a JSON body that names a policy


class ActivationBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    policy: Annotated[str, Field(min_length=1, max_length=200)]
    dry_run: bool = False


class YamlText(PlainTextResponse):
    media_type = "application/yaml"


DryRunQuery = Annotated[bool, Query(description="return what would happen, and change nothing")]
Name = Annotated[str, Path(min_length=1, max_length=200)]

AS_YAML: Responses = {200: {"content": {YamlText.media_type: {"schema": {"type": "object"}}}}}
TEXT = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "object"}} for kind in (YamlText.media_type, "application/json")},
    }
}
ACTIVATION = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": ActivationBody.model_json_schema()}}}
}


def add_policy_routes(app: FastAPI, control: Control, read: Any, write: Any, errors: ErrorDescriptions) -> None:
    """Add the endpoints to `app`. `read` and `write` are dependencies that authorise the caller and give its
    name.
    """
    _add_policies(app, control, read, write, errors)
    _add_experiment(app, control, read, write, errors)
    text = Depends(read_text_body)

    @app.put("/admin/admission", responses=errors.text, openapi_extra=TEXT)
    async def put_admission(dry_run: DryRunQuery = False, who: str = write, body: str = text) -> SwitchShape:
        """Let an admission rule decide who may begin, in memory; requests that wait are handed to it."""
        with _rejecting_invalid("admission"):
            return _to_shape(await control.put_admission(body, who, dry_run=dry_run))

    @app.post("/admin/undo", responses=errors.not_now)
    async def undo(dry_run: DryRunQuery = False, who: str = write) -> SwitchShape:
        """Return to what was in force before the last switch; repeated, before the one before that."""
        return _to_shape(await control.undo(who, dry_run=dry_run))

    @app.get("/admin/audit", dependencies=[read], response_model=AuditList)
    async def audit(limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> Response:
        """Return who switched what, when and why, newest first."""
        entries = {"entries": control.list_audit_entries(limit)}
        return Response(msgspec.json.encode(entries), media_type="application/json")


def _add_policies(app: FastAPI, control: Control, read: Any, write: Any, errors: ErrorDescriptions) -> None:
    text, activation = Depends(read_text_body), Depends(read_activation)

    @app.get("/admin/policies", dependencies=[read])
    async def policies() -> PoliciesShape:
        """Return all policies with digest and role, what those in force need, recent errors, and what can be
        undone.
        """
        return PoliciesShape.model_validate(control.describe_policies())

    @app.put("/admin/policies", responses=errors.text, openapi_extra=TEXT)
    async def put_policies(dry_run: DryRunQuery = False, who: str = write, body: str = text) -> SwitchShape:
        """Add or replace several policies, by name: all of them, or none."""
        with _rejecting_invalid("policies"):
            return _to_shape(await control.put_policies(body, who, dry_run=dry_run))

    @app.get("/admin/policies/{name}", dependencies=[read], response_model=None, responses=AS_YAML | errors.not_there)
    async def policy(name: Name) -> YamlText:
        """Return one policy with every default written out, in the form that `PUT` accepts."""
        return YamlText(control.dump_policy(name))

    @app.put("/admin/policies/{name}", responses=errors.text, openapi_extra=TEXT)
    async def put_policy(
        name: Name,
        activate: Annotated[bool, Query(description="activate it in the same switch")] = False,
        dry_run: DryRunQuery = False,
        who: str = write,
        body: str = text,
    ) -> SwitchShape:
        """Add a policy or replace it, in memory: no file is written."""
        with _rejecting_invalid("policy"):
            return _to_shape(await control.put_policy(name, body, who, activate=activate, dry_run=dry_run))

    @app.post("/admin/activate", responses=errors.json, openapi_extra=ACTIVATION)
    async def activate(who: str = write, body: ActivationBody = activation) -> SwitchShape:
        """Make a policy decide for all requests from now on, which ends a running experiment."""
        return _to_shape(await control.activate(body.policy, who, dry_run=body.dry_run))


def _add_experiment(app: FastAPI, control: Control, read: Any, write: Any, errors: ErrorDescriptions) -> None:
    text = Depends(read_text_body)

    @app.get("/admin/experiment", dependencies=[read])
    async def experiment() -> ExperimentShape:
        """Return the arms, their figures with intervals and verdicts, and the last experiment that ended."""
        return ExperimentShape.model_validate(control.describe_experiment())

    @app.put("/admin/experiment", responses=errors.text, openapi_extra=TEXT)
    async def start_experiment(dry_run: DryRunQuery = False, who: str = write, body: str = text) -> SwitchShape:
        """Start an experiment, in place of a running one."""
        with _rejecting_invalid("experiment"):
            return _to_shape(await control.start_experiment(body, who, dry_run=dry_run))

    @app.delete("/admin/experiment", responses=errors.not_now)
    async def end_experiment(dry_run: DryRunQuery = False, who: str = write) -> SwitchShape:
        """End the experiment: the active policy decides for all requests."""
        return _to_shape(await control.end_experiment(who, dry_run=dry_run))


async def read_activation(request: Request) -> ActivationBody:
    """Return the JSON body. Raises `RequestValidationError` when it is not one, and what `read_text_body`
    raises.
    """
    try:
        return ActivationBody.model_validate_json(await read_text_body(request))
    except ValidationError as error:
        found = [{**finding, "loc": ("body", *finding["loc"])} for finding in error.errors(include_url=False)]
        raise RequestValidationError(found) from None


async def read_text_body(request: Request) -> str:
    """Return the body as text. Raises TooLarge, InvalidRequest when it is not UTF-8, and BadRequest when it is
    cut.
    """
    too_large = TooLarge(f"the body is larger than {BODY_BYTES:,} bytes", code="body_too_large")
    body = await read_body(request, BODY_BYTES, too_large)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 text (byte {error.start})", code="invalid_text") from None


def _to_shape(switch: SwitchSummary) -> SwitchShape:
    return SwitchShape.model_validate(switch.describe())


@contextmanager
def _rejecting_invalid(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise InvalidRequest(str(error), code=f"invalid_{what}") from error
