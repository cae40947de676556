"""The metrics page of an emulated engine, with vLLM 0.32's names, labels and number format.

The page has the metrics that a router or a dashboard reads; the full page of a real engine is among the recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from router.lab.emulator.options import EngineOptions
from router.lab.simulator.engine_types import EngineGauges


class MetricLine(NamedTuple):
    name: str
    kind: str
    value: Callable[[EngineGauges], float]
    labels: str = ""  # beside engine and model_name
    part: str = ""  # of a histogram


BY_SOURCE = "vllm:prompt_tokens_by_source_total"
METRICS = (
    MetricLine("vllm:num_requests_running", "gauge", lambda g: g.running),
    MetricLine("vllm:num_requests_waiting", "gauge", lambda g: g.waiting),
    MetricLine("vllm:num_requests_waiting_by_reason", "gauge", lambda g: g.waiting - g.loading, 'reason="capacity"'),
    MetricLine("vllm:num_requests_waiting_by_reason", "gauge", lambda g: g.loading, 'reason="deferred"'),
    MetricLine("vllm:num_requests_kv_fetch_by_stage", "gauge", lambda g: g.loading, 'stage="in_progress"'),
    MetricLine("vllm:kv_cache_usage_perc", "gauge", lambda g: g.kv_usage),
    MetricLine("vllm:prefix_cache_queries_total", "counter", lambda g: g.queried_tokens),
    MetricLine("vllm:prefix_cache_hits_total", "counter", lambda g: g.hit_tokens),
    MetricLine("vllm:external_prefix_cache_queries_total", "counter", lambda g: g.external_queried_tokens),
    MetricLine("vllm:external_prefix_cache_hits_total", "counter", lambda g: g.external_hit_tokens),
    MetricLine("vllm:num_preemptions_total", "counter", lambda g: g.preemptions),
    MetricLine("vllm:prompt_tokens_total", "counter", lambda g: g.prompt_tokens),
    MetricLine(
        BY_SOURCE, "counter", lambda g: g.prompt_tokens - g.hit_tokens - g.external_hit_tokens, 'source="local_compute"'
    ),
    MetricLine(BY_SOURCE, "counter", lambda g: g.hit_tokens, 'source="local_cache_hit"'),
    MetricLine(BY_SOURCE, "counter", lambda g: g.external_hit_tokens, 'source="external_kv_transfer"'),
    MetricLine("vllm:prompt_tokens_cached_total", "counter", lambda g: g.hit_tokens + g.external_hit_tokens),
    MetricLine("vllm:generation_tokens_total", "counter", lambda g: g.generated_tokens),
    MetricLine("vllm:request_success_total", "counter", lambda g: g.stopped, 'finished_reason="stop"'),
    MetricLine("vllm:request_success_total", "counter", lambda g: g.truncated, 'finished_reason="length"'),
    MetricLine("vllm:request_success_total", "counter", lambda g: g.cancelled, 'finished_reason="abort"'),
)


STORE_METRIC = "vllm:mooncake_store_operation"
LOAD_LABELS = 'operation="load_get",status="ok"'
POOL_LOAD_METRICS = (  # vLLM exposes none of them before the first load
    MetricLine(
        f"{STORE_METRIC}_time_seconds", "histogram", lambda g: g.pool_loads, f'{LOAD_LABELS},le="+Inf"', "_bucket"
    ),
    MetricLine(f"{STORE_METRIC}_time_seconds", "histogram", lambda g: g.pool_loads, LOAD_LABELS, "_count"),
    MetricLine(f"{STORE_METRIC}_time_seconds", "histogram", lambda g: g.pool_load_s, LOAD_LABELS, "_sum"),
    MetricLine(f"{STORE_METRIC}_total", "counter", lambda g: g.pool_loads, LOAD_LABELS),
    MetricLine(f"{STORE_METRIC}_keys_total", "counter", lambda g: g.pool_loaded_blocks, LOAD_LABELS),
)


def render_metrics(
    options: EngineOptions, gauges: Sequence[EngineGauges], wall_s: float, started_wall_s: float = 0.0
) -> bytes:
    """Return the metrics page. `gauges` are indexed by rank."""
    lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started_wall_s!r}"]
    lines += [*_samples(options, METRICS, gauges), *_created(options, started_wall_s), *_cache_config(options)]
    if any(each.pool_loads for each in gauges):
        lines += _samples(options, POOL_LOAD_METRICS, gauges)
    if options.loras:
        lines += _adapter_info(options, gauges, wall_s)
    return "\n".join(lines).encode() + b"\n"


def _samples(options: EngineOptions, lines: Sequence[MetricLine], gauges: Sequence[EngineGauges]) -> Iterator[str]:
    typed = ""
    for line in lines:
        if line.name != typed:
            typed = line.name
            yield f"# TYPE {line.name} {line.kind}"
        for rank, each in enumerate(gauges):
            labels = _labels({"engine": rank, "model_name": options.model}) + (line.labels and "," + line.labels)
            yield f"{line.name}{line.part}{{{labels}}} {float(line.value(each))}"


def _created(options: EngineOptions, started_wall_s: float) -> Iterator[str]:
    """Yield the start time of each rank's counter: on a real page every counter has such a line."""
    name = "vllm:prefix_cache_queries_created"
    yield f"# TYPE {name} gauge"
    for rank in range(options.ranks):
        yield f"{name}{{{_labels({'engine': rank, 'model_name': options.model})}}} {started_wall_s + rank * 1e-6!r}"


def _cache_config(options: EngineOptions) -> Iterator[str]:
    yield "# TYPE vllm:cache_config_info gauge"
    for rank in range(options.ranks):
        labels = {
            "block_size": options.block_tokens,
            "cache_dtype": "auto",
            "effective_attention_block_size": options.block_tokens,
            "enable_prefix_caching": options.prefix_caching,
            "engine": rank,
            "hash_block_size": None,  # as on a real engine
            "kv_cache_size_tokens": options.cache_tokens,
            "num_gpu_blocks": options.blocks,
            "prefix_caching_hash_algo": options.hash_algo,
            "sliding_window": None,
        }
        yield f"vllm:cache_config_info{{{_labels(labels)}}} 1.0"


def _adapter_info(options: EngineOptions, gauges: Sequence[EngineGauges], wall_s: float) -> Iterator[str]:
    """Yield the server's only sample, whose value is the time of writing."""
    running = {name for each in gauges for name in each.running_adapters}
    waiting = {name for each in gauges for name in each.waiting_adapters}
    labels = {
        "max_lora": len(options.loras),
        "running_lora_adapters": ",".join(sorted(running)),
        "waiting_lora_adapters": ",".join(sorted(waiting)),
    }
    yield "# TYPE vllm:lora_requests_info gauge"
    yield f"vllm:lora_requests_info{{{_labels(labels)}}} {wall_s}"


def _labels(values: dict[str, object]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in values.items())
