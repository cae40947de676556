"""Pickers that each break one clause: for every case, those with which it must fail."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from router.picker import ext_proc_pb2 as pb
from router.picker.names import DESTINATION, LB, SUBSET, SUBSET_HINT
from tests.picker_conformance.reference_picker import (
    END,
    ENDPOINTS,
    NOT_SERVING,
    PIECE_BYTES,
    SERVING,
    Answers,
    PickerSession,
    ReferencePicker,
    refusal,
    request_piece,
    response_piece,
)

WRONG: dict[int, list[type[ReferencePicker]]] = {}


def breaks(number: int) -> Any:
    """Enter a class under the number of the case that it must fail: a picker, or the sessions of one."""

    def enter(wrong: type) -> type:
        if issubclass(wrong, ReferencePicker):
            picker: type[ReferencePicker] = wrong
        else:
            picker = type(wrong.__name__, (ReferencePicker,), {"__init__": _with_session(wrong)})
        WRONG.setdefault(number, []).append(picker)
        return wrong

    return enter


def _with_session(session: type[PickerSession]) -> Any:
    def init(self: ReferencePicker) -> None:
        ReferencePicker.__init__(self)
        self.session = session

    return init


# 1xx: service


@breaks(101)
class ServesAnotherService(ReferencePicker):
    service = "com.example.Picker"


@breaks(101)
class AnswersNothing(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        return [pb.ProcessingResponse()]


@breaks(102)
class ServesOneAtATime(ReferencePicker):
    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def process(self, messages: Any, context: Any) -> None:
        async with self.lock:
            await super().process(messages, context)


@breaks(103)
class KeepsThePlacesOfClientsThatLeft(ReferencePicker):
    open_limit = 20

    async def process(self, messages: Any, context: Any) -> None:
        before = self.open
        try:
            await super().process(messages, context)
        except asyncio.CancelledError:
            self.open = before + 1
            raise


@breaks(104)
class KnowsAllNamespaces(PickerSession):
    def subset(self, message: pb.ProcessingRequest) -> set[str] | None:
        if set(message.metadata_context.filter_metadata) - {SUBSET_HINT, LB}:
            raise ValueError("unknown namespace")
        return super().subset(message)


@breaks(105)
class ReadsRawValuesOnly(PickerSession):
    def value_of(self, header: pb.HeaderValue) -> str:
        return header.raw_value.decode()

    def refuse(self, body: bytes | None) -> pb.ProcessingResponse | None:
        return super().refuse(body) if self.headers.get(":path") else refusal(404, "no path")


@breaks(106)
class TakesNoModesForStreamed(PickerSession):
    def on(self, message: pb.ProcessingRequest) -> Answers:
        if message.HasField("request_headers") and not message.HasField("protocol_config"):
            self.modes = (pb.STREAMED, pb.STREAMED)
        return super().on(message)


@breaks(107)
class NeverEnds(ReferencePicker):
    async def process(self, messages: Any, context: Any) -> None:
        await super().process(messages, context)
        await asyncio.Event().wait()


@breaks(108)
class AnswersTwice(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        return [*super().response_body(message), pb.ProcessingResponse(response_headers=pb.HeadersResponse())]


@breaks(108)
class AnswersTheHeadersTwice(PickerSession):
    def request_headers(self, message: pb.ProcessingRequest) -> Answers:
        return super().request_headers(message) or [pb.ProcessingResponse(request_headers=pb.HeadersResponse())]


@breaks(109)
class AnswersObservers(PickerSession):
    def on(self, message: pb.ProcessingRequest) -> Answers:
        message.observability_mode = False
        return super().on(message)


# 2xx: choice


@breaks(201)
class SetsMetadataOnly(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        del answer.request_headers.response.header_mutation.set_headers[:]
        return answer


@breaks(201)
class SetsTheHeaderWithTheBody(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        if len(answers) > 1 and answers[0] is not None and answers[1] is not None:
            common = answers[0].request_headers.response
            answers[1].request_body.response.header_mutation.CopyFrom(common.header_mutation)
            common.ClearField("header_mutation")
        return answers


@breaks(202)
class SetsTheHeaderOnly(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        answer.ClearField("dynamic_metadata")
        return answer


@breaks(202)
class SetsMetadataWithTheBody(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        if len(answers) > 1 and answers[0] is not None and answers[1] is not None:
            answers[1].dynamic_metadata.CopyFrom(answers[0].dynamic_metadata)
            answers[0].ClearField("dynamic_metadata")
        return answers


@breaks(203)
class SetsTwoValues(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        if body is None:
            answer.dynamic_metadata.update({LB: {DESTINATION: value.split(",")[-1]}})
        return answer


@breaks(204)
class NamesHosts(ReferencePicker):
    endpoints = ("engine-1.llm.svc:8000", *ENDPOINTS[1:])


@breaks(204)
class LeavesBracketsOut(ReferencePicker):
    endpoints = (*ENDPOINTS[:2], "fd00::3:8000")


@breaks(204)
class SeparatesBySpaces(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        return super().choice(value.replace(",", " "), body)


@breaks(205)
class SetsText(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        header = answer.request_headers.response.header_mutation.set_headers[0].header
        header.value, header.raw_value = value, b""
        return answer


@breaks(205)
class SetsAnotherText(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        answer.request_headers.response.header_mutation.set_headers[0].header.value = "10.9.9.9:8000"
        return answer


@breaks(206)
class Appends(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        option = answer.request_headers.response.header_mutation.set_headers[0]
        option.MergeFromString(b"\x12\x02\x08\x01")  # field 2, `append`: true
        return answer


@breaks(206)
class AddsIfAbsent(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        answer.request_headers.response.header_mutation.set_headers[0].append_action = 1
        return answer


@breaks(206)
class OverwritesIfThere(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        answer.request_headers.response.header_mutation.set_headers[0].append_action = 3
        return answer


@breaks(206)
class TrustsTheClient(PickerSession):
    def choose(self) -> list[str]:
        return [self.headers[DESTINATION]] if DESTINATION in self.headers else super().choose()


@breaks(207)
class WaitsForABody(PickerSession):
    def request_headers(self, message: pb.ProcessingRequest) -> Answers:
        super().request_headers(message)
        return []


@breaks(207)
class AddsABodyToGet(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        return [*answers, request_piece(b"", True)] if body is None else answers


@breaks(208)
class ChoosesElsewhere(PickerSession):
    def choose(self) -> list[str]:
        return ["10.9.9.9:8000"]


@breaks(209)
class KeepsTheRouteCache(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        answer.request_headers.response.clear_route_cache = False
        return answer


@breaks(210)
class KeepsBooksByRequestId(ReferencePicker):
    def __init__(self) -> None:
        super().__init__()
        seen: set[str] = set()

        class BookKeeping(PickerSession):
            def refuse(self, body: bytes | None) -> pb.ProcessingResponse | None:
                if (name := self.headers.get("x-request-id", "")) and name in seen:
                    return refusal(500, "duplicate request id")
                seen.add(name)
                return super().refuse(body)

        self.session = BookKeeping


@breaks(211)
class KnowsNoModels(PickerSession):
    def refuse(self, body: bytes | None) -> pb.ProcessingResponse | None:
        return refusal(404, "no such path") if body is None else super().refuse(body)


# 3xx: subsets


@breaks(301)
class IgnoresSubsets(PickerSession):
    def subset(self, message: pb.ProcessingRequest) -> set[str] | None:
        return None


@breaks(302)
class WantsToKnowTheWholeSubset(PickerSession):
    def match(self, listed: set[str]) -> set[str]:
        return super().match(listed) if listed <= set(self.picker.endpoints) else set()


@breaks(302)
class TakesWhatTheSubsetSays(PickerSession):
    def match(self, listed: set[str]) -> set[str]:
        return listed

    def choose(self) -> list[str]:
        return super().choose() if self.allowed is None else sorted(self.allowed)[:1]


@breaks(303)
class ChoosesFromAllWhenNoneMatches(PickerSession):
    def match(self, listed: set[str]) -> set[str]:
        return super().match(listed) or (set(self.picker.endpoints) if listed else set())


@breaks(303)
class RefusesWith404(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        return super().decide(body, ends=ends) if self.allowed or self.allowed is None else [refusal(404, "none"), END]


@breaks(304)
class TakesAnEmptySubsetForNone(PickerSession):
    def match(self, listed: set[str]) -> set[str]:
        return super().match(listed) if listed else set(self.picker.endpoints)


@breaks(305)
class RetriesOutsideTheSubset(PickerSession):
    def choose(self) -> list[str]:
        chosen = super().choose()
        return chosen and [*chosen, *(one for one in self.picker.endpoints if one not in chosen)]


@breaks(306)
class TakesTheNamespaceForASubset(PickerSession):
    def subset(self, message: pb.ProcessingRequest) -> set[str] | None:
        named = SUBSET_HINT in message.metadata_context.filter_metadata
        allowed = super().subset(message)
        return set() if named and allowed is None else allowed


@breaks(307)
class ChoosesAnyForGet(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        self.allowed = None if body is None else self.allowed
        return super().decide(body, ends=ends)


@breaks(308)
class RemembersTheSubset(ReferencePicker):
    def __init__(self) -> None:
        super().__init__()
        remembered: list[set[str]] = []

        class Remembering(PickerSession):
            def subset(self, message: pb.ProcessingRequest) -> set[str] | None:
                allowed = super().subset(message)
                if allowed is not None:
                    remembered.append(allowed)
                return allowed if allowed is not None or not remembered else remembered[-1]

        self.session = Remembering


@breaks(309)
class KnowsListsOnly(PickerSession):
    def subset(self, message: pb.ProcessingRequest) -> set[str] | None:
        hint = message.metadata_context.filter_metadata[SUBSET_HINT]
        is_text = SUBSET in hint.fields and hint.fields[SUBSET].HasField("string_value")
        return None if is_text else super().subset(message)


@breaks(310)
class WantsPorts(PickerSession):
    def match(self, listed: set[str]) -> set[str]:
        return listed & set(self.picker.endpoints)


# 4xx: request bodies


@breaks(401)
class LosesTheEnd(PickerSession):
    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        return super().send_back(body[:-1], ends)


@breaks(401)
class MarksEveryPiece(PickerSession):
    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        return [request_piece(body[:10], True), request_piece(body[10:], True)]


@breaks(401)
class ChangesTheBody(PickerSession):
    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        return super().send_back(json.dumps(json.loads(body) | {"messages": []}).encode(), ends)


@breaks(402)
class SendsTheBodyFirst(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        return answers if END in answers else [*answers[1:], answers[0]]


@breaks(403)
class ReadsTheFirstPieceOnly(PickerSession):
    def request_body(self, message: pb.ProcessingRequest) -> Answers:
        self.body = self.body or message.request_body.body
        return self.decide(self.body) if message.request_body.end_of_stream else []


@breaks(403)
class DecodesEachPiece(PickerSession):
    def request_body(self, message: pb.ProcessingRequest) -> Answers:
        message.request_body.body = message.request_body.body.decode("utf-8", "replace").encode()
        return super().request_body(message)


@breaks(404)
class EndsWithABodyOnly(PickerSession):
    def request_body(self, message: pb.ProcessingRequest) -> Answers:
        return super().request_body(message) if message.request_body.body else []


@breaks(411)
class EndsBeforeTrailers(PickerSession):
    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        return super().send_back(body, True)


@breaks(405)
class LosesTheBodyBeforeTrailers(PickerSession):
    def request_trailers(self, message: pb.ProcessingRequest) -> Answers:
        self.body = b""
        return super().request_trailers(message)


@breaks(405)
class IgnoresTrailers(PickerSession):
    def request_trailers(self, message: pb.ProcessingRequest) -> Answers:
        return []


@breaks(406)
class CutsLongBodies(PickerSession):
    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        return super().send_back(body[:PIECE_BYTES], ends)


@breaks(407)
class CutsHugeBodies(PickerSession):
    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        return super().send_back(body[: 4 << 20], ends)


@breaks(408)
class TakesSmallMessages(ReferencePicker):
    message_bytes = 1 << 20


@breaks(409)
class SendsLargePieces(PickerSession):
    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        return [request_piece(body, ends)]


@breaks(410)
class SetsAWrongLength(PickerSession):
    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        return super().choice(value, body and body + b"x")


# 5xx: refusals


@breaks(501)
class HasNoEndpoints(ReferencePicker):
    endpoints = ()

    def __init__(self) -> None:
        super().__init__()

        class Failing(PickerSession):
            def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
                return [refusal(500, "no pods"), END]

        self.session = Failing


@breaks(502)
class DropsWith503(ReferencePicker):
    dropped_status = 503


@breaks(503)
class RefusesWith200(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        if answers[0] is not None and answers[0].HasField("immediate_response"):
            answers[0].immediate_response.status.code = 200
        return answers


@breaks(503)
class RefusesWithoutStatus(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        if answers[0] is not None and answers[0].HasField("immediate_response"):
            answers[0].immediate_response.ClearField("status")
        return answers


@breaks(504)
class SendsTheBodyAfterTheRefusal(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        return [*answers[:-1], *self.send_back(body or b"", True), END] if END in answers else answers


@breaks(505)
class DoesNotSayWhy(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        if answers[0] is not None and answers[0].HasField("immediate_response"):
            answers[0].immediate_response.body = b""
        return answers


@breaks(506)
class FallsOverWhatIsNotJson(PickerSession):
    def refuse_body(self, body: bytes) -> pb.ProcessingResponse | None:
        json.loads(body)
        return None


@breaks(506)
class BlamesItself(PickerSession):
    def refuse_body(self, body: bytes) -> pb.ProcessingResponse | None:
        answer = super().refuse_body(body)
        return answer and refusal(500, "internal")


@breaks(507)
class PassesOnWhatIsNotJson(PickerSession):
    def refuse_body(self, body: bytes) -> pb.ProcessingResponse | None:
        return None


@breaks(508)
class NeedsAModel(PickerSession):
    def refuse_body(self, body: bytes) -> pb.ProcessingResponse | None:
        return super().refuse_body(body) and refusal(503, "no such model")


@breaks(509)
class NeedsNoModel(PickerSession):
    def refuse_body(self, body: bytes) -> pb.ProcessingResponse | None:
        return None


# 6xx: responses


@breaks(601)
class ForgetsTheResponseHeaders(PickerSession):
    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        return []


@breaks(601)
class LosesAPiece(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        answers = super().response_body(message)
        return answers if self.pieces != 2 else []


@breaks(602)
class ReplacesWhatIsNotJson(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        try:
            json.loads(message.response_body.body)
        except ValueError:
            message.response_body.body = b"null"
        return super().response_body(message)


@breaks(603)
class DropsEmptyPieces(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        return super().response_body(message) if message.response_body.body else []


@breaks(604)
class CollectsTheResponse(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        self.body += message.response_body.body
        return [response_piece(self.body, True)] if message.response_body.end_of_stream else []


@breaks(605)
class KeepsUsageToItself(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        lines = message.response_body.body.splitlines(keepends=True)
        message.response_body.body = b"".join(line for line in lines if b"usage" not in line)
        return super().response_body(message)


@breaks(606)
class CollectsTheBodyAndForgetsIt(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        return super().response_body(message) if message.response_body.end_of_stream else []


@breaks(606)
class IgnoresResponseTrailers(PickerSession):
    def response_trailers(self, message: pb.ProcessingRequest) -> Answers:
        return []


@breaks(613)
class EndsBeforeResponseTrailers(PickerSession):
    def response_trailers(self, message: pb.ProcessingRequest) -> Answers:
        return [response_piece(b"", True), *super().response_trailers(message)]


@breaks(607)
class WaitsForAResponseBody(PickerSession):
    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        return [] if message.response_headers.end_of_stream else super().response_headers(message)


@breaks(607)
class AddsABody(PickerSession):
    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        added: Answers = [response_piece(b"", True)] if message.response_headers.end_of_stream else []
        return [*super().response_headers(message), *added]


@breaks(608)
class HidesErrors(PickerSession):
    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        status = next(one for one in message.response_headers.headers.headers if one.key == ":status")
        return [refusal(502, "bad gateway"), END] if status.raw_value == b"503" else super().response_headers(message)


@breaks(609)
class LeavesEarly(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        answers = super().response_body(message)
        return answers if self.pieces < 100 else [*answers, END]


@breaks(610)
class KnowsWhoServed(PickerSession):
    def served(self, message: pb.ProcessingRequest) -> str | None:
        served = super().served(message)
        if served not in (None, *self.picker.endpoints):
            raise ValueError("served by nobody")
        return served


@breaks(611)
class ShowsTheChoice(PickerSession):
    def served(self, message: pb.ProcessingRequest) -> str | None:
        return super().served(message) and "10.9.9.9:8000"


@breaks(612)
class WantsARequestFirst(PickerSession):
    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        if not self.placed:
            raise ValueError("no request")
        return super().response_headers(message)


# 7xx: other body modes


@breaks(701)
class KnowsOneProfile(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        thin = self.duplex_request and not self.duplex_response
        return [refusal(500, "response mode"), END] if thin else super().decide(body, ends=ends)


@breaks(702)
@breaks(707)
class StreamsBackInEveryMode(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        return [response_piece(message.response_body.body, message.response_body.end_of_stream)]


@breaks(702)
class AnswersThePiecesOnly(PickerSession):
    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        return super().response_headers(message) if self.duplex_response else [END]


@breaks(703)
class EndsAtTheHeaders(PickerSession):
    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        answers = super().response_headers(message)
        return answers if self.duplex_response else [*answers, END]


@breaks(703)
class EndsWithAnError(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        if not self.duplex_response and self.pieces:
            raise ConnectionError
        return [one for one in super().response_body(message) if one is not END]


@breaks(704)
class CollectsInEveryMode(PickerSession):
    def request_headers(self, message: pb.ProcessingRequest) -> Answers:
        answers = super().request_headers(message)
        return [] if self.modes[0] == pb.BUFFERED else answers


@breaks(704)
class ChoosesWithoutMetadata(PickerSession):
    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        answers = super().decide(body, ends=ends)
        if not self.duplex_request and answers[0] is not None:
            answers[0].ClearField("dynamic_metadata")
        return answers


@breaks(705)
class ForgetsTheSubsetOfBuffered(PickerSession):
    def subset(self, message: pb.ProcessingRequest) -> set[str] | None:
        return super().subset(message) if self.duplex_request else None


@breaks(706)
class StreamsBackBuffered(PickerSession):
    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        return [response_piece(message.response_body.body, True)]


@breaks(708)
class WaitsForTheBody(PickerSession):
    def request_headers(self, message: pb.ProcessingRequest) -> Answers:
        answers = super().request_headers(message)
        return answers if message.request_headers.end_of_stream or self.modes[0] != pb.NONE else []


# 8xx: health


class _Sick(ReferencePicker):
    """Says something else of some services."""

    other: dict[str, Any] = {}

    def health(self, service: str) -> Any:
        return self.other[service] if service in self.other else super().health(service)


@breaks(801)
class IsNotAlive(_Sick):
    other = {"liveness": NOT_SERVING}


@breaks(801)
class HasNoLiveness(_Sick):
    other = {"liveness": None}


@breaks(802)
class IsNotReady(_Sick):
    other = {"readiness": NOT_SERVING}


@breaks(803)
class SaysTwoThings(_Sick):
    other = {"envoy.service.ext_proc.v3.ExternalProcessor": NOT_SERVING}


@breaks(803)
class KnowsNeither(_Sick):
    other = {"envoy.service.ext_proc.v3.ExternalProcessor": None, "readiness": None}


@breaks(804)
class HasNoHealthAsAWhole(_Sick):
    other = {"": None}


@breaks(805)
class KnowsEverybody(ReferencePicker):
    def health(self, service: str) -> Any:
        return SERVING


@breaks(806)
class DoesNotKnowTheProbes(_Sick):
    other = {"inference-extension": None}


@breaks(807)
class IsBusy(ReferencePicker):
    def health(self, service: str) -> Any:
        return NOT_SERVING if self.open else super().health(service)
