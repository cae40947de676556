"""`warmroute profile` as a command: a running router's engines as a profile that a simulation accepts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from router.lab.sweep.options import load_profile
from tests.e2e.conftest import MODEL, Router
from tests.e2e.test_lifecycle import warmroute
from tests.fakes.engines import engine

Start = Callable[..., AbstractAsyncContextManager[Router]]
TOKENS_PER_S = 4000.0


SMALL = "--requests", "20", "-n", "2", "-j", "1"


async def test_the_engines_of_a_running_router_can_be_simulated(router: Start, tmp_path: Path) -> None:
    file = str(tmp_path / "mine.yaml")
    async with engine(prefill_tokens_per_s=TOKENS_PER_S, blocks=500) as a, router([a]) as running:
        at = "profile", "--admin", running.admin_url
        code, out, err = await warmroute(*at)
        assert (code, out) == (1, "")
        assert "0 lone prefills were measured at one engine at most, 12 are needed" in err
        for n in range(14):
            words = f"{n} " + "once upon a time there was a port " * (10 + 5 * n)
            body = {"model": MODEL, "prompt": words, "stream": True, "max_tokens": 2}
            assert (await running.post("/v1/completions", body)).status_code == 200
        code, out, err = await warmroute(*at, "-o", file)
        assert (code, out) == (0, ""), err
        assert "Decode steps are not learned yet" in err
        _, printed, _ = await warmroute(*at)
    own = load_profile(file)
    assert f"value: {own.us_per_token}\n" in printed
    assert own.kv_tokens == 500 * 16
    assert 0.5e6 / TOKENS_PER_S < own.us_per_token < 3e6 / TOKENS_PER_S  # the machine may be busy; the prior is 100 us
    code, out, err = await warmroute(
        "simulate", "-p", "warm", "-w", "tools", "--scale", "0.1", *SMALL, "--profile", file
    )
    assert code == 0, err
    assert f"Engines: profile {file}, a KV cache of 8,000 tokens each." in out


async def test_no_router(tmp_path: Path) -> None:
    code, _, err = await warmroute("profile", "--admin", "http://127.0.0.1:1", "-o", str(tmp_path / "a.yaml"))
    assert code == 1
    assert "--admin: cannot connect to http://127.0.0.1:1: connection refused" in err
    assert not (tmp_path / "a.yaml").exists()
    code, _, err = await warmroute("profile", "-o", str(tmp_path / "a.txt"))
    assert code == 2
    assert "the name must end in .yaml" in err
