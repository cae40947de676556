"""The API for requests that a gateway sends through a picker: the same as the proxy's, with gateway-specific
refusals.

The accepted requests and the texts of refusals are the proxy's (`public_api.py`). `/health`, `/ready` and
`/metrics` are not part of this API: they are the router's own, and have a separate port.
"""

from __future__ import annotations

from dataclasses import replace

from router.errors import RequestRefused
from router.picker.exchange import PickerExchange
from router.picker.names import DROPPED_REASON, TEST_SELECTION
from router.prompt.api.parse import ReadOptions
from router.proxy.call import ClientRequest
from router.request.error_body import ErrorBody
from router.request.public_api import RequestApi
from router.request.services import Services

WAITED = "no_room"  # the code of a refusal after a wait for admission


class PickerApi:
    """Answers the exchanges of gateways. With `testing`, the headers of conformance tests take effect."""

    def __init__(self, services: Services, *, testing: bool = False) -> None:
        options = services.read_options
        unhidden = ReadOptions(options.strip_fields, inject_usage=False, want_source=options.want_source)
        self._conforming = _GatewayApi(services, open_paths=testing)
        # A thin gateway retains the answer: nothing in it can be hidden, so no usage is injected.
        self._thin = _GatewayApi(replace(services, read_options=unhidden), open_paths=testing)
        self._testing = testing

    async def answer(self, exchange: PickerExchange) -> None:
        if self._testing:
            exchange.tests = True
            if (selection := exchange.text(TEST_SELECTION)) is not None:
                exchange.subset = frozenset(name.strip() for name in selection.split(","))
        await (self._thin if exchange.thin else self._conforming).answer(exchange)

    def on_crash(self, exchange: PickerExchange) -> ErrorBody:
        return self._conforming.on_crash(exchange)


class _GatewayApi(RequestApi):
    def encode_refusal(self, refusal: RequestRefused, call: ClientRequest) -> ErrorBody:
        answer = super().encode_refusal(refusal, call)
        reason = {429: b"rejected-saturated", 503: b"rejected-no-endpoints"}.get(refusal.status)
        if refusal.code == WAITED:
            reason = b"rejected-ttl-expired"
        return answer if reason is None else answer._replace(headers=[*answer.headers, (DROPPED_REASON, reason)])
