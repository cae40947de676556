"""The sdist and the wheel: built, checked, installed with the core's dependencies alone, and used without a checkout.

pip installs from the index that it is configured for, in the versions of `constraints.txt`: half a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.paths import ROOT

SOURCES = (
    *("router", "scorers", "configs", "setup.py", "pyproject.toml"),
    *("MANIFEST.in", "README.md", "LICENSE", "constraints.txt"),
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SIZE = ("--scale", "0.1", "--requests", "40", "-n", "2", "-j", "1")
SIMULATION = ("simulate", *SIZE, "-w", "groups", "-p", "warm,random")
OF_EXTRAS = ("cryptography", "grpcio", "hpack", "matplotlib", "opentelemetry-sdk", "protobuf")
READY_S = 90.0


class Install(NamedTuple):
    """A virtual environment with the wheel, and an empty folder to work in."""

    dist: Path
    venv: Path
    empty: Path

    @property
    def command(self) -> str:
        return str(self.venv / "bin" / "warmroute")

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return kept | {"COLUMNS": "200", "NO_COLOR": "1"}

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, and check its exit code."""
        done = subprocess.run([self.command, *words], cwd=self.empty, env=self.env, capture_output=True, text=True)
        assert done.returncode == code, done.stderr + done.stdout
        return done

    @contextmanager
    def file(self, **sections: Any) -> Iterator[str]:
        """A configuration in the empty folder, for the time of the block."""
        file = self.empty / "router.yaml"
        file.write_text(json.dumps({"policies": {"one": {"scorers": [{"name": "random"}]}}, **sections}))
        yield str(file)
        file.unlink()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Install:
    folder = tmp_path_factory.mktemp("wheel")
    source, dist, venv, empty = (folder / name for name in ("source", "dist", "venv", "empty"))
    for each in (source, empty):
        each.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    _python("-m", "build", "--no-isolation", "--outdir", str(dist), str(source))
    _python("-m", "venv", "--without-pip", str(venv))
    (wheel,) = dist.glob("*.whl")
    install = ("-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check", "install", "-q")
    _python(*install, "-c", str(ROOT / "constraints.txt"), str(wheel))
    return Install(dist, venv, empty)


