"""Starts instances by a Kubernetes Deployment: its scale is raised where it is lower, and never lowered.

The router's service account needs `get` and `patch` on `deployments/scale` in the namespace.
"""

from __future__ import annotations

import msgspec

from router.backends.discovery.kubernetes.api import ApiRefused, ApiUnavailable, KubernetesApi

SCALE = "/apis/apps/v1/namespaces/{}/deployments/{}/scale"


class ScaleSpec(msgspec.Struct, frozen=True):
    replicas: int = 0  # left out for 0


class Scale(msgspec.Struct, frozen=True):
    """The part of `autoscaling/v1` Scale that is read."""

    spec: ScaleSpec = ScaleSpec()


class DeploymentStarter:
    """An `InstanceStarter`."""

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
