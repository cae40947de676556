"""Detects how the engines of a model hash blocks, by hashing the blocks in their events and comparing.

Queries with wrong hashes find nothing and look like an empty pool. So a chain counts as proved only after an engine
reported a prompt's first block under the hash that the chain gives: 64 equal bits are a proof. Parameters left open
in the configuration are tried with all usual values; explicit ones are varied, too, to report what is wrong and
what to set. If engines hash differently, at once or one after the other, the proof is revoked until `AGREE` first
blocks in a row agree again. The module is pure, and depends neither on keys nor on the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from router.config.sections.pool import HashAlgo, PoolModelConfig
from router.kvcache.engine_hashes import DEFAULT_SEED, SEEDS, EngineChain, fits, is_comparable, list_chains
from router.kvcache.events import BlocksStored

State = Literal["waiting", "proved", "refuted"]

AGREE = 4  # first blocks in a row that must agree after a disagreement


class HashDetection:
    """Hash parameters of one base model.

    `chain` is the chain to hash with: proved or, while `state` is "waiting", a guess. Blocks found by a guess are
    in the pool; blocks not found may be in the pool under other names. None: the chain is unknown, and so is the
    pool's content. `trouble` is one line for the operator: what differs, and what to set.
    """

    def __init__(self, name: str, config: PoolModelConfig) -> None:
        """Start the detection for the model `name`, as in the configuration's `pool.models`."""
        self._where = f"pool.models.{name}"
        self._config = config
        self._candidates = list(list_candidates(config))
        self._fitting: list[EngineChain] = []  # candidates that fit all events since the last disagreement
        self._block_tokens: int | None = None  # block size of those events; None: no event yet
        self._before = ""  # description of the hashing before the last disagreement
        self._doubts = 0  # events that must still agree
        self.state: State = "waiting"
        self.chain = EngineChain.from_config(
            "sha256" if config.hash_algo == "auto" else config.hash_algo, config.hash_seed, config.extra_keys != "bare"
        )
        self.trouble: str | None = None
        if self.chain is None:
            self.trouble = (
                f"{self._where}.hash_seed: is needed with {config.hash_algo}, by which each engine otherwise hashes "
                "from random bytes: start the engines with PYTHONHASHSEED=0, and set it to '0'"
            )

    def observe(self, event: BlocksStored) -> None:
        """Compare blocks that an engine stored from token 0 on, with any adapter or salt. Takes a few us once
        settled.
        """
        if not is_comparable(event):
            return
        alike = self._block_tokens in (None, event.block_tokens)
        fitting = [chain for chain in self._fitting if alike and fits(chain, event)]
        if fitting:
            if fitting == self._fitting and not self._doubts:
                return
            self._doubts = max(0, self._doubts - 1)
        else:
            if self._block_tokens is not None:
                self._before, self._doubts = self._describe(), AGREE
            fitting = [chain for chain in self._candidates if fits(chain, event)]
        self._fitting, self._block_tokens = fitting, event.block_tokens
        self._evaluate()

    def _evaluate(self) -> None:
        self.trouble = self._wrong_size() or self._unknown() or self._wrong_config() or self._disagreement()
        self.state = "proved" if self.trouble is None else "refuted"
        allowed = (chain for chain in self._fitting if not self._complaints(chain))
        self.chain = next(allowed) if self.trouble is None else None

    def _wrong_size(self) -> str | None:
        configured = self._config.block_tokens
        if configured in (None, self._block_tokens):
            return None
        return (
            f"{self._where}.block_tokens: {configured}, but the engines store blocks of {self._block_tokens} tokens: "
            f"set it to {self._block_tokens}, or start the engines with --block-size {configured}"
        )

    def _unknown(self) -> str | None:
        if self._fitting:
            return None
        tried = ", ".join(sorted({chain.seed for chain in self._candidates} - {DEFAULT_SEED}))
        return (
            f"{self._where}.hash_seed: the engines' block hashes fit no known algorithm, neither without "
            f"PYTHONHASHSEED nor with {tried}: set it to the engines' PYTHONHASHSEED (xxhash and vLLM before 0.29 need "
            "one that is the same on all)"
        )

    def _wrong_config(self) -> str | None:
        nearest = min(map(self._complaints, self._fitting), key=len)
        return "; ".join(nearest) or None

    def _disagreement(self) -> str | None:
        if not self._doubts:
            return None
        return (
            f"{self._where}: the engines do not hash alike ({self._describe()}; before that {self._before}) and cannot "
            "share the pool: start all with the same --prefix-caching-hash-algo, PYTHONHASHSEED, --block-size and "
            "version"
        )

    def _complaints(self, chain: EngineChain) -> list[str]:
        """Return how the configuration differs from the engines, if `chain` is theirs."""
        config, complaints = self._config, []
        if config.hash_algo not in ("auto", chain.algo):
            complaints.append(
                f"{self._where}.hash_algo: {config.hash_algo}, but the engines hash by {chain.algo}: set it, or start "
                f"the engines with --prefix-caching-hash-algo {config.hash_algo}"
            )
        if config.hash_seed not in (None, chain.seed):
            leave_out = "leave it out" if chain.seed == DEFAULT_SEED else f"set it to '{chain.seed}'"
            complaints.append(
                f"{self._where}.hash_seed: '{config.hash_seed}', but the engines hash {_seeded(chain)}: {leave_out}, "
                f"or start the engines with PYTHONHASHSEED={config.hash_seed}"
            )
        salts, version = ("tagged", "0.31 or newer") if chain.tagged else ("bare", "before 0.31")
        if config.extra_keys not in ("auto", salts):
            complaints.append(
                f"{self._where}.extra_keys: {config.extra_keys}, but the engines hash salts {salts} (vLLM {version}): "
                f"set it to {salts}"
            )
        return complaints

    def _describe(self) -> str:
        """Describe how the engines hash, as far as known."""
        if not self._fitting:
            return "in an unknown way"
        chain, blocks = self._fitting[0], f"blocks of {self._block_tokens} tokens"
        salts = "" if len(self._fitting) > 1 else ", salts tagged" if chain.tagged else ", salts bare"
        return f"{blocks} by {chain.algo} {_seeded(chain)}{salts}"


def list_candidates(config: PoolModelConfig) -> Iterator[EngineChain]:
    """Yield all chains to try, the configured and likeliest ones first."""
    algos = sorted(get_args(HashAlgo), key=lambda algo: algo != config.hash_algo)
    return list_chains(algos, dict.fromkeys((config.hash_seed, *SEEDS)))


def _seeded(chain: EngineChain) -> str:
    return "without PYTHONHASHSEED" if chain.seed == DEFAULT_SEED else f"with PYTHONHASHSEED={chain.seed}"
