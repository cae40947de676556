"""Both ways to start an instance, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from router.backends.discovery.kubernetes.api import KubernetesApi
from router.config.sections.autoscaling import WakeWebhookConfig
from router.features.autoscaling.starters import SCALE, DeploymentStarter, WebhookStarter
from tests.fakes.kubernetes import ApiServer, Refusal
from tests.fakes.webhook import Webhook

VLLM = SCALE.format("llm", "vllm")


@asynccontextmanager
async def deployment(folder: Path, replicas: int, wanted: int = 1) -> AsyncIterator[tuple[ApiServer, Any]]:
    async with ApiServer(folder) as server:
        server.scales[VLLM] = replicas
        yield server, DeploymentStarter(KubernetesApi(server.config), "llm", "vllm", wanted)


async def test_a_deployment_is_scaled_up(tmp_path: Path) -> None:
    async with deployment(tmp_path, 0, 2) as (server, starter):
        assert await starter.start("m", 5) is None
        assert server.patches == [(VLLM, {"spec": {"replicas": 2}})]
        assert await starter.start("m", 5) is None
        assert len(server.patches) == 1, "it has them already"


async def test_a_deployment_is_never_scaled_down(tmp_path: Path) -> None:
    async with deployment(tmp_path, 3) as (server, starter):
        assert await starter.start("m", 5) is None
        assert (server.patches, server.scales[VLLM]) == ([], 3)


async def test_what_the_api_server_refuses_is_said(tmp_path: Path) -> None:
    async with deployment(tmp_path, 0) as (server, starter):
        server.refusals.append(Refusal(403))
        assert await starter.start("m", 5) == "deployment vllm: 403: refused with 403"
    assert (await starter.start("m", 5)).startswith("deployment vllm: ")


async def test_a_webhook_gets_the_model_and_its_token() -> None:
    async with Webhook() as hook:
        starter = WebhookStarter(WakeWebhookConfig(url=hook.url), "secret")
        assert await starter.start("qwen", 5) is None
        ((head, body),) = hook.requests
        assert head.startswith("POST /wake HTTP/1.1")
        assert "authorization: bearer secret" in head.lower()
        assert json.loads(body) == {"model": "qwen", "waiting": 5}


async def test_what_a_webhook_answers_wrongly_is_said() -> None:
    async with Webhook() as hook:
        starter = WebhookStarter(WakeWebhookConfig(url=hook.url), None)
        hook.status = 500
        assert await starter.start("qwen", 5) == "the webhook answered 500"
        hook.silent = asyncio.Event()
        hasty = WebhookStarter(WakeWebhookConfig(url=hook.url, timeout_s=0.1), None)
        assert await hasty.start("qwen", 5) == "the webhook did not answer within 0.1 s"
        hook.silent.set()
    assert (await starter.start("qwen", 5) or "").startswith("the webhook: ")
    missing = WakeWebhookConfig(url=hook.url, ca_file="/nowhere/ca.pem")
    assert "No such file" in (await WebhookStarter(missing, None).start("qwen", 5) or "")
