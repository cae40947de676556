"""Limits of the machine, and of what is in front of the router."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from router.config.reader import ReadConfig
from router.config.schema import Config
from router.operate.doctor.finding import Edit
from router.operate.doctor.host import read_host
from router.operate.doctor.limits import check_files, check_kernel, check_load_balancer, check_memory
from router.operate.doctor.subject import HostFacts, RouterAnswers, Subject
from tests.paths import ROOT

MIB = 1024 * 1024
AMPLE = HostFacts(1_048_576, 4096, 28_232, 8192 * MIB, 8)


def subject(host: HostFacts, **sections: object) -> Subject:
    return Subject(ReadConfig(Config.model_validate(sections), {}), host=host)


def test_an_ample_machine_is_healthy() -> None:
    ample = subject(AMPLE)
    assert [*check_files(ample), *check_kernel(ample), *check_memory(ample)] == []


def test_a_machine_that_is_unknown_is_not_blamed() -> None:
    unknown = subject(HostFacts(None, None, None, None, None))
    assert [*check_files(unknown), *check_kernel(unknown), *check_memory(unknown)] == []


def test_too_few_files() -> None:
    (found,) = check_files(subject(AMPLE._replace(open_files=1024)))
    assert "1,024 files may be open (hard limit), and 2,048 requests need 4,352" in found.what
    assert found.edit == Edit(("limits", "concurrent"), 384)  # (1024 - 256) / 2


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (AMPLE._replace(somaxconn=128), "net.core.somaxconn is 128"),
        (AMPLE._replace(local_ports=1000), "1,000 local ports for 2,048 requests to one engine"),
    ],
)
def test_limits_of_the_kernel(host: HostFacts, says: str) -> None:
    (found,) = check_kernel(subject(host))
    assert found.what == says


def test_more_than_fits_into_memory() -> None:
    (found,) = check_memory(subject(AMPLE._replace(memory_bytes=1536 * MIB)))  # 1024 + 512 + 512 are wanted
    assert found.what == "the memory limit is 1,536 MiB, and bodies, prompts and index may take 2,048 MiB"
    assert found.edit == Edit(("limits", "body_budget_bytes"), 512 * MIB)


def test_the_machine_is_read_from_proc_and_cgroup(tmp_path: Path) -> None:
    for name, text in (
        ("proc/sys/net/core/somaxconn", "128\n"),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
        ("sys/fs/cgroup/memory.max", "max\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = read_host(tmp_path)
    assert (host.somaxconn, host.local_ports, host.memory_bytes) == (128, 28_232, None)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{512 * MIB}\n")
    assert read_host(tmp_path).memory_bytes == 512 * MIB


@pytest.mark.doctor
def test_a_process_with_few_files_is_told(tmp_path: Path) -> None:
    file = tmp_path / "main.yaml"
    file.write_text("fleet:\n  instances: [{url: 'http://127.0.0.1:1'}]\n")
    command = f"ulimit -n 512 && exec {sys.executable} -m router doctor --passive {file}"
    said = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert said.returncode == 1
    assert "512 files may be open (hard limit)" in said.stdout


def records(sessions: int, sender: str = "10.0.0.7", client: str | None = None) -> list[dict[str, object]]:
    return [{"sender": sender, "session": f"s{n}", "client": client} for n in range(sessions)]


def test_a_load_balancer_is_recognised_by_its_sessions() -> None:
    def found(**answers: object) -> list[str]:
        router = RouterAnswers("http://127.0.0.1:8001", **answers)  # type: ignore[arg-type]
        return [one.what for one in check_load_balancer(Subject(routers=[router]))]

    assert found(records=records(25)) == ["25 sessions come from one address, 10.0.0.7: it may be a load balancer"]
    assert found(records=records(5)) == []
    assert found(records=records(25, client="team-a")) == []
    assert found(records=records(20) + records(20, "10.0.0.8")) == []
