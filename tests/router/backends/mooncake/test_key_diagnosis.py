from __future__ import annotations

import pytest

from router.backends.mooncake.key_diagnosis import diagnose
from router.backends.mooncake.keys import KeyForm
from router.config.sections.kv_store import PoolModelConfig

DIGEST = b"\xab" * 32


def keys(digest: bytes = DIGEST, path: str = "/models/mid", **config: object) -> tuple[str, ...]:
    return form(path, **config).keys(digest)


def form(path: str = "/models/mid", **config: object) -> KeyForm:
    made = KeyForm.from_config(PoolModelConfig.model_validate(config), path)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("engines", "ours", "changes"),
    [
        ({"cache_prefix": "blue"}, {}, "set cache_prefix to 'blue' (not '')"),
        ({}, {"cache_prefix": "blue"}, "set cache_prefix to '' (not 'blue')"),
        ({"path": "a/snapshots/1f2e"}, {}, "set name to '1f2e' (not 'mid')"),
        ({"namespace": "@store_pp:1@store_format:tp_shared_mqa"}, {}, "set namespace to '@store_pp:1@store_format:tp"),
        ({"tensor_parallel": 2}, {}, "set tensor_parallel to 2 (not 1)"),
        (
            {},
            {"tensor_parallel": 2},
            "set tensor_parallel to 1 (not 2), or kv_heads to 1 if the ranks beyond hold copies",
        ),
        ({"tensor_parallel": 8, "kv_heads": 4}, {"tensor_parallel": 8, "kv_heads": 2}, "set kv_heads to 4 (not 2)"),
        ({"pipeline_parallel": 2}, {}, "set pipeline_parallel to 2 (not 1)"),
        ({"prefill_context_parallel": 2}, {}, "set prefill_context_parallel to 2 (not 1)"),
        (
            {"tensor_parallel": 2, "decode_context_parallel": 2},
            {"tensor_parallel": 2},
            "set decode_context_parallel to 2 (not 1)",
        ),
        ({"groups": 2}, {}, "set groups to 2 (not 1)"),
        (
            {"cache_prefix": "blue", "path": "other", "tensor_parallel": 2},
            {},
            "set cache_prefix to 'blue' (not ''); set name to 'other' (not 'mid'); set tensor_parallel to 2 (not 1)",
        ),
    ],
)
def test_every_difference_is_named_with_what_to_set(
    engines: dict[str, object], ours: dict[str, object], changes: str
) -> None:
    there = keys(**engines)  # type: ignore[arg-type]
    line = diagnose("m", form(**ours), (*there, *keys(b"\xcd" * 32)), DIGEST)  # type: ignore[arg-type]
    assert line is not None
    assert line.startswith(f"pool.models.m: the engines' blocks have other keys, as {there[0]}: {changes}")


def test_nothing_to_say_of_a_block_that_is_not_there_or_named_alike() -> None:
    assert diagnose("m", form(), [*keys(b"\xcd" * 32), "anything", f"x@{DIGEST.hex()}"], DIGEST) is None
    assert diagnose("m", form(tensor_parallel=2), keys(tensor_parallel=2), DIGEST) is None


def test_other_fleets_of_the_model_do_not_confuse() -> None:
    others = keys(cache_prefix="green") + keys(path="large", tensor_parallel=4)
    assert diagnose("m", form(), (*others, *keys()), DIGEST) is None
    line = diagnose("m", form(), (*others, *keys(tensor_parallel=2)), DIGEST)
    assert line is not None
    assert line.endswith(": set tensor_parallel to 2 (not 1)")
