"""3xx: the endpoint subset."""

from __future__ import annotations

from router.picker.names import SUBSET, SUBSET_HINT
from tests.picker_conformance.case import (
    EPP,
    LLMD,
    MAY,
    MUST,
    SHOULD,
    CaseResult,
    conformance_case,
    judge,
    judge_all,
    skip,
)
from tests.picker_conformance.conversation import RequestOutcome
from tests.picker_conformance.describe import describe_request
from tests.picker_conformance.messages import (
    RequestVector,
    subset,
)
from tests.picker_conformance.peer import PickerPeer

UNKNOWN = ("192.0.2.1:8000", "192.0.2.2:8000", "[2001:db8::1]:8000")  # documentation addresses
MOST = 4  # endpoints that are asked for one by one
ONE_ENDPOINT = "the picker showed one endpoint only"


async def _ask(peer: PickerPeer, request: RequestVector) -> RequestOutcome:
    async with peer.converse() as conversation:
        return await conversation.ask(request)


@conformance_case(
    301,
    MUST,
    f"With `{SUBSET}` in the filter metadata `{SUBSET_HINT}` the choice is from that list.",
    sent="for up to four endpoints: a subset of this one, twice",
    expected="that endpoint",
    source=EPP,
)
async def chooses_from_the_subset(peer: PickerPeer) -> CaseResult:
    findings = []
    for endpoint in peer.endpoints[:MOST] * 2:
        outcome = await _ask(peer, peer.within([endpoint]))
        findings.append(judge(outcome.endpoints == [endpoint], f"of {endpoint}: {describe_request(outcome)}"))
    return judge_all(findings)


@conformance_case(
    302,
    MUST,
    "Entries of the subset that the picker does not know are passed over.",
    sent="a subset of unknown addresses and one endpoint, first and last in the list",
    expected="that endpoint",
    source=EPP,
)
async def passes_over_unknown_entries(peer: PickerPeer) -> CaseResult:
    known = peer.endpoints[-1]
    findings = []
    for entries in ([known, *UNKNOWN], [*UNKNOWN, known]):
        outcome = await _ask(peer, peer.within(entries))
        findings.append(judge(outcome.endpoints == [known], f"known {known}: {describe_request(outcome)}"))
    return judge_all(findings)


@conformance_case(
    303,
    MUST,
    "When no endpoint of the subset is eligible the request is refused with 503.",
    sent="a subset of unknown addresses",
    expected="`ImmediateResponse` 503",
    source=EPP,
)
async def refuses_an_unknown_subset(peer: PickerPeer) -> CaseResult:
    outcome = await _ask(peer, peer.within(list(UNKNOWN)))
    return judge(outcome.status == 503, describe_request(outcome))


@conformance_case(
    304,
    MUST,
    "When the subset is an empty list the request is refused with 503.",
    sent="an empty subset",
    expected="`ImmediateResponse` 503",
    source=EPP,
)
async def refuses_an_empty_subset(peer: PickerPeer) -> CaseResult:
    outcome = await _ask(peer, peer.within([]))
    return judge(outcome.status == 503, describe_request(outcome))


@conformance_case(
    305,
    MUST,
    "All of a list of choices is from the subset, not only the first one.",
    sent="a subset that leaves one endpoint out, four times",
    expected="no endpoint outside of it, in any place of the list",
    source=EPP,
)
async def keeps_fallbacks_in_the_subset(peer: PickerPeer) -> CaseResult:
    if len(peer.endpoints) < 2:
        return skip(ONE_ENDPOINT)
    inside = list(peer.endpoints[1:])
    findings = []
    for _ in range(MOST):
        outcome = await _ask(peer, peer.within(inside))
        kept = bool(outcome.endpoints) and set(outcome.endpoints) <= set(inside)
        findings.append(judge(kept, describe_request(outcome)))
    return judge_all(findings)


@conformance_case(
    306,
    MUST,
    "The namespace without the key is no subset.",
    sent=f"`{SUBSET_HINT}` with another key",
    expected="a choice",
    source=EPP,
)
async def takes_no_key_for_no_subset(peer: PickerPeer) -> CaseResult:
    outcome = await _ask(peer, peer.chat(metadata={SUBSET_HINT: {"com.example.other": list(UNKNOWN)}}))
    return judge(bool(outcome.endpoints), describe_request(outcome))


@conformance_case(
    307,
    MUST,
    "The subset of a request without a body counts as well.",
    sent="a GET with a subset of one endpoint, and one with unknown addresses",
    expected="that endpoint; `ImmediateResponse` 503; skipped where such a GET is refused anyway",
    source=EPP,
)
async def keeps_the_subset_without_body(peer: PickerPeer) -> CaseResult:
    known = peer.endpoints[-1]
    free = await _ask(peer, peer.get())
    if free.refusal is not None:
        return skip(f"without a subset: {describe_request(free)}")
    hit = await _ask(peer, peer.get(subset([known])))
    missed = await _ask(peer, peer.get(subset(UNKNOWN)))
    return judge_all(
        (
            judge(hit.endpoints == [known], f"of {known}: {describe_request(hit)}"),
            judge(missed.status == 503, f"of unknown: {describe_request(missed)}"),
        )
    )


@conformance_case(
    308,
    MUST,
    "The subset is that of one HTTP request, and does not outlive it.",
    sent="a request with a subset of unknown addresses, then one without a subset",
    expected="503, then a choice",
    source=EPP,
)
async def forgets_the_subset(peer: PickerPeer) -> CaseResult:
    await _ask(peer, peer.within(list(UNKNOWN)))
    outcome = await _ask(peer, peer.chat())
    return judge(bool(outcome.endpoints), f"then {describe_request(outcome)}")


@conformance_case(
    309,
    SHOULD,
    "A subset is understood as one text with commas, too: some data planes cannot set lists.",
    sent="a text of an unknown address and an endpoint, and one of unknown addresses",
    expected="that endpoint; `ImmediateResponse` 503",
    source=LLMD,
)
async def reads_a_subset_as_text(peer: PickerPeer) -> CaseResult:
    known = peer.endpoints[-1]
    hit = await _ask(peer, peer.within(f"{UNKNOWN[0]}, {known}"))
    missed = await _ask(peer, peer.within(",".join(UNKNOWN)))
    return judge_all(
        (
            judge(hit.endpoints == [known], f"of {known}: {describe_request(hit)}"),
            judge(missed.status == 503, f"of unknown: {describe_request(missed)}"),
        )
    )


@conformance_case(
    310,
    MAY,
    "An entry without a port means every endpoint of that address.",
    sent="a subset of the bare address of an endpoint",
    expected="an endpoint of that address",
    source=LLMD,
)
async def reads_a_bare_address(peer: PickerPeer) -> CaseResult:
    known = peer.endpoints[-1]
    host = known.rpartition(":")[0]
    outcome = await _ask(peer, peer.within([host.strip("[]")]))
    inside = bool(outcome.endpoints) and all(one.rpartition(":")[0] == host for one in outcome.endpoints)
    return judge(inside, f"of {host}: {describe_request(outcome)}")


CASES = (
    chooses_from_the_subset,
    passes_over_unknown_entries,
    refuses_an_unknown_subset,
    refuses_an_empty_subset,
    keeps_fallbacks_in_the_subset,
    takes_no_key_for_no_subset,
    keeps_the_subset_without_body,
    forgets_the_subset,
    reads_a_subset_as_text,
    reads_a_bare_address,
)
