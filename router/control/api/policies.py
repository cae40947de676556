"""The operator's wheel: policies, experiments, undo and the audit log, over HTTP. `admin.py` says who may come in.

Bodies are a policy, several by name, or an experiment, as YAML or JSON (which is YAML, too), read as strictly as files.
Every change takes `dry_run`: the answer is the same, plan included, and nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, Protocol

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from router.errors import ConfigError, TooLarge
from router.proxy.asgi import read_body
from router.request.error_body import InvalidRequest

BODY_BYTES = 1_000_000

Responses = dict[int | str, Any]
"""Descriptions of answers, by status."""


class SwitchResult(Protocol):
    """What a switch did, or would do."""

    def describe(self) -> dict[str, Any]:
        """As plain JSON types."""


class PolicyControl(Protocol):
    """The operator's line. Changes raise `ConfigError` for a wrong text and `Refused` for what cannot be now."""

    def policies(self) -> dict[str, Any]:
        """What is in force, and what went wrong lately."""

    def policy(self, name: str) -> str:
        """One policy as YAML."""

    def experiment(self) -> dict[str, Any]:
        """How it stands, `running` or not."""

    def entries(self, limit: int) -> list[dict[str, Any]]:
        """Of the audit log, newest first."""

    async def put_policy(self, name: str, text: str, who: str, *, activate: bool, dry_run: bool) -> SwitchResult: ...

    async def put_policies(self, text: str, who: str, *, dry_run: bool) -> SwitchResult: ...

    async def activate(self, name: str, who: str, *, dry_run: bool) -> SwitchResult: ...

    async def start_experiment(self, text: str, who: str, *, dry_run: bool) -> SwitchResult: ...

    async def end_experiment(self, who: str, *, dry_run: bool) -> SwitchResult: ...

    async def undo(self, who: str, *, dry_run: bool) -> SwitchResult: ...


class OpenShape(BaseModel):
    """Known fields first; what else is told is passed on."""

    model_config = ConfigDict(extra="allow")


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
    """How refusals are described in the API's own description."""

    not_there: Responses
    not_now: Responses
    text: Responses  # of a body of text
    json: Responses  # of a body that names a policy


class ActivationBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    policy: Annotated[str, Field(min_length=1, max_length=200)]
    dry_run: bool = False


class YamlText(PlainTextResponse):
    media_type = "application/yaml"


DryRun = Annotated[bool, Query(description="say what would happen, and do nothing")]
Name = Annotated[str, Path(min_length=1, max_length=200)]

AS_YAML: Responses = {200: {"content": {YamlText.media_type: {"schema": {"type": "object"}}}}}
TEXT = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "object"}} for kind in (YamlText.media_type, "application/json")},
    }
}


def add_policy_routes(app: FastAPI, control: PolicyControl, read: Any, write: Any, errors: ErrorDescriptions) -> None:
    """Adds the endpoints to `app`. `read`, `write`: dependencies that let somebody in and say who it is; `errors`: how
    refusals are described.
    """
    _policies(app, control, read, write, errors)
    _experiment(app, control, read, write, errors)

    @app.post("/admin/undo", responses=errors.not_now)
    async def undo(dry_run: DryRun = False, who: str = write) -> SwitchShape:
        """Back to what was in force before the last switch; again: to before the one before."""
        return _told(await control.undo(who, dry_run=dry_run))

    @app.get("/admin/audit", dependencies=[read])
    async def audit(limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> AuditList:
        """Who switched what, when and why, the newest first."""
        return AuditList(entries=control.entries(limit))


def _policies(app: FastAPI, control: PolicyControl, read: Any, write: Any, errors: ErrorDescriptions) -> None:
    text = Depends(body)

    @app.get("/admin/policies", dependencies=[read])
    async def policies() -> PoliciesShape:
        return PoliciesShape.model_validate(control.policies())

    @app.put("/admin/policies", responses=errors.text, openapi_extra=TEXT)
    async def put_policies(dry_run: DryRun = False, given: str = text, who: str = write) -> SwitchShape:
        """Adds or replaces several policies, given by name: all of them, or none."""
        with _invalid("policies"):
            return _told(await control.put_policies(given, who, dry_run=dry_run))

    @app.get("/admin/policies/{name}", dependencies=[read], response_model=None, responses=AS_YAML | errors.not_there)
    async def policy(name: Name) -> YamlText:
        """One policy with every default written out: what `PUT` takes."""
        return YamlText(control.policy(name))

    @app.put("/admin/policies/{name}", responses=errors.text, openapi_extra=TEXT)
    async def put_policy(
        name: Name,
        activate: Annotated[bool, Query(description="and let it decide, in the same switch")] = False,
        dry_run: DryRun = False,
        given: str = text,
        who: str = write,
    ) -> SwitchShape:
        """Adds a policy or replaces it, in memory: no file is written."""
        with _invalid("policy"):
            return _told(await control.put_policy(name, given, who, activate=activate, dry_run=dry_run))

    @app.post("/admin/activate", responses=errors.json)
    async def activate(asked: ActivationBody, who: str = write) -> SwitchShape:
        """A policy decides from now on, for everybody: a running experiment ends."""
        return _told(await control.activate(asked.policy, who, dry_run=asked.dry_run))


def _experiment(app: FastAPI, control: PolicyControl, read: Any, write: Any, errors: ErrorDescriptions) -> None:
    text = Depends(body)

    @app.get("/admin/experiment", dependencies=[read])
    async def experiment() -> ExperimentShape:
        """The arms, their figures with intervals, verdicts; what the last one came to."""
        return ExperimentShape.model_validate(control.experiment())

    @app.put("/admin/experiment", responses=errors.text, openapi_extra=TEXT)
    async def start_experiment(dry_run: DryRun = False, given: str = text, who: str = write) -> SwitchShape:
        """Starts an experiment, in the place of one that runs."""
        with _invalid("experiment"):
            return _told(await control.start_experiment(given, who, dry_run=dry_run))

    @app.delete("/admin/experiment", responses=errors.not_now)
    async def end_experiment(dry_run: DryRun = False, who: str = write) -> SwitchShape:
        """Ends it: the active policy decides for everybody."""
        return _told(await control.end_experiment(who, dry_run=dry_run))


async def body(request: Request) -> str:
    """Raises TooLarge, Invalid and BadRequest."""
    too_large = TooLarge(f"the body is larger than {BODY_BYTES:,} bytes", code="body_too_large")
    given = await read_body(request, BODY_BYTES, too_large)
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 text (byte {error.start})", code="invalid_text") from None


def _told(switch: SwitchResult) -> SwitchShape:
    return SwitchShape.model_validate(switch.describe())


@contextmanager
def _invalid(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as wrong:
        raise InvalidRequest(str(wrong), code=f"invalid_{what}") from wrong
