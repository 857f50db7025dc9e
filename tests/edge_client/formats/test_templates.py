"""Chat templates render as transformers renders them, and cannot do more than that."""

import os
import signal

import pytest

from common.errors import CapacityError, Code, PeerError, UserError

pytestmark = pytest.mark.api

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, str]] | None = None, **settings: object) -> str:
    from edge_client.formats.chat_template import ChatTemplate

    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages or HELLO, settings)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hello"}'),
        ("{{ {'a': '<b>'} | tojson }}", '{"a": "<b>"}'),
        (
            "{%- for m in messages %}{% if loop.index > 5 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{% for m in messages %}{%- generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "hello"),
    ],
)
def test_what_templates_do(source: str, expected: str) -> None:
    assert render(source) == expected


def test_a_template_has_switches_of_its_own() -> None:
    source = "{% if enable_thinking %}think{% else %}no{% endif %}{{ add_generation_prompt }}{{ self_ }}"
    assert render(source) == "noTrue"
    assert render(source, enable_thinking=True, add_generation_prompt=False, self_=1) == "thinkFalse1"
    assert render("{{ bos_token }}", bos_token="mine") == "<s>", "the words are the target's"
    with pytest.raises(UserError, match="refuses these messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 'a' * 10**12 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ unknown.attribute }}",
        "{% if %}",
        "{{ " + "[" * 5000,
        "{% for a in b %}" * 30,
    ],
)
def test_what_a_template_must_not_do_is_an_error_of_the_verifiers(source: str) -> None:
    with pytest.raises(PeerError, match="the target's chat template"):
        render(source)


GROWS = "{%% set s = namespace(x=%s) %%}{%% for i in range(99) %%}{%% set s.x = s.x %s %%}{%% endfor %%}"


@pytest.mark.parametrize(
    "source",
    [
        GROWS % ("[1, 2]", "+ s.x"),
        "{{ 'a'.ljust(4000000000) }}",
        "{{ (['a' * 10000000] * 1000) | string | length }}",
    ],
)
def test_a_template_cannot_fill_the_memory(source: str) -> None:
    """Of this process it takes nothing, and the other one is bounded."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PeerError, match=r"memory|the process that renders it|processor time"):
        render(source)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"


def test_where_the_process_cannot_bound_itself_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.formats.chat_template.MEMORY", 2**27)
    monkeypatch.setattr("edge_client.formats.chat_template.PROCESSOR_TIME", 30.0)
    big = "{% set s = namespace(x=['a' * 400000000]) %}{% for i in range(99999) %}{% for j in range(99999) %}"
    with pytest.raises(PeerError, match="needs more than 128 MiB of memory"):
        render(big + "{% endfor %}{% endfor %}")


def test_a_number_without_end_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python multiplies such numbers in one go, for minutes, and no other thread of a process runs meanwhile:
    here it would be this test that could not stop it."""
    monkeypatch.setattr("edge_client.formats.chat_template.PROCESSOR_TIME", 0.5)
    source = GROWS % ("(3).from_bytes(('a' * 9999999).encode(), 'big')", "* s.x")
    with pytest.raises(PeerError, match="processor time"):
        render(source)


def test_the_process_is_used_again_and_another_takes_its_place() -> None:
    from edge_client.formats.chat_template import ChatTemplate

    template = ChatTemplate(CHATML, {})
    first = template.render(HELLO)
    process = template._ready()._process
    assert template.render(HELLO) == first
    assert template._ready()._process is process
    process.kill()
    process.wait()
    assert template.render(HELLO) == first
    template._ready()._process.kill()


SILENT = "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}"


def test_a_template_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_client.formats.chat_template.MAX_OUTPUT", 1000)
    with pytest.raises(PeerError, match="writes more than 1000 characters"):
        render("{% for i in range(99999) %}some text{% endfor %}")
    monkeypatch.setattr("edge_client.formats.chat_template.PROCESSOR_TIME", 0.2)
    with pytest.raises(PeerError, match="processor time"):
        render(SILENT)


def test_a_machine_too_busy_to_render_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process gets no processor here, as on a machine with too much to do."""
    from edge_client.formats.chat_template import ChatTemplate

    template = ChatTemplate(CHATML, {})
    first = template.render(HELLO)
    os.kill(template._ready()._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr("edge_client.formats.chat_template.PATIENCE", 0.05)
        with pytest.raises(CapacityError) as caught:
            template.render(HELLO)
    assert caught.value.code is Code.UNAVAILABLE
    assert template.render(HELLO) == first, "the next one is served"
