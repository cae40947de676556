"""Templates print what vLLM 0.32 prints: the goldens were recorded from its own functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat
from router.prompt.tokenization.chat_template import ChatTemplate, UnrenderableChat

RECORDED = json.loads((Path(__file__).parent / "data" / "vllm-0.32-renderings.json").read_text())
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
USER = {"role": "user", "content": "hi"}
PRINT = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
PARTS = "{% for m in messages %}{{ m.role }}:{% for c in m.content %}[{{ c.text }}]{% endfor %};{% endfor %}"


def chat(messages: list[Any], path: str = "/v1/chat/completions", **fields: Any) -> Chat:
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    source = read_prompt(path, None, body, ReadOptions()).source
    assert isinstance(source, Chat)
    return source


def say(template: str, messages: list[Any], path: str = "/v1/chat/completions", **fields: Any) -> str:
    return ChatTemplate(template, lambda: 86400.0).render(chat(messages, path, **fields), {})


def rendered(template: ChatTemplate, path: str, body: dict[str, Any]) -> list[str] | None:
    try:
        source = read_prompt(path, None, json.dumps(body).encode(), ReadOptions()).source
        return [template.content_format, template.render(source, SPECIAL)] if isinstance(source, Chat) else None
    except (BadRequest, UnrenderableChat):
        return None


@pytest.mark.parametrize("name", RECORDED["templates"])
def test_as_the_engine_renders(name: str) -> None:
    """65 requests of all endpoints: roles, tools, tool calls, parts, thinking, continued messages; null: refused."""
    template = ChatTemplate(RECORDED["templates"][name], lambda: 0.0)
    chats = [i for i, (path, _) in enumerate(RECORDED["requests"]) if path != "/v1/completions"]
    assert len(chats) > 60
    for i in chats:
        path, body = RECORDED["requests"][i]
        assert rendered(template, path, body) == RECORDED["rendered"][name][i], (path, body)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.sampled_from([None, 0, 1, 4]), st.booleans(), st.booleans())
def test_json_is_printed_as_python_prints_it(value: Any, indent: int | None, ascii: bool, sort: bool) -> None:
    environment = ChatTemplate("{{ value | tojson(ensure_ascii=ascii, indent=indent, sort_keys=sort) }}", lambda: 0.0)
    kwargs = {"value": value, "indent": indent, "ascii": ascii, "sort": sort}
    said = environment.render(chat([USER])._replace(template_kwargs=kwargs), {})
    assert said == json.dumps(value, ensure_ascii=ascii, indent=indent, sort_keys=sort)


def test_bit_by_bit_is_the_same() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", lambda: 0.0)
    chunks = template.render_chunks(chat([USER, USER]), {})
    assert len(chunks) > 2
    assert "".join(chunks) == template.render(chat([USER, USER]), {}) == "user: hi\nuser: hi\n"


@pytest.mark.parametrize("value", [{"a": 1, "items": 2, "__class__": 3}, {}, [1], "text", 5, None], ids=repr)
@pytest.mark.parametrize("name", ["a", "items", "get", "update", "pop", "__class__", "__len__", "count", "absent"])
def test_members_are_found_as_in_jinjas_own_sandbox(value: Any, name: str) -> None:
    """A method comes before a key of that name, and a method that changes the value is refused."""
    own = jinja2.sandbox.ImmutableSandboxedEnvironment()
    for use in ("", " is defined", " or 1", ".a", "()", "('a')"):
        source = f"{{{{ x.{name}{use} }}}}"
        try:
            expected: str | None = own.from_string(source).render(x=value)
        except (jinja2.TemplateError, AttributeError, TypeError, LookupError):
            expected = None
        try:
            said: str | None = ChatTemplate(source, lambda: 0.0).render(chat([USER]), {"x": value})
        except UnrenderableChat:
            said = None
        assert said == expected, source


def test_helpers_of_hugging_face() -> None:
    assert say("{{ {'b': '<é>', 'a': 1.0} | tojson }}", [USER]) == '{"b": "<é>", "a": 1.0}'
    assert say("{{ strftime_now('%Y') }}", [USER]) == "1970"
    assert say("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", [USER]) == "13"
    assert say("a{% generation %}b{% endgeneration %}c", [USER]) == "abc"
    assert say("  {% if true %}\nx\n  {% endif %}\ny", [USER]) == "x\ny"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ x.y.z }}",
        "{{ unknown | tojson }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_what_a_template_refuses_or_breaks_on(template: str) -> None:
    with pytest.raises(UnrenderableChat):
        say(template, [USER])


def test_defaults_give_way_to_the_request() -> None:
    template = ChatTemplate("{{ a }}{{ b }}{{ bos_token }}", lambda: 0.0)
    asked = chat([USER], chat_template_kwargs={"b": 2, "messages": "no"})
    assert template.render(asked, {"a": 1, "b": 1, "bos_token": "<s>"}) == "12<s>"


IN_PARTS = "{% for part in m.content %}{{ part.text }}{% endfor %}"
MEDIA = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("content", "known"),
    [
        ("{{ m.content }}", "system be brief user first one user"),
        (IN_PARTS, "system be brief user first one user look at this"),
    ],
)
def test_before_media_only_what_is_sure(content: str, known: str) -> None:
    """A string may get its media in front; a list has them where they stand. The last word may go on: it is left."""
    parts = [{"type": "text", "text": "look at this "}, {"type": "text", "text": "now"}, MEDIA, "end"]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "first one"}]
    asked = chat([*messages, {"role": "user", "content": parts}, USER])
    text = ChatTemplate("{% for m in messages %}{{ m.role }} " + content + " {% endfor %}", lambda: 0.0).render(
        asked, {}
    )
    assert asked.has_media
    assert text == known


ALL_IMAGES_FIRST = """{% for m in messages %}{{ m.role }} {% for p in m.content %}{% if p.type == 'image' %}<image>
{% endif %}{% endfor %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }} {% endif %}{% endfor %}
{%- endfor %}"""
NO_SYSTEM_BESIDE_IMAGES = """{% set ns = namespace(images=false) %}{% for m in messages %}{% for p in m.content %}
{%- if p.type == 'image' %}{% set ns.images = true %}{% endif %}{% endfor %}{% endfor %}start
{% for m in messages %}{% if m.role != 'system' or not ns.images %}{{ m.role }} {% for p in m.content %}
{%- if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}
{% endif %}{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "known"),
    [
        (ALL_IMAGES_FIRST, "system be brief user"),  # as LLaVA's
        (NO_SYSTEM_BESIDE_IMAGES, "start"),  # as Llama 3.2's
    ],
)
def test_before_media_as_the_template_prints_a_chat_with_media(template: str, known: str) -> None:
    parts = [{"type": "text", "text": "see the picture"}, MEDIA]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    assert say(template, messages) == known


