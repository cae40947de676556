"""The page `docs/operate/kubernetes.md`: its manifests, values and commands do what it says, on a real API server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools.pages import ROOT, Block, read_blocks
from tests.gateway.chart import CHART, Helm, merge, validate
from tests.gateway.cluster import Cluster
from tests.gateway.conftest import need
from tests.gateway.install import SCHEMAS, program

PAGE = ROOT / "docs/operate/kubernetes.md"
BLOCKS = list(read_blocks(PAGE))
VALUES = [block for block in BLOCKS if block.value == "values of the chart"]
MANIFESTS = [block for block in BLOCKS if block.value == "manifests"]
COMMANDS = [block for block in BLOCKS if block.language == "sh" and "tests/gateway runs it" in block.value]


def file_of(block: Block) -> str:
    """Return the file name in the block's first line."""
    return block.text.partition("\n")[0].removeprefix("# ")


@pytest.fixture
def folder(cluster: Cluster, helm: Path, kubectl: Path, tmp_path: Path) -> Path:
    """A folder with the page's files, from which `helm` and `kubectl` reach the cluster as an administrator."""
    for block in [*VALUES, *MANIFESTS]:
        (tmp_path / file_of(block)).write_text(block.text, encoding="utf-8")
    (tmp_path / "deploy").symlink_to(CHART.parents[1])
    access = {"server": f"https://127.0.0.1:{cluster.port}", "certificate-authority": str(cluster.ca_file)}
    context = {"cluster": "here", "user": "admin"}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": access}],
        "users": [{"name": "admin", "user": {"token": "admin"}}],
        "contexts": [{"name": "here", "context": context}],
    }))  # fmt: skip
    return tmp_path


@pytest.fixture
def shell(folder: Path) -> Callable[[str], str]:
    """`shell(commands)`: run them as the page shows them; the first that fails fails the test."""

    def run(commands: str) -> str:
        path = f"{program('helm').parent}:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": str(folder), "KUBECONFIG": str(folder / "kubeconfig")}
        done = subprocess.run(["bash", "-euc", commands], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("block", VALUES, ids=file_of)
def test_values_make_manifests_that_kubernetes_takes(
    block: Block, helm: Path, tmp_path: Path, shell: Callable[[str], str]
) -> None:
    need(SCHEMAS)
    values: dict[str, Any] = yaml.safe_load(block.text)
    base: dict[str, Any] = yaml.safe_load(next(each.text for each in VALUES if file_of(each) == "values.yaml"))
    rendered = Helm(helm, tmp_path).template(merge(base, values) if "engines" not in values else values)
    validate(rendered.all)
    old = Helm(helm, tmp_path).template(merge(base, values), version="1.20.2")
    builtin = [each for each in old.all if "monitoring.coreos.com" not in each["apiVersion"]]  # pools are known there
    (tmp_path / "rendered.yaml").write_text(yaml.safe_dump_all(builtin), encoding="utf-8")
    shell("kubectl apply --namespace llm --dry-run=server -f rendered.yaml")


@pytest.mark.parametrize("block", MANIFESTS, ids=file_of)
def test_manifests_are_what_kubernetes_takes(block: Block, shell: Callable[[str], str]) -> None:
    need(SCHEMAS)
    validate(list(yaml.safe_load_all(block.text)))
    shell(f"kubectl apply --namespace llm --dry-run=server -f {file_of(block)}")


def test_the_commands_in_their_order(shell: Callable[[str], str]) -> None:
    assert len(COMMANDS) == 2
    here = [re.sub(r"namespace llm\b", "namespace page", block.text) for block in COMMANDS]
    shell(here[0])
    assert "vllm-qwen" in shell("kubectl get deployments --namespace page")
    before = shell("kubectl get deployment warmroute --namespace page -o jsonpath='{.spec.template}'")
    upgrade, rollback = here[1].strip().splitlines()
    shell(upgrade)
    assert "kv_usage" in shell("kubectl get configmap warmroute-policies --namespace page -o yaml")
    assert "active: mine" in shell("kubectl get configmap warmroute --namespace page -o yaml")
    assert shell("kubectl get deployment warmroute --namespace page -o jsonpath='{.spec.template}'") == before
    shell(rollback)
    assert "kv_usage" not in shell("kubectl get configmap warmroute-policies --namespace page -o yaml")
    shell("helm uninstall warmroute --namespace page")
