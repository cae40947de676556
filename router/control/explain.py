"""Explain where a request would be sent now, by everything up to the decision and nothing after it.

The prompt is read and its model resolved by the functions of `router/request/route.py`, and the same scheduler
decides over the same fleet, so the answer is what the request would get. Nothing is booked, counted, recorded or
learned, and no request number, retry or breaker trial is used up. Therefore

    token ids    are computed here, or by an engine's tokenizer through a separate client, which learns nothing
    the pool     is not queried, since it counts and caches queries; its overlap is unknown, as the answer notes
    the arm      of an experiment is looked up, not entered
    a pair       is not chosen: the answer is for the whole request, as the answer notes
    ties         in a large fleet are broken among all targets; a request draws from a few (`shortlist.py`), as the
                 answer notes
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.vllm.disaggregation import can_split
from router.clock import Clock
from router.config.schema import Config
from router.control.feature import ResolveName
from router.errors import BadRequest, NoTarget, list_names, quote_name
from router.fleet.instance import ServedModel
from router.kvcache.events import TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.lineage import as_name, make_lineage
from router.prompt.api.parse import ReadOptions, RequestHeaders, read_prompt
from router.prompt.prompt import Chat, Ids, Prompt, PromptFields, UnknownIds
from router.prompt.tokenization.remote_ids import find_remote_ids
from router.prompt.tokenization.tokenization import Tokenization
from router.request.experiment_unit import derive_unit
from router.request.models import check_allowed, name_model, resolve_model
from router.request.route import locate_response
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.explanation import explain
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.policy.record_view import OPEN_BREAKERS, SLOW_PROBES, describe_decision, to_plain
from router.scheduling.scheduler import Scheduler
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.shortlist import SMALL
from router.tenants.directory import TenantDirectory
from router.tenants.tenant import Tenant
from scorers.contract import Needs


class ExplainRequest(NamedTuple):
    """A request to explain. The optional fields hold what the request's headers and API key would provide."""

    path: str
    body: bytes
    content_type: str | None = None
    policy: str | None = None  # the policy that chooses; None: the one that would decide
    session: str | None = None
    parent: str | None = None
    client: str | None = None  # name of the client's tenant
    ttft_ms: str | None = None
    tpot_ms: str | None = None


class _Placement(NamedTuple):
    """The experiment arm that the request would be assigned to, and a note for the answer."""

    arm: str | None
    note: str | None = None


