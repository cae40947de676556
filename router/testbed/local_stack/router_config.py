"""A router's configuration with a running stack filled in: its engines, its pool, and the tokenizer of its model."""

from __future__ import annotations

from router.config.schema import Config, TokenizerSource
from router.config.sections.kv_store import PoolConfig
from router.testbed.local_stack.supervisor import RunningStack


def build_router_config(settings: Config, stack: RunningStack) -> Config:
    """What the settings say of their own engines stays; of the pool, all but where its master is."""
    fleet = settings.fleet.model_copy(update={"instances": [*settings.fleet.instances, *stack.instances()]})
    tokenizers = {stack.config.served_name: TokenizerSource(path=str(stack.model)), **settings.tokenizers}
    return settings.model_copy(update={"fleet": fleet, "tokenizers": tokenizers, "pool": _pool(settings.pool, stack)})


def _pool(asked: PoolConfig | None, stack: RunningStack) -> PoolConfig | None:
    if stack.master_url is None:
        return None
    masters = [stack.master_url]
    return PoolConfig(masters=masters) if asked is None else asked.model_copy(update={"masters": masters})
