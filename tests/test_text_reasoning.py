"""Thoughts and answer are parted, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.text.reasoning import ReasoningSplitter, ReasoningTags, reasoning_tags
from localspec.text.template import ChatTemplate
from tests.tinygguf import CHATML

TAGS = ReasoningTags("<think>", "</think>")
OPENED = ReasoningTags("<think>", "</think>", opened=True)
THINKING = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
OPENS = THINKING.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")
OPTIONAL = THINKING.replace(
    "assistant\n' }}{% endif",
    "assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}{% endif",
)


def split(tags: ReasoningTags | None, *pieces: str) -> tuple[str, str]:
    splitter = ReasoningSplitter(tags)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("tags", "text", "thoughts", "answer"),
    [
        (TAGS, "<think>\nTwo and two.\n</think>\n\nFour.", "Two and two.", "Four."),
        (TAGS, "\n<think>a\n b </think>c", "a\n b", "c"),
        (TAGS, "<think>\n\n</think>\n\nFour.", "", "Four."),
        (TAGS, "Four. <think>later</think>", "", "Four. <think>later</think>"),
        (TAGS, "  Four.\n", "", "  Four.\n"),
        (TAGS, "<thi", "", "<thi"),
        (TAGS, "<think>never ends </thin", "never ends </thin", ""),
        (TAGS, "<think>a</think>b</think>c", "a", "b</think>c"),
        (TAGS, "", "", ""),
        (OPENED, "Two and two.\n</think>\n\nFour.", "Two and two.", "Four."),
        (OPENED, "<think>\nTwo</think>Four", "Two", "Four"),
        (OPENED, "</think>Four", "", "Four"),
        (OPENED, " cut off ", "cut off", ""),
        (None, "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_however_it_is_cut(tags: ReasoningTags | None, text: str, thoughts: str, answer: str) -> None:
    assert split(tags, text) == (thoughts, answer)
    assert split(tags, *text) == (thoughts, answer)
    for at in range(len(text)):
        assert split(tags, text[:at], text[at:]) == (thoughts, answer)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_text_any_cut(data) -> None:
    """Cuts change nothing, and nothing but tags and blanks is lost."""
    pieces = st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "a", " ", "\n", "<", "é"])
    text = "".join(data.draw(st.lists(pieces, max_size=12)))
    tags = data.draw(st.sampled_from([TAGS, OPENED]))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    whole = split(tags, text)
    assert split(tags, *(text[start:end] for start, end in pairwise(cuts))) == whole
    kept = "".join("".join(whole).split())
    plain = "".join(text.split())
    assert kept in (plain, plain.replace("</think>", "", 1), plain.replace("<think>", "", 1)) or kept == (
        plain.replace("<think>", "", 1).replace("</think>", "", 1)
    )


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, bos="", eos="", name="tiny.gguf")


def test_tags_come_from_the_template() -> None:
    assert reasoning_tags(template(CHATML)) is None
    assert reasoning_tags(template(None)) is None
    assert reasoning_tags(template(THINKING)) == TAGS
    assert reasoning_tags(template(OPENS)) == OPENED


def test_thinking_that_a_variable_turns_off() -> None:
    assert reasoning_tags(template(OPTIONAL), {"enable_thinking": False}) == TAGS
    assert reasoning_tags(template(OPTIONAL)) == TAGS


def test_a_template_that_rejects_the_probe() -> None:
    picky = "{% if messages|length < 2 %}{{ raise_exception('two') }}{% endif %}" + OPENS
    assert reasoning_tags(template(picky)) == TAGS
