"""The section `forbidden_words`: requests whose prompt has one of these words are refused."""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import Section


class ForbiddenWordsConfig(Section):
    """Words that no prompt may have, in whatever case."""

    words: list[str] = Field(min_length=1, max_length=100)
    """the words"""
