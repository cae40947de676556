"""The order of a request's stages: the stages of the core, and between them the places for stages of features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from router.request.reading import end_reading, find_response, read_request, resolve_model, tokenize
from router.request.services import CardFilter, Recovery, RefusalSink, RequestPath, Stage

Part = TypeVar("Part")


class FeaturePath(NamedTuple):
    """The parts of one feature in the path of requests: stages by the place where they run, and the later parts."""

    arrived: Stage | None = None  # only the head has been read; also runs for a request about a stored response
    read: Stage | None = None  # the body is read, and may still change; it has the client's own name for the model
    named: Stage | None = None  # the model's name is final; perhaps no instance serves it
    resolved: Stage | None = None  # instances serve the model; the prompt is not counted yet
    tokenized: Stage | None = None  # the prompt's token ids are known, as far as possible
    admitted: Stage | None = None  # the last stage that waits; runs again for another model
    ready: Stage | None = None  # the record is about to open; also runs for a request about a stored response
    recovery: Recovery | None = None
    on_refusal: RefusalSink | None = None
    filter_cards: CardFilter | None = None


def build_request_path(features: Sequence[FeaturePath]) -> RequestPath:
    """Return the path of requests through the core and these features. If several features have a stage at one
    place, the stages run in the order of the features. Model cards pass through the features in reverse order.
    """
    arrived = given(feature.arrived for feature in features)
    ready = given(feature.ready for feature in features)
    admitted = given(feature.admitted for feature in features)
    stages = (
        *arrived,
        read_request,
        *given(feature.read for feature in features),
        end_reading,
        *given(feature.named for feature in features),
        resolve_model,
        *given(feature.resolved for feature in features),
        tokenize,
        *given(feature.tokenized for feature in features),
        *admitted,
        *ready,
    )
    return RequestPath(
        stages,
        stored=(*arrived, find_response, *ready),
        again=(resolve_model, tokenize, *admitted),
        recoveries=given(feature.recovery for feature in features),
        refusals=given(feature.on_refusal for feature in features),
        cards=given(feature.filter_cards for feature in reversed(features)),
    )


def given(parts: Iterable[Part | None]) -> tuple[Part, ...]:
    """Return the parts that are not None."""
    return tuple(part for part in parts if part is not None)