def _python(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr + done.stdout


def test_both_archives_pass_the_checks(installed: Install) -> None:
    archives = [str(file) for file in sorted(installed.dist.iterdir())]
    assert [Path(name).suffix for name in archives] == [".whl", ".gz"]
    _python("-m", "twine", "check", "--strict", *archives)
    wheel = archives[0]
    done = subprocess.run(
        [shutil.which("check-wheel-contents", path=str(Path(sys.executable).parent)), wheel], cwd=ROOT
    )
    assert done.returncode == 0


def test_what_is_in_the_archives(installed: Install) -> None:
    (wheel,), (sdist,) = installed.dist.glob("*.whl"), installed.dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    shipped = {f"router/config/shipped/{file.relative_to(ROOT / 'configs')}" for file in _config_files()}
    assert shipped <= names
    assert {"router/py.typed", "scorers/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert f"Version: {PROJECT['version']}\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    assert shipped <= set(members)
    assert not any(member.issym() for member in members.values())
    assert not any(name.startswith("tests/") for name in members)


def _config_files() -> list[Path]:
    return [file for file in (ROOT / "configs").rglob("*") if file.suffix in (".yaml", ".json")]


def test_the_package_is_the_installed_one(installed: Install) -> None:
    words = [str(installed.venv / "bin" / "python"), "-c", "import router, scorers; print(router.__file__)"]
    shown = subprocess.run(words, cwd=installed.empty, env=installed.env, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(str(installed.venv))
    assert installed.run("--version").stdout == f"warmroute {PROJECT['version']} (pure Python)\n"


def test_policies_and_a_simulation_by_shipped_names(installed: Install) -> None:
    assert "\nround_robin " in installed.run("policies").stdout
    assert "scorers:" in installed.run("policies", "show", "warm").stdout
    assert "random" in installed.run(*SIMULATION).stdout
    assert "known here: " in installed.run("simulate", "-p", "zzz", code=2).stderr
    assert os.listdir(installed.empty) == []


def test_what_needs_an_extra_names_it(installed: Install) -> None:
    found = {path.name.partition("-")[0].replace("_", "-") for path in installed.venv.glob("lib/*/*/*.dist-info")}
    assert {"fastapi", "warmroute"} <= found
    assert found.isdisjoint(set(OF_EXTRAS) - {"cryptography"}), "cryptography verifies signed tokens as well"
    instances = {"instances": [{"url": "http://127.0.0.1:9"}]}
    local = {"listen": {"host": "127.0.0.1", "port": 0}, "admin": {"port": 0}, "fleet": instances}
    for section, extra in (("picker", "picker"), ("keda", "picker"), ("tracing", "otel")):
        settings = {} if section == "tracing" else {"host": "127.0.0.1", "port": 0}
        with installed.file(**local, **{section: settings}) as file:
            said = installed.run("serve", "--config", file, code=2).stderr
        assert said.startswith(f"{section}: ")
        assert f"pip install 'warmroute[{extra}]'" in said
    said = installed.run("gameday", "short", "--chart", "a.png", code=2).stderr
    assert "--chart: matplotlib is not installed" in said
    assert "pip install 'warmroute[lab]'" in said


async def test_it_serves_two_engines(installed: Install) -> None:
    """Without a file: the engines are those of a fleet, behind a router of their own."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(_engine(installed, name)) for name in ("one", "two")]
        running = _router(installed, "serve", *urls, "--port", "0", "--admin-port", "0", ready=2)
        port, admin, _ = await stack.enter_async_context(running)
        chat = [{"role": "user", "content": "Tell me a long story about routers. " * 20}]
        body = {"model": "warm-tiny", "messages": chat, "max_tokens": 4}
        async with httpx.AsyncClient(timeout=30) as client:
            answers = [await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) for _ in range(2)]
            listed = await client.get(f"http://127.0.0.1:{admin}/admin/instances")
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].headers["x-warmroute-target"] == answers[1].headers["x-warmroute-target"]
    assert answers[1].json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    assert sorted(one["url"] for one in listed.json()["instances"]) == sorted(urls)


async def test_a_fleet_a_chat_a_switch_and_a_configuration(installed: Install) -> None:
    async with _router(installed, "fleet", "--port", "0", "--admin-port", "0", ready=4) as (port, admin, engine):
        body = {"model": "warm-tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 4
        words = ("policy", "activate", "least_requests", "--admin", f"http://127.0.0.1:{admin}")
        await asyncio.to_thread(installed.run, *words)
        listed = await asyncio.to_thread(installed.run, "policy", "list", *words[-2:])
        assert re.search(r"least_requests +\w+ +active", listed.stdout)
        await asyncio.to_thread(installed.run, "init", engine, "--output", "main.yaml")
    assert f"url: {engine}" in installed.run("check", "main.yaml").stdout
    assert os.listdir(installed.empty) == ["main.yaml"]
    (installed.empty / "main.yaml").unlink()


@asynccontextmanager
async def _engine(installed: Install, name: str) -> AsyncIterator[str]:
    """The URL of `warmroute engine`."""
    async with _process(installed, "engine", "--name", name) as process:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S):
            announced = json.loads(await process.stdout.readline())
        yield announced["url"]


@asynccontextmanager
async def _router(installed: Install, *words: str, ready: int) -> AsyncIterator[tuple[int, int, str]]:
    """The public port, the admin port and the URL of one engine, when `ready` instances are."""
    async with _process(installed, *words) as process:
        async with asyncio.timeout(READY_S):
            engine = "" if words[0] == "serve" else (await _seen(process, rb"engine-0  (\S+)"))[1].decode()
            ports = await _seen(process, rb"listening on \S+:(\d+), admin on \S+:(\d+)")
            for _ in range(ready):
                await _seen(process, rb" is ready: warm-tiny")
        yield int(ports[1]), int(ports[2]), engine


@asynccontextmanager
async def _process(installed: Install, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        installed.command, *words, stdout=pipe, stderr=pipe, cwd=installed.empty, env=installed.env
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def _seen(process: asyncio.subprocess.Process, pattern: bytes) -> re.Match[bytes]:
    """The first line of standard error that matches."""
    assert process.stderr is not None
    async for line in process.stderr:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"the process ended before it printed {pattern!r}")