def test_media_that_the_template_does_not_print() -> None:
    with pytest.raises(UnrenderableChat):
        say("{{ messages[0].role }}", [{"role": "user", "content": [MEDIA]}])


def test_nothing_is_known_before_media_at_the_very_beginning() -> None:
    assert say("{{ messages[0].content }}", [{"role": "user", "content": [MEDIA]}]) == ""


def test_later_system_messages_of_v1_messages() -> None:
    """Kept where a template takes them, merged into the first where it does not."""
    messages = [USER, {"role": "system", "content": "b"}, USER]
    assert say(PRINT, messages, "/v1/messages", system="a") == "system:a;user:hi;system:b;user:hi;"
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('x') }}{% endif %}"
    )
    assert say(strict + "{{ m.role }}:{{ m.content }};{% endfor %}", messages, "/v1/messages", system="a") == (
        "system:ab;user:hi;user:hi;"
    )


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ reasoning_effort }}-{{ enable_thinking }}", "none-False"),
        ("{{ enable_thinking }}", "False"),
        ("{% if reasoning_effort == 'none' %}{{ raise_exception('?') }}{% endif %}{{ reasoning_effort }}", "low"),
        ("{{ {'low': 'L'}[reasoning_effort] or 'max' }}", "L"),
    ],
)
def test_disabled_thinking(template: str, said: str) -> None:
    """Effort "none", unless the template refuses it or prints with it what it prints with another."""
    assert say(template, [USER], "/v1/messages", thinking={"type": "disabled"}) == said
