"""Edits of a configuration keep everything else as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.operate.doctor.finding import Edit
from router.operate.doctor.patch import apply_edit, make_patch

TEXT = """\
# the fleet
fleet:
  instances:
    - url: http://10.0.0.1:8100  # the first one
      kv_events:
        - {rank: 0, endpoint: "tcp://10.0.0.1:5557", topic: kv}
    - {url: "http://10.0.0.2:8100"}
limits:
  keepalive_s: 30.0  # too long
admin: {}
records:
"""


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (Edit(("limits", "keepalive_s"), 4.0), "keepalive_s: 30.0  # too long", "keepalive_s: 4.0  # too long"),
        (
            Edit(("fleet", "instances", 0, "kv_events", 0, "topic"), ""),
            "topic: kv}",
            'topic: ""}',
        ),
        (
            Edit(("limits", "concurrent"), 100),
            "keepalive_s: 30.0  # too long\n",
            "keepalive_s: 30.0  # too long\n  concurrent: 100\n",
        ),
        (
            Edit(("fleet", "instances", 1, "api_key_env"), "KEY"),
            '{url: "http://10.0.0.2:8100"}',
            '{url: "http://10.0.0.2:8100", api_key_env: KEY}',
        ),
        (
            Edit(("fleet", "speed_prior", "us_per_token"), 12.5),
            '    - {url: "http://10.0.0.2:8100"}\n',
            '    - {url: "http://10.0.0.2:8100"}\n  speed_prior: {us_per_token: 12.5}\n',
        ),
        (Edit(("admin", "host"), "127.0.0.1"), "admin: {}", 'admin: {host: "127.0.0.1"}'),
        (Edit(("records", "keep"), 5), "records:\n", "records: {keep: 5}\n"),
        (Edit(("active",), "warm"), "records:\n", "records:\nactive: warm\n"),
        (
            Edit(("fleet", "instances", 0, "kv_events"), "off"),
            '      kv_events:\n        - {rank: 0, endpoint: "tcp://10.0.0.1:5557", topic: kv}\n',
            "      kv_events:\n        off\n",
        ),
    ],
)
def test_one_value_is_changed(edit: Edit, before: str, after: str) -> None:
    assert TEXT.count(before) == 1
    assert apply_edit(TEXT, edit) == TEXT.replace(before, after)


def test_what_cannot_be_added_is_left_out(tmp_path: Path) -> None:
    assert apply_edit(TEXT, Edit(("fleet", "instances", 7, "url"), "http://10.0.0.3:8100")) is None
    assert apply_edit("", Edit(("active",), "warm")) is None
    file = tmp_path / "main.yaml"
    assert make_patch(TEXT, file, [Edit(("limits", "keepalive_s"), "long"), Edit(("limits", "nothing"), 1)]) == ""


def test_a_patch_applies(tmp_path: Path) -> None:
    edits = [Edit(("limits", "keepalive_s"), 4.0), Edit(("active",), "warm"), Edit(("active",), "warm")]
    patch = make_patch(TEXT.replace("records:\n", ""), tmp_path / "main.yaml", edits)
    assert patch.splitlines()[0].startswith("--- ")
    assert [line for line in patch.splitlines()[2:] if line[0] in "+-"] == [
        "-  keepalive_s: 30.0  # too long",
        "+  keepalive_s: 4.0  # too long",
        "+active: warm",
    ]
