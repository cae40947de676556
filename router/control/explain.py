"""What would happen to a request now: the whole way to a decision, and not one step further.

The prompt is read and its model looked up by the route's own functions, and the same core looks at the same fleet, so
the answer is the request's own. What a request leaves behind on its way is what differs: nothing is booked, counted,
recorded or learned, and no number, retry or breaker trial is used up. Therefore

    token ids    are made here, or by an engine's tokenizer, asked past the room that counts and compares its answers
    the pool     is not asked: it remembers and counts whoever asks. It is unknown here, and the answer says so
    the arm      of an experiment is looked up, not entered
    a pair       is not chosen: the answer is for the request as a whole, and says so
    equals       of a large fleet are drawn from all of them; a request draws from a few (`shortlist.py`), and the
                 answer says so
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from router.backends.fetch import Fetch
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.vllm.disaggregation import can_split
from router.clock import Clock
from router.config.schema import Config
from router.config.sections.experiment import ExperimentConfig
from router.errors import BadRequest, NoTarget
from router.fleet.instance import ServedModel
from router.kvcache.events import TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat, Ids, Prompt, UnknownIds
from router.prompt.request_headers import RequestHeaders
from router.prompt.tokenization.tokenization import Tokenization
from router.request.experiment_unit import derive_unit
from router.request.route import locate_response, resolve_model
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.policy.record_view import describe_decision, to_plain
from router.scheduling.scheduler import Scheduler
from router.scheduling.shortlist import SMALL
from scorers.contract import Needs


class ExplainRequest(NamedTuple):
    """A request that is not to happen."""

    path: str
    body: bytes
    content_type: str | None = None
    policy: str | None = None  # whose choice is wanted; None: whichever would decide
    session: str | None = None  # as its header would name it
    client: str | None = None  # the name of its API key
    ttft_ms: str | None = None  # the objectives, as its headers would give them
    tpot_ms: str | None = None


class _Placed(NamedTuple):
    """Where it stands, with what must be said of that."""

    arm: str | None
    note: str | None = None


class Explain:
    """`reading` must want the prompt's source: an overlap is worth knowing even where no policy asks for it."""

    def __init__(
        self, config: Config, clock: Clock, core: Scheduler, tokens: Tokenization, fetch: Fetch, reading: ReadOptions
    ) -> None:
        self._config = config
        self._clock = clock
        self._core = core
        self._tokens = tokens
        self._remote = EngineTokenizer(fetch)  # of our own: its turns are nobody else's
        self._reading = reading

    @property
    def body_bytes(self) -> int:
        return self._config.limits.body_bytes

    @property
    def extra_paths(self) -> frozenset[str]:
        """Of the configuration, beside those that every engine has."""
        return frozenset(extra.path for extra in self._config.edge.extra_endpoints if extra.method == "POST")

    async def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        """The decision for people, as plain JSON types. Raises `Refused` as the route would."""
        prompt = self._read(asked)
        served = resolve_model(prompt, self._core)
        known = await self._known(prompt, served)
        record = self._record(asked, prompt)
        placed = self._place(asked, prompt, record)
        only = locate_response(prompt.previous_response_id, self._core)
        decision = self._decision(record, prompt, served, known, only)
        policy = record.policy
        assert policy is not None, "placed"
        shown = describe_decision(decision)
        notes = [
            placed.note,
            self._about_pool(policy.needs),
            self._about_pairs(prompt, only),
            _about_pin(only),
            _about_equals(decision, policy),
        ]
        return {
            "target": shown["target"],
            "why": shown["why"],
            "policy": policy.name,
            "policy_digest": policy.digest,
            "arm": placed.arm,
            "tokens": _about_tokens(known),
            "overlap": to_plain(decision.row.overlap),
            "pool": "none" if self._config.pool is None else "not asked",
            "notes": [note for note in notes if note is not None],
            "decision": shown,
        }

    def _read(self, asked: ExplainRequest) -> Prompt:
        return read_prompt(
            asked.path,
            asked.content_type,
            asked.body,
            self._reading,
            RequestHeaders(asked.session, asked.ttft_ms, asked.tpot_ms),
        )

    async def _known(self, prompt: Prompt, served: ServedModel | None) -> TokenizedPrompt | UnknownIds:
        """As a request's, whatever the policies in use need."""
        source = prompt.source
        if isinstance(source, UnknownIds):
            return source
        if served is None:
            return UnknownIds("no_model")
        sizes = self._core.block_sizes(served.base)
        if isinstance(source, Ids) or not self._tokens.uses_remote(served.base):
            return await self._tokens.tokenize(prompt, served.base, served.adapter, sizes, (), remember=False)
        if isinstance(source, Chat) and source.has_media:
            return UnknownIds("media")
        candidates = self._core.fleet.candidates(served.base, (), self._clock.now())
        instances = list(dict.fromkeys(target.instance.id for target in candidates))
        budget_s = self._config.tokens.budget_ms / 1e3
        ids = await self._remote.tokenize(prompt.remote_fields, prompt.model or served.base, instances, budget_s)
        if isinstance(ids, str):
            return UnknownIds(ids)
        given = replace(prompt, source=Ids(list(ids)))
        known = await self._tokens.tokenize(given, served.base, served.adapter, sizes, ())
        return known._replace(source="remote") if isinstance(known, TokenizedPrompt) else known

    def _record(self, asked: ExplainRequest, prompt: Prompt) -> Record:
        """What a decision is made for. Nobody else sees it."""
        now = self._clock.now()
        return Record(
            id="",
            number=self._core.selector.request_count,
            arrived_s=now,
            at_wall_s=self._clock.wall(),
            endpoint=prompt.path,
            model=prompt.model or "",
            stream=prompt.stream,
            tokens_from="",
            prompt_tokens_counted=None,
            stages=Stages(),
            client=asked.client,
        )

    def _place(self, asked: ExplainRequest, prompt: Prompt, record: Record) -> _Placed:
        """Puts the policy that would decide, and its arm, on `record`."""
        regime = self._core.selector.policy_set
        experiment = regime.experiment
        if asked.policy is not None:
            record.policy = _named(asked.policy, regime)
            return _Placed(None)
        if experiment is None or regime.first is None:
            record.policy = regime.policy
            return _Placed(None)
        unit, other = (derive_unit(experiment, prompt, asked.client, id, record.at_wall_s) for id in ("a", "b"))
        if unit == other:
            record.arm, record.policy = regime.assign(unit)
            return _Placed(record.arm)
        record.arm, record.policy = regime.first, regime.policies[regime.first]
        return _Placed(None, _draws_its_own(experiment, regime.first))

    def _decision(
        self,
        record: Record,
        prompt: Prompt,
        served: ServedModel | None,
        known: TokenizedPrompt | UnknownIds,
        only: TargetId | None,
    ) -> Decision:
        decision = self._core.explain(
            record, prompt, served, known if isinstance(known, TokenizedPrompt) else None, only
        )
        if decision is None:
            raise NoTarget("no engine can serve this model now")
        return decision

    def _about_pool(self, needs: Needs) -> str | None:
        if self._config.pool is None or Needs.POOL not in needs:
            return None
        return "the shared pool was not asked, so what it holds is unknown here; a request would ask it"

    def _about_pairs(self, prompt: Prompt, only: TargetId | None) -> str | None:
        if only is not None or not self._core.peers or not can_split(prompt.endpoint, prompt.body):
            return None
        return "a request like this may be split over a prefill and a decode instance; this is for the whole of it"


