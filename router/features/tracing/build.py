"""Builds the tracing of a process from its configuration and the OTEL_* variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from router.clock import Clock
from router.config.sections.tracing import TracingConfig
from router.config.yaml_source import read_text
from router.errors import ConfigError, needs_extra, quote_name
from router.features.tracing.spans import Address
from router.features.tracing.tracing import Tracing
from router.telemetry.trace_context import HeadSampler, draw_ids

TRACES_PATH = "/v1/traces"
DEFAULT_RATIO = 0.1
FIXED_RATIOS = {"always_on": 1.0, "always_off": 0.0}


def build_tracing(
    config: TracingConfig,
    environment: Mapping[str, str],
    address: Callable[[str], Address | None],
    clock: Clock,
    *,
    instance: str,
    continues: bool,
) -> Tracing:
    """Build the tracing of the process `instance`. If `continues` is False, the `traceparent` of clients is
    ignored. `address` returns the address of a target. Raises `ConfigError` when the SDK is not installed, or a
    setting cannot be used.
    """
    ratio = read_ratio(environment) if config.sample_ratio is None else config.sample_ratio
    headers = None if config.headers_file is None else read_headers(Path(config.headers_file))
    with needs_extra("otel", "tracing"):
        from router.features.tracing.otlp import OtlpSender
    endpoint = None if config.endpoint is None else complete_endpoint(config.endpoint)
    sender = OtlpSender(endpoint, headers, config.resource, version=version("warmroute"), instance=instance)
    sampler = HeadSampler(ratio, draw_ids().__next__, continues=continues)
    return Tracing(sampler, sender, address, clock, slow_s=config.slow_s, queue=config.queue)


def complete_endpoint(endpoint: str) -> str:
    """Return the URL that spans are posted to. An endpoint without a path is the base URL of a receiver."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + TRACES_PATH


def read_ratio(environment: Mapping[str, str]) -> float:
    """Return the share of new traces to sample, from OpenTelemetry's variables. Clients decide about their own
    traces with any sampler. Raises `ConfigError` for an unknown sampler or an invalid number.
    """
    name = environment.get("OTEL_TRACES_SAMPLER", "").strip()
    sampler = name.removeprefix("parentbased_")
    text = environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    if sampler in FIXED_RATIOS:
        return FIXED_RATIOS[sampler]
    if sampler not in ("", "traceidratio"):
        raise ConfigError(f"OTEL_TRACES_SAMPLER: {quote_name(name)} is not known; set tracing.sample_ratio")
    if not text:
        return 1.0 if sampler else DEFAULT_RATIO
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG: {quote_name(text)} is not a number from 0 to 1")
    return ratio


def read_headers(path: Path) -> dict[str, str]:
    """Read a file of `NAME: VALUE` lines; empty lines and lines that begin with # are ignored. Raises
    `ConfigError`, without any value in the message, because it may be a secret.
    """
    headers: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not (text := line.strip()) or text.startswith("#"):
            continue
        name, colon, value = text.partition(":")
        if not colon or not name.strip().isascii() or " " in name.strip() or not name.strip():
            raise ConfigError(f"{path}:{number}: not NAME: VALUE")
        headers[name.strip().lower()] = value.strip()
    return headers
