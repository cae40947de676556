"""Pickers that break a clause of 6xx to 8xx: responses, other body modes, health."""

from __future__ import annotations

import json
from typing import Any

from router.picker import ext_proc_pb2 as pb
from tests.picker_conformance.reference_picker import (
    END,
    NOT_SERVING,
    SERVING,
    Answers,
    PickerSession,
    ReferencePicker,
    refusal,
    response_piece,
)
from tests.picker_conformance.wrong import breaks

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