@dataclass(frozen=True)
class Explain:
    """Explains requests. `read_options` must include the prompt's source, because the overlap is reported even when
    no policy needs it.
    """

    config: Config
    clock: Clock
    scheduler: Scheduler
    tokenization: Tokenization
    remote: EngineTokenizer  # a separate client, which takes no turn from requests
    read_options: ReadOptions
    tenants: TenantDirectory | None = None
    resolve_name: ResolveName | None = None  # None: there are no aliases

    @property
    def body_bytes(self) -> int:
        return self.config.limits.body_bytes

    @property
    def extra_paths(self) -> frozenset[str]:
        """POST paths that the configuration adds to the built-in ones."""
        return frozenset(extra.path for extra in self.config.edge.extra_endpoints if extra.method == "POST")

    async def explain(self, request: ExplainRequest) -> dict[str, Any]:
        """Return the decision as plain JSON types. Raises NoTarget, or `RequestRefused` as the router would."""
        tenant = None
        if request.client is not None and self.tenants is not None:
            tenant = self.tenants.find(request.client)
        prompt, served = await self._read(request, tenant)
        known = await self._tokenize(prompt, served)
        record = self._create_record(request, prompt)
        placement = self._place(request, prompt, record)
        only = locate_response(prompt, tenant, self.scheduler)
        tokens = known if isinstance(known, TokenizedPrompt) else None
        scheduled = SchedulingRequest(record, prompt, served, tokens)
        decision = explain(self.scheduler, scheduled, self.clock.now(), only)
        if decision is None:
            raise NoTarget("no engine can serve this model now")
        policy = record.policy
        assert policy is not None, "placed"
        description = describe_decision(decision, policy)
        notes = [
            placement.note,
            self._note_on_panic(decision),
            self._note_on_pool(policy.needs),
            self._note_on_pairs(prompt, only),
            None if only is None else f"only {only} has the response that it continues",
            _note_on_ties(decision, policy),
        ]
        return {
            "target": description["target"],
            "why": description["why"],
            "model": prompt.model,
            "policy": policy.name,
            "policy_digest": policy.digest,
            "arm": placement.arm,
            "tokens": _describe_tokens(known),
            "overlap": to_plain(decision.row.overlap),
            "pool": "none" if self.config.pool is None else "not asked",
            "notes": [note for note in notes if note is not None],
            "decision": description,
        }

    async def _read(self, request: ExplainRequest, tenant: Tenant | None) -> tuple[Prompt, ServedModel | None]:
        """Return the prompt, aliases resolved, and the model that serves it."""
        session = as_name(request.session)
        lineage = None if session is None else make_lineage(session, as_name(request.parent))
        headers = RequestHeaders(lineage, request.ttft_ms, request.tpot_ms)
        scope = None if tenant is None else tenant.scope

        async def read(body: bytes) -> Prompt:
            fields = request.path, request.content_type, body, self.read_options, headers, scope
            prompt = await asyncio.to_thread(read_prompt, *fields)
            self.scheduler.conversations.preview(prompt)
            return prompt

        prompt = await read(request.body)
        if prompt.model is None:
            name_model(prompt, self.scheduler.fleet, tenant)
        check_allowed(prompt.model, tenant)
        name = prompt.model
        if self.resolve_name is not None:
            prompt = await self.resolve_name(prompt, request.body, tenant, read)
        return prompt, resolve_model(prompt, self.scheduler, name)

    async def _tokenize(self, prompt: Prompt, served: ServedModel | None) -> TokenizedPrompt | UnknownIds:
        """Return token ids and block keys as a request would get them, whether or not a policy in use needs
        them.
        """
        source = prompt.source
        if isinstance(source, UnknownIds):
            return source
        if served is None:
            return UnknownIds("no_model")
        sizes = self.scheduler.block_sizes(served.base)
        if isinstance(source, Ids) or self.tokenization.source(served.base, prompt.endpoint) != "remote":
            longest = self.scheduler.fleet.context_tokens(served.base)
            return await self.tokenization.tokenize(
                prompt, served.base, served.adapter, sizes, (), context_tokens=longest, remember=False
            )
        candidates = self.scheduler.fleet.candidates(served.base, (), self.clock.now())
        instances = list(dict.fromkeys(target.instance.id for target in candidates))
        budget_s = self.config.tokens.budget_ms / 1e3
        if isinstance(source, Chat):
            fields = self.tokenization.fit_tools(PromptFields(source, prompt.remote_fields), served.base)
            if isinstance(fields.source, UnknownIds):
                return fields.source
            prompt = replace(prompt, source=fields.source, remote_fields=fields.remote_fields)
        found = await find_remote_ids(self.remote, prompt, served.base, instances, lambda: budget_s)
        if isinstance(found, UnknownIds):
            return found
        with_ids = replace(prompt, source=Ids(list(found.ids)))
        known = await self.tokenization.tokenize(with_ids, served.base, served.adapter, sizes, ())
        return known._replace(source="remote", complete=found.complete) if isinstance(known, TokenizedPrompt) else known

    def _create_record(self, request: ExplainRequest, prompt: Prompt) -> Record:
        """Return the record that the decision needs. It is not kept."""
        return Record(
            id="",
            number=self.scheduler.selector.request_count,
            arrived_s=self.clock.now(),
            at_wall_s=self.clock.wall(),
            endpoint=prompt.path,
            model=prompt.model or "",
            stream=prompt.stream,
            tokens_from="",
            prompt_tokens_counted=None,
            stages=Stages(),
            client=request.client,
        )

    def _place(self, request: ExplainRequest, prompt: Prompt, record: Record) -> _Placement:
        """Set the policy that would decide, and its arm, on `record`."""
        policy_set = self.scheduler.selector.policy_set
        experiment = policy_set.experiment
        if request.policy is not None:
            record.policy = _find_policy(request.policy, policy_set)
            return _Placement(None)
        if experiment is None or policy_set.first is None:
            record.policy = policy_set.policy
            return _Placement(None)
        conversations = self.scheduler.conversations
        unit, other = (
            derive_unit(experiment, prompt, conversations, request.client, id, record.at_wall_s) for id in ("a", "b")
        )
        if unit == other:
            record.arm, record.policy = policy_set.assign(unit)
            return _Placement(record.arm)
        # Each request without a unit of its own draws its arm by its id, so its arm is not known before it arrives.
        record.arm, record.policy = policy_set.first, policy_set.policies[experiment.policies[policy_set.first]]
        shares = ", ".join(f"{arm} {share:g} %" for arm, share in experiment.shares.items())
        return _Placement(
            None,
            f"nothing here names its {experiment.unit}, so it would draw an arm of its own ({shares}); this is what "
            f"the first one would do, {policy_set.first}",
        )

    def _note_on_panic(self, decision: Decision) -> str | None:
        target = self.scheduler.fleet.target(TargetId(decision.target))
        if target is not None and target.instance.is_slow:
            return SLOW_PROBES
        return None if target is None or target.breaker.allows(self.clock.now()) else OPEN_BREAKERS

    def _note_on_pool(self, needs: Needs) -> str | None:
        if self.config.pool is None or Needs.POOL not in needs:
            return None
        return "the shared pool was not queried, so its content is unknown here; a request would query it"

    def _note_on_pairs(self, prompt: Prompt, only: TargetId | None) -> str | None:
        if only is not None or not self.scheduler.peers or not can_split(prompt.endpoint, prompt.body):
            return None
        return "a request like this may be split over a prefill and a decode instance; this is for the whole of it"


def _find_policy(name: str, policy_set: PolicySet) -> Policy:
    if name not in policy_set.policies:
        text = f"there is no policy `{quote_name(name)}`; policies here: {list_names(policy_set.policies)}"
        raise BadRequest(text, param="policy", code="unknown_policy")
    return policy_set.policies[name]


def _note_on_ties(decision: Decision, policy: Policy) -> str | None:
    """Return a note if the target is one of several equals: all targets of a large fleet are scored here, while a
    request scores and draws from a few of many equal ones.
    """
    if len(decision.view.rows) <= SMALL or policy.orders is None or decision.margin != 0:
        return None
    return f"one of {decision.costs.count(min(decision.costs))} equals, by chance; a request may draw another"


def _describe_tokens(known: TokenizedPrompt | UnknownIds) -> dict[str, Any]:
    """Describe where the token ids came from, or why there are none."""
    if isinstance(known, UnknownIds):
        return {"from": known.reason, "prompt_tokens": None, "leading_tokens": None}
    tokens = len(known.ids)
    return {
        "from": known.source,
        "prompt_tokens": tokens if known.complete else None,
        "leading_tokens": tokens,  # in a prompt with media, the tokens before the media
        "tokens_ms": known.tokens_ms,
        "keys_ms": known.keys_ms,
    }
