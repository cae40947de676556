from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from router.cli.admin import usage as module

ROWS: list[dict[str, Any]] = [
    {
        "day": "2026-11-24",
        "tenant": "acme",
        "model": "m",
        "requests": 1234,
        "input_tokens": 10,
        "cached_tokens": 20,
        "output_tokens": 30,
        "gpu_s": 1.5,
        "refused": {"forbidden": 1, "concurrent": 3000},
    },
]
ROWS.append(ROWS[0] | {"tenant": "zeta\x1b[31m", "model": "", "refused": {}})


class Client:
    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    def get(self, *path: str, **params: str) -> dict[str, Any]:
        assert path == ("usage",)
        self.asked.append(params)
        return {"usage": ROWS}

    def text(self, *path: str, **params: str) -> str:
        self.asked.append(params)
        return "day,tenant\n"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(module, "client_at", lambda admin, token_env: client)
    return client


def said(*words: str) -> str:
    app = typer.Typer()
    app.command()(module.usage)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_table_with_a_row_per_day_tenant_and_model_and_their_sum(client: Client) -> None:
    table = said("--from", "2026-11-01")
    assert client.asked == [{"from": "2026-11-01"}]
    rows = [line.split() for line in table.splitlines() if "2026" in line or "all" in line]
    assert "acme" in rows[0]
    assert "1,234" in rows[0]
    assert "concurrent 3,000, forbidden 1" in table
    assert "2,468" in rows[2]
    assert "\x1b[31m" not in table


def test_csv_as_the_router_wrote_it(client: Client) -> None:
    assert said("--csv", "--to", "2026-11-24") == "day,tenant\n"
    assert client.asked == [{"format": "csv", "to": "2026-11-24"}]
