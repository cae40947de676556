"""The sections of DNS and Kubernetes discovery, as operators write and miswrite them."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import parse_config
from router.config.schema import Config
from router.errors import ConfigError


def read(fleet: str, folder: Path) -> Config:
    return parse_config(f"fleet:\n  {fleet}\n", "router.yaml", folder)


def test_a_selector_is_enough(tmp_path: Path) -> None:
    found = read("kubernetes: {selector: app=vllm}", tmp_path).fleet.kubernetes
    assert found is not None
    assert (found.ports, found.namespace, found.api) == ([8000], None, None)


def test_a_name_is_enough(tmp_path: Path) -> None:
    found = read("dns: {name: _http._tcp.vllm.llm.svc.cluster.local}", tmp_path).fleet.dns
    assert found is not None
    assert found.port is None


WRONG = [
    (
        "kubernetes: {namespace: llm}",
        "fleet.kubernetes: the section has neither `selector` nor `inference_pool`: give one",
    ),
    ("kubernetes: {selector: a=b, inference_pool: p}", "fleet.kubernetes: the section has `selector` and"),
    ("kubernetes: {selector: a=b, ports: [8000, 8000]}", "fleet.kubernetes.ports[1]: found 8000 again: remove one"),
    ("kubernetes: {selector: a=b, ports: []}", "fleet.kubernetes.ports"),
    ("kubernetes: {selector: a=b, port: [8000]}", 'did you mean "ports"'),
    ("kubernetes: {selector: a=b, namespace: LLM}", "fleet.kubernetes.namespace"),
    ('kubernetes: {selector: a=b, api: {url: "https://k:6443"}}', "token_file"),
    ('kubernetes: {selector: a=b, api: {url: "https://k:6443", token_file: none}}', "no such file"),
    ("kubernetes: {selector: a=b, api_key_env: NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE is not set"),
    ("dns: {name: -x, port: 8000}", "fleet.dns.name"),
    ("dns: {name: x, port: 0}", "fleet.dns.port"),
    ("dns: {name: x, ca_file: none.pem}", "no such file"),
]


@pytest.mark.parametrize(("fleet", "says"), WRONG)
def test_mistakes_are_named(fleet: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(fleet, tmp_path)
    assert says in str(refused.value)
