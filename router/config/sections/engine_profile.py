"""A profile's file: how fast and how big one instance of a simulated fleet is, and where each number comes from.

A number without a source is an opinion, so every number stands beside its own:

    kv_tokens: {value: 307328, source: "..."}

What the numbers mean together is `router/testbed/engine_profile.py`, which has the same fields;
`router/testbed/sweep/profiles.py` makes the one of the other.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.config.sections.base import Positive, Section

Source = Annotated[
    str, Field(pattern=r"\S", description="where it was published, how it was measured, or what it follows from")
]


class SourcedCount(Section):
    value: Positive = Field(description="the number itself")
    source: Source


class SourcedCost(Section):
    value: float = Field(ge=0, description="the number itself; 0: it costs nothing")
    source: Source


class SourcedSize(Section):
    value: float = Field(gt=0, description="the number itself")
    source: Source


class ProfileFile(Section):
    """One instance, all of its GPUs together."""

    about: str = Field(pattern=r"\S", description="which model on which hardware, and what the numbers share")
    kv_tokens: SourcedCount = Field(description="tokens that its KV cache holds")
    kv_bytes_per_token: SourcedSize = Field(description="KV of one token, over all layers and all GPUs of the instance")
    us_per_token: SourcedCost = Field(description="compute of one prompt token in microseconds, attention left out")
    ns_per_pair: SourcedCost = Field(description="compute of attention from one new token to one token before it")
    us_per_decode: SourcedCost = Field(description="compute of one answer token in microseconds")
    weights_ms: SourcedCost = Field(description="reading the weights once, in milliseconds per step")
    ns_per_context_token: SourcedCost = Field(description="reading the KV of one context token, per step")
    step_ms: SourcedCost = Field(description="what a step takes whatever is in it: launches, scheduling, sampling")
    batched_tokens: SourcedCount = Field(description="tokens that one step computes at most (`max_num_batched_tokens`)")
    max_seqs: SourcedCount = Field(description="requests that run at once (`max_num_seqs`)")
