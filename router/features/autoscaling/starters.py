"""Starters of instances: by an HTTP endpoint of the operator, or by a Kubernetes Deployment."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

import httpx
import msgspec

from router.backends.discovery.kubernetes.api import ApiRefused, ApiUnavailable, KubernetesApi
from router.config.sections.autoscaling import WakeWebhookConfig

SCALE = "/apis/apps/v1/namespaces/{}/deployments/{}/scale"


class InstanceStarter(Protocol):
    """Starts instances for one pattern of models."""

    async def start(self, model: str, waiting: int) -> str | None:
        """Request an instance with `model`, for which `waiting` requests wait. Return the failure; None if the
        request was accepted, or the instance is there.
        """


class WebhookStarter:
    """Posts `{"model": NAME, "waiting": REQUESTS}` to an endpoint of the operator, with the `token` if any."""

    def __init__(self, config: WakeWebhookConfig, token: str | None) -> None:
        self._config = config
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    async def start(self, model: str, waiting: int) -> str | None:
        config = self._config
        body = {"model": model, "waiting": waiting}
        try:
            tls = await asyncio.to_thread(ssl.create_default_context, cafile=config.ca_file)
            async with (
                asyncio.timeout(config.timeout_s),
                httpx.AsyncClient(verify=tls, timeout=config.timeout_s, trust_env=False) as http,
                http.stream("POST", config.url, json=body, headers=self._headers) as answer,
            ):
                return None if answer.is_success else f"the webhook answered {answer.status_code}"
        except TimeoutError:
            return f"the webhook did not answer within {config.timeout_s:g} s"
        except (httpx.HTTPError, OSError) as error:  # OSError: the CA file cannot be read
            return f"the webhook: {str(error) or type(error).__name__}"


class ScaleSpec(msgspec.Struct, frozen=True):
    replicas: int = 0  # left out for 0


class Scale(msgspec.Struct, frozen=True):
    """The part of `autoscaling/v1` Scale that is read."""

    spec: ScaleSpec = ScaleSpec()


class DeploymentStarter:
    """Raises the scale of a Deployment to `replicas` if it is lower, and never lowers it. The router's service
    account needs `get` and `patch` on `deployments/scale` in the namespace.
    """

    def __init__(self, api: KubernetesApi, namespace: str, name: str, replicas: int) -> None:
        self._api = api
        self._path = SCALE.format(namespace, name)
        self._name = name
        self._replicas = replicas

    async def start(self, model: str, waiting: int) -> str | None:
        try:
            scale = msgspec.json.decode(await self._api.get(self._path, {}), type=Scale)
            if scale.spec.replicas < self._replicas:
                await self._api.patch(self._path, {"spec": {"replicas": self._replicas}})
        except (ApiRefused, ApiUnavailable) as error:
            return f"deployment {self._name}: {error}"
        except msgspec.DecodeError as error:
            return f"deployment {self._name}: its scale cannot be read: {error}"
        return None
