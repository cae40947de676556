"""The sections `wake`: requests for a model without an instance wait while one is started; and `keda`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from router.config.sections.base import (
    KUBERNETES_NAME,
    WEB,
    PathName,
    Port,
    Positive,
    Seconds,
    Section,
    Shape,
    VariableName,
    find_choice_fault,
)
from router.config.sections.listeners import GrpcTls

WEBHOOK_URL = Shape(r"^https?://[^\s/?#@]+(/[^\s#]*)?$", "a URL without user, such as http://starter:8080/start", WEB)


class WakeWebhookConfig(Section):
    """An HTTP endpoint that starts an instance. It gets `{"model": NAME, "waiting": REQUESTS}` by POST; any 2xx
    means that it will, at once or later.
    """

    url: Annotated[str, WEBHOOK_URL]
    """where it is"""
    token_env: VariableName | None = None
    """environment variable with its bearer token; null: no token is sent"""
    ca_file: PathName | None = None
    """PEM file of the CA that signed its certificate; null: the system's CAs"""
    timeout_s: Seconds = 10.0
    """longest time for its answer, seconds"""


class WakeDeploymentConfig(Section):
    """A Kubernetes Deployment that is scaled up, never down."""

    name: Annotated[str, KUBERNETES_NAME]
    """its name"""
    namespace: Annotated[str, KUBERNETES_NAME] | None = None
    """its namespace; null: that of `fleet.kubernetes`, else of the router's own pod"""
    replicas: Positive = 1
    """replicas that it gets where it has fewer"""


class WakeModelConfig(Section):
    """Starts an instance. Give one of `webhook` and `deployment`; none where KEDA starts it (`keda`)."""

    webhook: WakeWebhookConfig | None = None
    """call this; null: it is not called"""
    deployment: WakeDeploymentConfig | None = None
    """scale this; null: it is not scaled"""

    @model_validator(mode="after")
    def _refuse_two_ways(self) -> WakeModelConfig:
        given = {"webhook": self.webhook is not None, "deployment": self.deployment is not None}
        if all(given.values()):
            raise ValueError(find_choice_fault("the model", given))
        return self


class WakeConfig(Section):
    """Requests that each worker holds while instances start."""

    models: dict[str, WakeModelConfig] = Field(min_length=1, max_length=256)
    """models whose requests may wait, by name or pattern as clients name them (`*` stands for any characters); the
    first that matches counts. Any name that matches a pattern starts an instance, so keep patterns narrow"""
    requests: Positive = 1000
    """requests that may wait at once, of one client at most four times what is free; beyond it they get 503"""
    body_bytes: Positive = 256 * 1024 * 1024
    """bytes of their bodies, of one client at most four times what is free; beyond it they get 503"""
    wait_s: Seconds = 120.0
    """longest wait for an instance, seconds; after it: 503"""
    pause_s: Seconds = 30.0
    """pause after a call that starts an instance before the next one for the same model, while requests still wait,
    seconds"""


class KedaConfig(Section):
    """An external scaler of KEDA (gRPC): how many instances of a model are wanted, and that requests wait for it. A
    trigger's metadata are `model`, the base model's name, and `role`, which is both where it is missing.
    """

    host: str = "0.0.0.0"
    """address of the gRPC listener"""
    port: Port = 9005
    """port of the gRPC listener; 0: the system chooses one"""
    tls: GrpcTls = "off"
    """off: clear text; self-signed: TLS with a certificate made at start, for triggers with `enableTLS` and
    `unsafeSsl`; or the certificate of `cert_file` and `key_file`"""
