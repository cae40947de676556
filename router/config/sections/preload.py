"""The section `preload`: prefixes that engines are sent ahead of the requests that begin with them."""

from __future__ import annotations

from pydantic import Field

from router.config.sections.base import Positive, Seconds, Section


class PreloadConfig(Section):
    """Prefixes of recent prompts that the router sends to engines by itself, ahead of the requests for them."""

    join: bool = False
    """an engine that joins gets the prefixes that its first requests will probably begin with"""
    share: float = Field(default=0.02, gt=0, le=1)
    """most of the fleet's prefill time that preloading may take, on average; an engine that gets no requests
    (drained) is not counted
    """
    join_tokens: Positive = 200_000
    """most tokens that one engine gets when it joins, and half of its cache at most"""
    join_s: Seconds = 60.0
    """longest time after an engine has joined in which it gets them, seconds"""
    drain: bool = False
    """a drained engine serves until others have the prefixes that only it holds and several sessions share"""
    drain_s: Seconds = 60.0
    """longest time for that, seconds; then it is drained in any case"""
    copies: bool = False
    """a prefix gets one more holder as long as its share of the requests is greater than the share of the targets
    that hold it
    """
    memory_bytes: Positive = 32 * 1024 * 1024
    """memory for the token ids of recent prompts, bytes (4 per token); the ids are in memory only, and none are
    kept unless something is preloaded
    """

    @property
    def enabled(self) -> bool:
        """True if anything is preloaded."""
        return self.join or self.drain or self.copies

    @property
    def prompt_bytes(self) -> int:
        """Memory for token ids; 0 where nothing is preloaded."""
        return self.memory_bytes if self.enabled else 0