def _named(policy: str, regime: PolicySet) -> Policy:
    if policy not in regime.policies:
        names = ", ".join(sorted(regime.policies))
        raise BadRequest(
            f"there is no policy `{policy}`; policies here: {names}", param="policy", code="unknown_policy"
        )
    return regime.policies[policy]


def _draws_its_own(experiment: ExperimentConfig, first: str) -> str:
    """Of a request that stands for itself alone: which arm it would be on is drawn when it comes."""
    shares = ", ".join(f"{arm} {share:g} %" for arm, share in experiment.arms.items())
    return (
        f"nothing here names its {experiment.unit}, so it would draw an arm of its own ({shares}); this is what the "
        f"first one would do, {first}"
    )


def _about_pin(only: TargetId | None) -> str | None:
    return None if only is None else f"only {only} knows the response that it goes on from"


def _about_equals(decision: Decision, policy: Policy) -> str | None:
    """All of a large fleet are priced here. A request sees a few of many equals, and draws from these."""
    if len(decision.view.rows) <= SMALL or policy.orders is None or decision.margin != 0:
        return None
    return f"one of {decision.costs.count(min(decision.costs))} equals, by chance; a request may draw another"


def _about_tokens(known: TokenizedPrompt | UnknownIds) -> dict[str, Any]:
    """Where the ids came from, or why there are none."""
    if isinstance(known, UnknownIds):
        return {"from": known.reason, "prompt_tokens": None, "leading_tokens": None}
    tokens = len(known.ids)
    return {
        "from": known.source,
        "prompt_tokens": tokens if known.complete else None,
        "leading_tokens": tokens,  # of a prompt with media: those before it
        "tokens_ms": known.tokens_ms,
        "keys_ms": known.keys_ms,
    }
