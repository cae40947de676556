"""8xx: health checking."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2

from router.errors import quote_name
from router.picker.names import EXT_PROC
from tests.picker_conformance.case import (
    EPP,
    HEALTH,
    LLMD,
    MUST,
    SHOULD,
    CaseResult,
    conformance_case,
    judge,
    judge_all,
)
from tests.picker_conformance.peer import PickerPeer

CHECK = "/grpc.health.v1.Health/Check"
LIVENESS, READINESS = "liveness", "readiness"
NOBODY = "com.example.nobody"
UNIMPLEMENTED = "UNIMPLEMENTED"


async def _check(peer: PickerPeer, service: str) -> str:
    """Return the serving status of a service, or the gRPC status of a call that failed."""
    call = peer.health.unary_unary(
        CHECK,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    try:
        async with asyncio.timeout(peer.timeout_s):
            answer = await call(health_pb2.HealthCheckRequest(service=service))
    except TimeoutError:
        return f"nothing for {peer.timeout_s:g} s"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def _say(service: str, status: str) -> str:
    hint = " (name the port that serves health with --health-port)" if status == UNIMPLEMENTED else ""
    return f"{quote_name(service) or 'empty name'}: {status}{hint}"


async def _serves(peer: PickerPeer, service: str) -> CaseResult:
    status = await _check(peer, service)
    return judge(status == "SERVING", _say(service, status))


@conformance_case(
    801,
    MUST,
    "The health service `liveness` is SERVING while the picker's process answers.",
    sent="`grpc.health.v1.Health/Check` of `liveness`",
    expected="SERVING, also where the pool is empty",
    source=EPP,
    needs_endpoint=False,
)
async def is_alive(peer: PickerPeer) -> CaseResult:
    return await _serves(peer, LIVENESS)


@conformance_case(
    802,
    MUST,
    "The health service `readiness` is SERVING when the picker knows its pool and leads.",
    sent="`grpc.health.v1.Health/Check` of `readiness`",
    expected="SERVING",
    source=EPP,
)
async def is_ready(peer: PickerPeer) -> CaseResult:
    return await _serves(peer, READINESS)


@conformance_case(
    803,
    MUST,
    "The health service of the external processor says what `readiness` says.",
    sent=f"`grpc.health.v1.Health/Check` of `{EXT_PROC}` and of `readiness`",
    expected="the same status, SERVING or NOT_SERVING",
    source=EPP,
    needs_endpoint=False,
)
async def says_the_same_of_the_service(peer: PickerPeer) -> CaseResult:
    service, readiness = await _check(peer, EXT_PROC), await _check(peer, READINESS)
    same = service == readiness and service in ("SERVING", "NOT_SERVING")
    return judge(same, f"{_say(EXT_PROC, service)}; {_say(READINESS, readiness)}")


@conformance_case(
    804,
    SHOULD,
    "The health of the server as a whole, the service without a name, is SERVING.",
    sent="`grpc.health.v1.Health/Check` without a service",
    expected="SERVING",
    source=HEALTH,
)
async def is_healthy_as_a_whole(peer: PickerPeer) -> CaseResult:
    return await _serves(peer, "")


@conformance_case(
    805,
    SHOULD,
    "A health service that nobody knows is not SERVING.",
    sent=f"`grpc.health.v1.Health/Check` of `{NOBODY}`",
    expected="gRPC status NOT_FOUND, or SERVICE_UNKNOWN",
    source=HEALTH,
    needs_endpoint=False,
)
async def does_not_know_everybody(peer: PickerPeer) -> CaseResult:
    status = await _check(peer, NOBODY)
    return judge(status in ("NOT_FOUND", "SERVICE_UNKNOWN"), _say(NOBODY, status))


@conformance_case(
    806,
    SHOULD,
    "The service `inference-extension`, which the probes of llm-d's charts ask for, is SERVING.",
    sent="`grpc.health.v1.Health/Check` of `inference-extension`",
    expected="SERVING",
    source=LLMD,
)
async def answers_the_probes(peer: PickerPeer) -> CaseResult:
    return await _serves(peer, "inference-extension")


@conformance_case(
    807,
    MUST,
    "Health is answered while requests are open.",
    sent="`liveness` and `readiness` while a request waits for its response",
    expected="SERVING",
    source=EPP,
)
async def is_healthy_under_way(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        await conversation.ask(peer.chat())
        findings = [await _serves(peer, LIVENESS), await _serves(peer, READINESS)]
    return judge_all(findings)


CASES = (
    is_alive,
    is_ready,
    says_the_same_of_the_service,
    is_healthy_as_a_whole,
    does_not_know_everybody,
    answers_the_probes,
    is_healthy_under_way,
)
