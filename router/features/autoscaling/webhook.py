"""Starts instances by an HTTP endpoint of the operator, which gets `{"model": NAME, "waiting": REQUESTS}` by POST."""

from __future__ import annotations

import asyncio
import ssl

import httpx

from router.config.sections.wake import WakeWebhookConfig


class WebhookStarter:
    """An `InstanceStarter`. `token` None: none is sent."""

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
