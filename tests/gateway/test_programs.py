"""The programs that the gateway tests start, and that none of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.cluster import Cluster
from tests.gateway.install import program
from tests.paths import ROOT
from tests.stack.children import until

ANSWERING = """
static_resources:
  listeners:
  - name: front
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: served}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"""
START_AND_WAIT = """
import sys, time
from pathlib import Path
from router.lab.local_stack.guard import ProcessGuard
from tests.stack.children import Child
child = Child("etcd", [sys.argv[1], "--data-dir", sys.argv[2] + "/etcd", "--listen-client-urls", "http://127.0.0.1:0",
    "--advertise-client-urls", "http://127.0.0.1:0", "--listen-peer-urls", "http://127.0.0.1:0"],
    Path(sys.argv[2]), guard=ProcessGuard())
child.start()
child.wait(lambda: b"etcd Version" in child.log.read_bytes(), 30.0)
print(child.pid, flush=True)
time.sleep(600)
"""


async def test_two_envoys_at_once(envoy: Callable[[str], Any]) -> None:
    async with envoy(ANSWERING) as one, envoy(ANSWERING) as two:
        assert one.ports["front"] != two.ports["front"]
        async with httpx.AsyncClient(trust_env=False) as client:
            for running in (one, two):
                assert (await client.get(running.url("front"))).text == "served"
        assert await one.stat("http.front.downstream_rq_2xx") == 1


async def test_an_envoy_that_does_not_start_says_why(envoy: Callable[[str], Any]) -> None:
    with pytest.raises(AssertionError, match="'listener'"):
        async with envoy("static_resources: {listener: []}"):
            pass


async def test_helm_and_kubectl_reach_the_api_server(
    cluster: Cluster, kubectl: Path, helm: Path, tmp_path: Path
) -> None:
    await cluster.make_pod("a", "127.0.7.1")
    url = f"https://127.0.0.1:{cluster.port}"
    said = _run(kubectl, "--server", url, "--token", "admin", "--certificate-authority", str(cluster.ca_file),
                *("--namespace", "llm", "get", "pods", "--output", "name"), home=tmp_path)  # fmt: skip
    assert said == "pod/a\n"
    said = _run(helm, "--kube-apiserver", url, "--kube-token", "admin", "--kube-ca-file", str(cluster.ca_file),
                *("--namespace", "llm", "list", "--output", "json"), home=tmp_path)  # fmt: skip
    assert said == "[]\n"


def test_a_killed_test_run_leaves_no_program_behind(running_cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", START_AND_WAIT, str(program("etcd")), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as run:
        assert run.stdout is not None
        etcd = int(run.stdout.readline())
        assert _runs(etcd)
        run.send_signal(signal.SIGKILL)
    until("etcd ends", lambda: not _runs(etcd))


def _run(command: Path, *arguments: str, home: Path) -> str:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run([str(command), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _runs(pid: int) -> bool:
    """Return whether the process runs: one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
