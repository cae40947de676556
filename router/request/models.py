"""The models that requests name: which is implied where none is named, and what a name stands for."""

from __future__ import annotations

from router.errors import BadRequest, Forbidden, NoTarget, NotFound, list_names, quote_name
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel
from router.prompt.prompt import Endpoint, Prompt
from router.scheduling.scheduler import Scheduler
from router.tenants.tenant import Tenant


def name_model(prompt: Prompt, fleet: Fleet, tenant: Tenant | None, *, implied: bool = True) -> None:
    """Let a prompt that names no model be for the only base model, as engines take it; the body stays. One that is
    placed by load needs no name, unless its tenant may use some models only: whatever its body is, an engine of
    another model must not get it. Raises `BadRequest` where there are several models, or none is `implied`;
    `NoTarget` where none is known yet.
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
    """Return whether there is no list of the models that the tenant may use."""
    return tenant is None or tenant.service_class.allows_all


def check_allowed(model: str | None, tenant: Tenant | None) -> None:
    """Raise `Forbidden` for a model that the tenant may not use, by the name that the client gives it."""
    if model is None or tenant is None or tenant.service_class.allows(model):
        return
    raise Forbidden(
        f"the model `{quote_name(model)}` is not among those that {quote_name(tenant.name)} may use",
        param="model",
        code="model_not_allowed",
    )


def resolve_model(prompt: Prompt, scheduler: Scheduler, name: str | None) -> ServedModel | None:
    """Return the served model that `prompt` names; None where the request names none (load-placed endpoints only).
    `name` is the client's own for it. Raises `NotFound` for one that no instance serves, `NoTarget` for one that
    never was while no instance is ready to say what it serves.
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
