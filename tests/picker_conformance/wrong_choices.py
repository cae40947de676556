"""Pickers that break a clause of 1xx to 3xx: the service, the choice, subsets."""

from __future__ import annotations

import asyncio
from typing import Any

from router.picker import ext_proc_pb2 as pb
from router.picker.names import DESTINATION, LB, SUBSET, SUBSET_HINT
from tests.picker_conformance.reference_picker import (
    END,
    ENDPOINTS,
    Answers,
    PickerSession,
    ReferencePicker,
    refusal,
    request_piece,
)
from tests.picker_conformance.wrong import breaks

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
class NeverStops(ReferencePicker):
    """Its stream would not end before the suite gives up."""

    async def process(self, messages: Any, context: Any) -> None:
        await super().process(messages, context)
        while True:
            await context.write(pb.ProcessingResponse(response_headers=pb.HeadersResponse()))


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
