"""A request that needs a place: its tenant, urgency, session, and the prompt that an engine would compute."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from router.features.admission.shared_prefixes import PromptPrefix, sample_prefix
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt
from router.request.request import Request
from router.scheduling.conversations import Conversations
from router.tenants.tenant import Tenant
from scorers.admission.contract import NO_CLAIM, Claim

SESSION_BYTES = 16  # as many as in names of conversations


class HeldPrefix(NamedTuple):
    """The longest leading part of a prompt that some target holds in a tier of its own, or soon will."""

    tokens: int
    holders: tuple[str, ...]  # the targets that hold all of it, or nearly all; a few at most


class PendingRequest(NamedTuple):
    """A request that needs a place, as admission knows it."""

    session: bytes | None  # None: it cannot be recognised again
    prompt_tokens: int | None  # None: unknown
    tokens: TokenizedPrompt | None = None  # None: unknown, or known to another process only
    held: HeldPrefix | None = None  # used if `tokens` is None: the prefix that targets hold; None: unknown
    prefix: PromptPrefix | None = None  # to find what the prompt shares with others; None: unknown
    claim: Claim = NO_CLAIM


def describe_request(request: Request, conversations: Conversations) -> PendingRequest:
    """Describe a request whose tokenization has been tried; its token ids may be unknown."""
    prompt, known = request.prompt, request.known
    session, claim = derive_session(prompt, conversations), derive_claim(prompt, request.call.tenant, request.arrived_s)
    if known is not None:
        return PendingRequest(session, len(known.ids), known, None, sample_prefix(known), claim)
    return PendingRequest(session, None, claim=claim)


def leaves_context(prompt: Prompt) -> bool:
    """Return whether an engine computes a prompt that a later request could need again, as far as visible here.
    False for a request that continues a stored response without naming a session: its session cannot be recognised,
    so it is admitted.
    """
    return prompt.endpoint is not Endpoint.OTHER and (prompt.previous_response_id is None or prompt.session is not None)


def derive_session(prompt: Prompt, conversations: Conversations) -> bytes | None:
    """Return a digest of the client's name of the session, else the conversation's name; None without either."""
    if prompt.session is None:
        return conversations.identify(prompt)
    return blake2b(prompt.session.encode(errors="surrogatepass"), digest_size=SESSION_BYTES).digest()


def derive_claim(prompt: Prompt, tenant: Tenant | None, arrived_s: float) -> Claim:
    """Return the claim of a request that arrived at `arrived_s`. Its priority is the request's own or 0, limited to
    the most urgent that its tenant may use (`service_classes.*.highest_priority`). Its deadline follows from the
    request's objective for the first token.
    """
    priority = prompt.priority or 0
    deadline_s = None if prompt.ttft_ms is None else arrived_s + prompt.ttft_ms / 1e3
    if tenant is None:
        return Claim(None, 1.0, priority, deadline_s)
    config = tenant.service_class.config
    if config.highest_priority is not None:
        priority = max(priority, config.highest_priority)
    return Claim(tenant.name, config.weight, priority, deadline_s)
