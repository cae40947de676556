"""The suite as a whole and its command: addresses, TLS, health ports, what is learned, reports and exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from router.clock import ManualClock
from router.errors import WarmrouteError
from router.picker import ext_proc_pb2 as pb
from tests.picker_conformance.__main__ import NotConforming, app, check_picker
from tests.picker_conformance.reference_picker import (
    ENDPOINTS,
    MODEL,
    PickerSession,
    ReferencePicker,
    refusal,
    serve,
)
from tests.picker_conformance.report import CaseReport, ConformanceReport
from tests.picker_conformance.suite import ConformanceOptions, run_suite
from tests.picker_conformance.wrong_bodies import DropsWith503

CLOCK = ManualClock(wall=1_800_000_000.0)
FEW = ("EPP-101", "EPP-201", "EPP-611", "EPP-801")


async def report_on(picker: ReferencePicker, *cases: str, tls: bool = False, **options: Any) -> ConformanceReport:
    async with serve(picker, tls=tls) as ports:
        return await run_suite(ConformanceOptions(ports.address, cases=cases, **options), CLOCK)


def results(report: ConformanceReport) -> dict[str, str]:
    return {case.id: case.result for case in report.cases}


async def test_a_right_picker_conforms() -> None:
    heard: list[CaseReport] = []
    async with serve(ReferencePicker()) as ports:
        report = await run_suite(ConformanceOptions(ports.address, endpoints=ENDPOINTS), CLOCK, heard.append)
    assert report.conforms
    assert {case for case, result in results(report).items() if result != "pass"} == {"EPP-501"}
    assert [case.id for case in heard] == [case.id for case in report.cases]


async def test_model_and_endpoints_are_learned() -> None:
    report = await report_on(ReferencePicker(), *FEW)
    assert report.model == MODEL
    assert report.endpoints == tuple(sorted(ENDPOINTS))
    assert report.at == "2027-01-15T08:00:00+00:00"
    assert (report.format, report.protocol, report.suite) == (1, "1.0.0", "1.0.0")


async def test_behind_tls() -> None:
    report = await report_on(ReferencePicker(), *FEW, tls=True)
    assert report.tls
    assert set(results(report).values()) == {"pass"}


async def test_health_on_a_port_of_its_own() -> None:
    async with serve(ReferencePicker(), tls=True, own_health_port=True) as ports:
        there = ConformanceOptions(ports.address, ports.health_port, cases=("EPP-801",))
        assert results(await run_suite(there, CLOCK)) == {"EPP-801": "pass"}
        here = ConformanceOptions(ports.address, cases=("EPP-801",))
        (missed,) = (await run_suite(here, CLOCK)).cases
    assert missed.result == "fail"
    assert "--health-port" in missed.received


class EmptyPool(ReferencePicker):
    endpoints = ()


async def test_an_empty_pool() -> None:
    report = await report_on(EmptyPool())
    assert report.conforms
    assert report.endpoints == ()
    decided = {case for case, result in results(report).items() if result == "pass"}
    assert decided == {"EPP-101", "EPP-501", "EPP-801", "EPP-803", "EPP-805"}
    skipped = [case for case in report.cases if case.result == "skip"]
    assert {case.received.partition(":")[0] for case in skipped} == {"the picker chose no endpoint"}


class Unknowing(PickerSession):
    """Says 404 for every model while it has no endpoint."""

    def refuse(self, body: bytes | None) -> pb.ProcessingResponse | None:
        return refusal(404, "no such model")


async def test_an_empty_pool_whose_models_are_unknown() -> None:
    picker = EmptyPool()
    picker.session = Unknowing
    with pytest.raises(WarmrouteError, match="--model"):
        await report_on(picker, *FEW)
    report = await report_on(picker, "EPP-201", "EPP-501", model=MODEL)
    assert results(report) == {"EPP-201": "skip", "EPP-501": "fail"}
    assert not report.conforms


class WithKey(PickerSession):
    def refuse(self, body: bytes | None) -> pb.ProcessingResponse | None:
        if self.headers.get("authorization") != "Bearer secret":
            return refusal(401, "no key")
        return super().refuse(body)


async def test_a_picker_that_wants_a_key() -> None:
    picker = ReferencePicker()
    picker.session = WithKey
    with pytest.raises(WarmrouteError, match=r"ImmediateResponse 401.*--api-key"):
        await report_on(picker, *FEW)
    report = await report_on(picker, *FEW, api_key="secret")
    assert set(results(report).values()) == {"pass"}


class OtherModel(PickerSession):
    def refuse(self, body: bytes | None) -> pb.ProcessingResponse | None:
        if self.headers.get(":path") == "/v1/models":
            return None
        served = body is None or b'"other"' in body
        return super().refuse(body) if served else refusal(404, "no such model")


async def test_a_picker_that_does_not_say_its_model() -> None:
    picker = ReferencePicker()
    picker.session = OtherModel
    with pytest.raises(WarmrouteError, match="--model"):
        await report_on(picker, *FEW)
    report = await report_on(picker, *FEW, model="other")
    assert set(results(report).values()) == {"pass"}


async def test_nobody_listens(unroutable: str) -> None:
    with pytest.raises(WarmrouteError, match=f"{unroutable}: cannot connect"):
        await run_suite(ConformanceOptions(unroutable), CLOCK)


async def test_what_is_no_grpc_server_fails_every_case() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        report = await run_suite(ConformanceOptions(address, cases=FEW, timeout_s=0.5), CLOCK)
    assert results(report) == {"EPP-101": "fail", "EPP-201": "skip", "EPP-611": "skip", "EPP-801": "fail"}
    assert not report.conforms


@pytest.mark.parametrize("address", ["127.0.0.1", "picker:http", ":9002", "127.0.0.1:70000"])
async def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(WarmrouteError, match="HOST:PORT"):
        await run_suite(ConformanceOptions(address), CLOCK)


async def test_unknown_cases() -> None:
    with pytest.raises(WarmrouteError, match="no case EPP-999; there are EPP-101 to EPP-807"):
        await run_suite(ConformanceOptions("127.0.0.1:1", cases=("EPP-101", "EPP-999")), CLOCK)


async def test_a_failed_must_is_a_failure_and_the_report_is_written_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reports" / "picker.json"
    async with serve(DropsWith503()) as ports:
        with pytest.raises(NotConforming, match="EPP-502"):
            await check_picker(ConformanceOptions(ports.address, cases=("EPP-201", "EPP-502")), file)
    report = json.loads(file.read_bytes())
    assert (report["format"], report["protocol"], report["suite"], report["conforms"]) == (1, "1.0.0", "1.0.0", False)
    assert report["counts"] == {"MUST": {"pass": 1, "fail": 1, "skip": 0}}
    failed = report["cases"][1]
    assert set(failed) == {"id", "level", "clause", "source", "sent", "expected", "result", "received"}
    assert (failed["id"], failed["result"]) == ("EPP-502", "fail")
    assert "ImmediateResponse 503" in failed["received"]
    printed = capsys.readouterr().out
    assert "EPP-502" in printed
    assert "MUST    1 passed, 1 failed, 0 skipped" in printed
    assert "The picker does not conform." in printed


class NoOtherModes(PickerSession):
    def on(self, message: pb.ProcessingRequest) -> list[pb.ProcessingResponse | None]:
        return super().on(message) if not message.HasField("protocol_config") else self.refuse_mode(message)

    def refuse_mode(self, message: pb.ProcessingRequest) -> list[pb.ProcessingResponse | None]:
        supported = message.protocol_config.request_body_mode == pb.FULL_DUPLEX_STREAMED
        return super().on(message) if supported else [refusal(500, "mode"), None]


async def test_what_is_no_must_does_not_count() -> None:
    picker = ReferencePicker()
    picker.session = NoOtherModes
    report = await report_on(picker, "EPP-201", "EPP-704")
    assert results(report) == {"EPP-201": "pass", "EPP-704": "fail"}
    assert report.conforms


def test_nothing_decided_is_not_conforming() -> None:
    report = ConformanceReport("127.0.0.1:1", False, "", "m", ())
    assert not report.conforms


@pytest.fixture
def unroutable() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{free.getsockname()[1]}"


def test_the_command_passes_its_options_on(unroutable: str) -> None:
    ran = CliRunner().invoke(app, [unroutable, "--timeout", "0.5"])
    assert isinstance(ran.exception, WarmrouteError)
    assert unroutable in str(ran.exception)
    ran = CliRunner().invoke(app, [unroutable, "--case", "EPP-1"])
    assert "no case EPP-1" in str(ran.exception)
