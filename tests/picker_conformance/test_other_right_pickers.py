"""Pickers that work otherwise than the reference picker and keep every MUST: the suite must not fail them."""

from __future__ import annotations

import json

import pytest

from router.clock import ManualClock
from router.picker import ext_proc_pb2 as pb
from tests.picker_conformance.reference_picker import (
    END,
    ENDPOINTS,
    Answers,
    PickerSession,
    ReferencePicker,
    refusal,
    request_piece,
    response_piece,
    serve,
)
from tests.picker_conformance.suite import ConformanceOptions, run_suite

CLOCK = ManualClock(wall=1_800_000_000.0)


class ByHeaders(PickerSession):
    """Chooses at the headers and never collects a body, as GIE's lwepp: pieces go back as they come."""

    def request_headers(self, message: pb.ProcessingRequest) -> Answers:
        super().request_headers(message)
        return self.decide(None)

    def request_body(self, message: pb.ProcessingRequest) -> Answers:
        piece = message.request_body
        if not self.duplex_request:
            return [pb.ProcessingResponse(request_body=pb.BodyResponse())]
        return [request_piece(piece.body[:7], False), request_piece(piece.body[7:], piece.end_of_stream)]

    def request_trailers(self, message: pb.ProcessingRequest) -> Answers:
        return [pb.ProcessingResponse(request_trailers=pb.TrailersResponse())]


class Rewriting(PickerSession):
    """Writes requests anew and collects JSON answers, as llm-d's picker does, with one profile only."""

    def request_headers(self, message: pb.ProcessingRequest) -> Answers:
        answers = super().request_headers(message)
        full_duplex = self.duplex_request and self.duplex_response
        return answers if full_duplex else [refusal(500, "FULL_DUPLEX_STREAMED only"), END]

    def choose(self) -> list[str]:
        return super().choose()[:1]

    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        document = json.loads(body) | {"model": "qwen-lora", "priority": 2}
        return super().send_back(json.dumps(document).encode(), ends)

    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        for option in answer.request_headers.response.header_mutation.set_headers:
            option.append_action = 0
        del answer.request_headers.response.header_mutation.set_headers[1:]  # no content-length
        return answer

    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        self.body = b""
        types = [one.raw_value for one in message.response_headers.headers.headers if one.key == "content-type"]
        self.streams = types == [b"text/event-stream"]
        return [pb.ProcessingResponse(response_headers=pb.HeadersResponse())]

    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        if self.streams:
            return super().response_body(message)
        self.body += message.response_body.body
        return [response_piece(self.body, True)] if message.response_body.end_of_stream else []


class Staying(PickerSession):
    """Stays to the end of every response, whatever the mode."""

    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        return [answer for answer in super().response_body(message) if answer is not END]


@pytest.mark.parametrize(
    ("session", "failed", "skipped"),
    [
        (ByHeaders, {"EPP-507", "EPP-509"}, {"EPP-410", "EPP-501"}),
        (Rewriting, {"EPP-701", "EPP-702", "EPP-703", "EPP-704", "EPP-705", "EPP-706", "EPP-707", "EPP-708"},
         {"EPP-410", "EPP-501", "EPP-611"}),
        (Staying, set(), {"EPP-501", "EPP-703"}),
    ],
)  # fmt: skip
async def test_they_conform(session: type[PickerSession], failed: set[str], skipped: set[str]) -> None:
    picker = ReferencePicker()
    picker.session = session
    async with serve(picker) as ports:
        report = await run_suite(ConformanceOptions(ports.address, endpoints=ENDPOINTS), CLOCK)
    results = {case.id: case.result for case in report.cases}
    assert {case for case, result in results.items() if result == "fail"} == failed, report.cases
    assert {case for case, result in results.items() if result == "skip"} == skipped
    assert report.conforms
