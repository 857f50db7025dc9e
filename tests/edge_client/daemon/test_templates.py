"""Chat templates render as transformers renders them, and cannot do more than that."""

from __future__ import annotations

import pytest

from common.errors import PeerError, UserError

pytestmark = pytest.mark.api

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, str]] | None = None, **settings: object) -> str:
    from edge_client.daemon.templates import ChatTemplate

    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages or HELLO, **settings
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hello</s>"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hello"}'),
        ("{{ {'a': '<b>'} | tojson }}", '{"a": "<b>"}'),
        (
            "{%- for m in messages %}{% if loop.index > 5 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        (
            "{% set s = namespace(n=0) %}{% for m in messages %}{% set s.n = s.n + 1 %}{% endfor %}{{ s.n }}",
            "1",
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 'a' * 3 }}{{ 7 % 4 }}{{ 2 ** 5 }}", "aaa332"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
    ],
)
def test_what_templates_do(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_template_has_switches_of_its_own() -> None:
    source = "{% if enable_thinking %}think{% else %}no{% endif %}{{ add_generation_prompt }}"
    assert render(source) == "noTrue"
    assert render(source, enable_thinking=True, add_generation_prompt=False) == "thinkFalse"


def test_a_template_may_refuse_messages_and_its_words_reach_the_user() -> None:
    with pytest.raises(UserError, match="refuses these messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append('x') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 'a' * 10**12 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'a' | center(10**9) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ unknown.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_a_template_must_not_do_is_an_error_of_the_verifiers(source: str) -> None:
    with pytest.raises(PeerError, match="the target's chat template"):
        render(source)


def test_a_template_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.daemon.templates.PATIENCE", 0.05)
    silent = "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}"
    with pytest.raises(PeerError, match="did not come to an end"):
        render(silent)


def test_a_template_that_writes_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.daemon.templates.MAX_OUTPUT", 1000)
    with pytest.raises(PeerError, match="writes more than 1000 characters"):
        render("{% for i in range(99999) %}some text{% endfor %}")


def test_a_template_that_is_none_is_the_verifiers_fault() -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        render("{% if %}")
