"""What vLLM's answers about adapters mean."""

from __future__ import annotations

import json

from router.backends.vllm.lora import find_load_error, find_unload_error, load_body, unload_body


def test_bodies_have_vllms_names() -> None:
    assert json.loads(load_body("poet", "/a/poet")) == {"lora_name": "poet", "lora_path": "/a/poet"}
    assert json.loads(unload_body("poet")) == {"lora_name": "poet"}


def test_what_was_wanted_already_is_no_error() -> None:
    assert find_load_error(200, b"Success: LoRA adapter 'poet' added successfully.") is None
    assert find_load_error(400, b'{"error":{"message":"The lora adapter \'poet\' has already been loaded."}}') is None
    assert find_unload_error(200, b"Success") is None
    assert find_unload_error(404, b'{"error":{"message":"The lora adapter \'poet\' cannot be found."}}') is None


def test_everything_else_is_one() -> None:
    assert find_load_error(404, b'{"detail":"Not Found"}') == '404 {"detail":"Not Found"}', "the setting is off"
    assert find_unload_error(404, b'{"detail":"Not Found"}') == '404 {"detail":"Not Found"}'
    assert find_load_error(400, b"Both 'lora_name' and 'lora_path' must be provided.") is not None
    assert find_load_error(500, b"\xff\n") == "500 \ufffd\\n"
