"""A profile file: speed and size of one instance of a simulated fleet, with a source for every number.

A number without a source is an opinion, so each number is written with its own:

    kv_tokens: {value: 307328, source: "..."}

`router/testbed/engine_profile.py` defines what the numbers mean together and has the same fields;
`router/testbed/sweep/lookup.py` converts.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.config.sections.base import Positive, Section

Source = Annotated[
    str, Field(pattern=r"\S", description="where it was published, how it was measured, or what it follows from")
]


class SourcedCount(Section):
    value: Positive
    """the number itself"""
    source: Source


class SourcedCost(Section):
    value: float = Field(ge=0)
    """the number itself; 0: no cost"""
    source: Source


class SourcedSize(Section):
    value: float = Field(gt=0)
    """the number itself"""
    source: Source


class ProfileFile(Section):
    """One instance, all of its GPUs together."""

    about: str = Field(pattern=r"\S")
    """which model on which hardware, and what the numbers have in common"""
    kv_tokens: SourcedCount
    """capacity of the KV cache, tokens"""
    kv_bytes_per_token: SourcedSize
    """KV size of one token over all layers and all GPUs of the instance, bytes"""
    us_per_token: SourcedCost
    """compute per prompt token without attention, microseconds"""
    ns_per_pair: SourcedCost
    """attention compute per pair of a new token and a token before it, nanoseconds"""
    us_per_decode: SourcedCost
    """compute per output token, microseconds"""
    weights_ms: SourcedCost
    """reading the weights once per step, milliseconds"""
    ns_per_context_token: SourcedCost
    """reading the KV of one context token, nanoseconds per step"""
    step_ms: SourcedCost
    """fixed overhead of a step (kernel launches, scheduling, sampling), milliseconds"""
    batched_tokens: SourcedCount
    """most tokens that one step computes (`max_num_batched_tokens`)"""
    max_seqs: SourcedCount
    """most requests that run at once (`max_num_seqs`)"""
