"""The models that requests name: which model is implied if none is named, and which model a name stands for."""

from __future__ import annotations

from router.errors import BadRequest, Forbidden, NoTarget, NotFound, list_names, quote_name
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel
from router.prompt.prompt import Endpoint, Prompt
from router.scheduling.scheduler import Scheduler
from router.tenants.tenant import Tenant


def name_model(prompt: Prompt, fleet: Fleet, tenant: Tenant | None, *, implied: bool = True) -> None:
    """Set the model of a prompt that names none to the only base model, as engines do; the body stays unchanged. A
    prompt that is placed by load needs no model, unless its tenant may use only some models: then an engine of
    another model must not get it, whatever its body is. Raises `BadRequest` if there are several models, or if a
    model may not be `implied`; `NoTarget` if no model is known yet.
    """
    if prompt.endpoint is Endpoint.OTHER and may_use_all(tenant):
        return
    names = fleet.base_models()
    if not names:
        raise NoTarget("no engine is ready yet; try again", retry_after_s=1)
    if len(names) > 1 or not implied:
        usable = [name for name in names if tenant is None or tenant.service_class.allows(name)]
        listed = list_names(usable) or "none that you may use"
        raise BadRequest(f"`model` is missing; models here: {listed}", param="model")
    (prompt.model,) = names


def may_use_all(tenant: Tenant | None) -> bool:
    """Return whether the tenant may use all models."""
    return tenant is None or tenant.service_class.allows_all


def check_allowed(model: str | None, tenant: Tenant | None) -> None:
    """Raise `Forbidden` for a model, given the client's name for it, that the tenant may not use."""
    if model is None or tenant is None or tenant.service_class.allows(model):
        return
    raise Forbidden(
        f"the model `{quote_name(model)}` is not among those that {quote_name(tenant.name)} may use",
        param="model",
        code="model_not_allowed",
    )


def resolve_model(prompt: Prompt, scheduler: Scheduler, name: str | None) -> ServedModel | None:
    """Return the served model that `prompt` names; None if the request names no model (load-placed endpoints only).
    `name` is the client's own name for the model. Raises `NotFound` for a model that no instance serves, `NoTarget`
    for a model that was never served while no instance is ready to report its models.
    """
    if prompt.model is None:
        return None
    served = scheduler.fleet.resolve(prompt.model)
    if served is None:
        others = list_names(card.id for card in scheduler.fleet.models())
        if not others:
            raise NoTarget("no engine is ready yet; try again", retry_after_s=1)
        text = f"the model `{quote_name(name or prompt.model)}` does not exist; models here: {others}"
        raise NotFound(text, param="model", code="model_not_found")
    return served
