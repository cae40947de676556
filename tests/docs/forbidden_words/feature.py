"""Forbidden words: a request whose body has one of them is refused with 400, and counted by the word."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from router.control.core import Core
from router.control.feature import Feature
from router.errors import BadRequest
from router.request.request import Request
from router.request.services import Services
from router.request.stages import FeaturePath


class ForbiddenWordsFeature(Feature):
    """Refuses the words of `forbidden_words`."""

    def __init__(self, core: Core) -> None:
        assert core.config.forbidden_words is not None
        self._words = {word.lower().encode(): word for word in core.config.forbidden_words.words}
        meaning = "requests refused because of a word that no prompt may have"
        self._refused = core.metrics.counter("forbidden_words_total", meaning, "word")
        self.path = FeaturePath(read=self.check)

    def check(self, request: Request, services: Services) -> None:
        """Refuse a request with a forbidden word: its stage, when its body is read. Raises `BadRequest`."""
        body = request.body.lower()
        for found, word in self._words.items():
            if found in body:
                self._refused[(word,)] += 1
                raise BadRequest(f"`{word}` must not be in a prompt here", code="forbidden_word")

    def describe(self) -> dict[str, Any]:
        """Return how many requests were refused, by word."""
        return {"refused": {word: int(self._refused[(word,)]) for word in self._words.values()}}

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        @app.get("/admin/forbidden-words", dependencies=read)
        async def forbidden_words() -> dict[str, Any]:
            """Return how many requests were refused, by word."""
            return self.describe()
