from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.config.reader import read_config
from tests.fakes.engines import engine
from tests.router.cli.conftest import Shell

NOWHERE = "http://127.0.0.1:1"


async def test_the_file_is_written_and_checks(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "main.yaml"
    async with engine() as fake:
        said = await asyncio.to_thread(shell, "init", f"{fake.url}/", NOWHERE, "-o", file)
    assert (said.code, said.out) == (0, "")
    assert f"{NOWHERE}: no answer" in said.err
    assert f"written: {file}" in said.err
    assert [one.url for one in read_config(file).fleet.instances] == [fake.url]
    assert shell("check", file).code == 0
    again = shell("init", fake.url, "-o", file)
    assert (again.code, again.err) == (2, f"--output: {file} exists; remove it or give another name\n")


async def test_without_a_file_it_goes_to_standard_output(shell: Shell, tmp_path: Path) -> None:
    async with engine(cached_tokens=False) as fake:
        said = await asyncio.to_thread(shell, "init", fake.url, "--policy", "lmetric", "--admin-port", "9001")
    assert said.code == 0
    assert "--enable-prompt-tokens-details" in said.out
    config = read_config(shell.file(said.out))
    assert (config.active, config.listen.port, config.admin.port) == ("lmetric", 8000, 9001)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([NOWHERE], 1, f"init: no engine can be used, nothing is written\n{NOWHERE}: no answer"),
        (["nowhere"], 2, "nowhere: found no scheme, wanted http:// or https://"),
        ([NOWHERE, "--tokenizer", "m"], 2, "wanted MODEL=PATH"),
        ([], 2, "URL"),
    ],
)
def test_what_is_refused(shell: Shell, tmp_path: Path, words: list[str], code: int, says: str) -> None:
    said = shell("init", *words, "-o", tmp_path / "main.yaml")
    assert said.code == code
    assert says in said.err
    assert not (tmp_path / "main.yaml").exists()


async def test_an_unknown_policy_writes_nothing(shell: Shell, tmp_path: Path) -> None:
    async with engine() as fake:
        said = await asyncio.to_thread(shell, "init", fake.url, "--policy", "wram", "-o", tmp_path / "main.yaml")
    assert (said.code, said.out) == (2, "")
    assert 'active: unknown policy "wram": did you mean "warm"?' in said.err
    assert not (tmp_path / "main.yaml").exists()
