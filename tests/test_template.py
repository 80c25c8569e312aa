"""Chat templates: the file's own, sandboxed, with their own sentences."""

from __future__ import annotations

import pytest

from localspec.errors import TemplateError
from localspec.text.template import ChatTemplate
from tests.tinygguf import CHATML

USER = [{"role": "user", "content": "Hi"}]


def render(source: str | None, messages: list[dict[str, str]] = USER, **options: bool) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>", name="tiny.gguf").render(messages, **options)


def refused(source: str | None, messages: list[dict[str, str]] = USER) -> str:
    with pytest.raises(TemplateError) as caught:
        render(source, messages)
    assert "tiny.gguf" in caught.value.message
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_chatml() -> None:
    opened = render(CHATML)
    assert opened == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_both_kinds_of_prompt_from_one_template() -> None:
    template = ChatTemplate(CHATML, bos="", eos="", name="tiny.gguf")
    opened = template.render(USER)
    assert template.render(USER, add_generation_prompt=False) != opened
    assert template.render(USER) == opened


def test_bos_and_eos_texts() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == "<s>Hi</s>"


def test_dates_loop_controls_and_generation_tags() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y')[:2] }}"
    )
    assert render(source, [{"role": "system", "content": "x"}, *USER]) == "Hi20"


def test_no_template_invents_nothing() -> None:
    sentence = refused(None)
    assert "has no chat template" in sentence
    assert "plain prompt" in sentence


def test_rejected_roles_speak_for_themselves() -> None:
    source = "{{ raise_exception('Conversation roles must alternate user/assistant') }}"
    assert "Conversation roles must alternate user/assistant" in refused(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content }}",
        "{{ messages | no_such_filter }}",
        "{{ messages[0].content.nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_broken_templates(source: str) -> None:
    assert "does not work" in refused(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ strftime_now.__globals__['os'].system('true') }}",
        "{{ cycler.__init__.__globals__['os'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ range(10**9) | list }}",
        "{% include '/etc/passwd' %}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
    ],
)
def test_malicious_templates_stay_in_the_sandbox(source: str) -> None:
    messages = [dict(USER[0])]
    assert "does not work" in refused(source, messages)
    assert messages == USER
