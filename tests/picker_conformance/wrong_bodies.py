"""Pickers that break a clause of 4xx or 5xx: request bodies, refusals."""

from __future__ import annotations

import json

from router.picker import ext_proc_pb2 as pb
from tests.picker_conformance.reference_picker import (
    END,
    PIECE_BYTES,
    Answers,
    PickerSession,
    ReferencePicker,
    refusal,
    request_piece,
)
from tests.picker_conformance.wrong import breaks

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
