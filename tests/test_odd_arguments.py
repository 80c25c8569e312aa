"""Arguments of every wrong kind: an `InvalidRequest` at the call that names the argument, and an engine that lives."""

from __future__ import annotations

import numpy as np
import pytest

from localspec import LLM, AnswerOptions, memory_needed
from localspec.engine.options import EngineOptions
from localspec.errors import InvalidRequest, LocalspecError

from .tinygguf import CHATML, write_llama

CYCLE: dict[str, object] = {}
CYCLE["again"] = CYCLE
LOOP: list[object] = []
LOOP.append(LOOP)
DEEP: list[object] = []
for _ in range(5000):
    DEEP = [DEEP]
ODD = (
    None, True, -1, 0, 2**70, 1.5, float("nan"), float("inf"), "", "x", "\ud800", "\0", b"x", [], [1], ["a"], [["a"]],
    {}, {1: 2}, {"a": 1}, {(1,): "a"}, object(), np.int64(3), np.array([1, 2]), np.array(3), CYCLE, LOOP, len,
)  # fmt: skip
TOOLS = CHATML.replace("{% for", "{{ tools }}{{ more }}{% for", 1)
SHORT = {"temperature": 0, "max_tokens": 3}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("odd") / "model.gguf", template=TOOLS)


@pytest.fixture(scope="module")
def llm(path):
    with LLM.from_files(path, n_ctx=256, draft_tokens=3) as llm:
        expected = llm.generate("abc", **SHORT).ids
        yield llm
        assert llm.generate("abc", **SHORT).ids == expected


def refused(use, value) -> bool:
    """Whether it is; any other error than localspec's own fails the test."""
    try:
        use(value)
    except LocalspecError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
        return True
    return False


@pytest.mark.parametrize("name", sorted(AnswerOptions.__annotations__))
def test_options_of_an_answer(llm, name):
    outcomes = [refused(lambda value: llm.stream("abc", **{**SHORT, name: value}).close(), v) for v in ODD]
    assert any(outcomes)


@pytest.mark.parametrize("name", ["tools", "template_variables"])
def test_what_a_template_is_told(llm, name):
    for value in (*ODD, [CYCLE], DEEP, [{"a": DEEP}], {"more": DEEP}):
        refused(lambda value: llm.chat(HELLO, **{name: value}, **SHORT).close(), value)
    for value in (5, "x", [5], {"a": 1}) if name == "tools" else (5, "x", [5], {5: 1}):
        with pytest.raises(InvalidRequest, match=r"[Tt]ool|template_variables"):
            llm.chat(HELLO, **{name: value})
    assert list(llm.chat(HELLO, tools=[{"type": "function"}], template_variables={"more": 5}, **SHORT))


@pytest.mark.parametrize(
    "name", ["generate", "stream", "chat", "tokenize", "detokenize", "token_bytes", "render", "conversation"]
)
def test_what_is_asked(llm, name):
    for value in ODD:
        if name != "generate" or not isinstance(value, str):
            refused(getattr(llm, name), value)


def test_ids_may_come_from_any_iterable(llm):
    ids = llm.tokenize("abc")
    for given in (tuple(ids), iter(ids), np.array(ids)):
        assert llm.detokenize(given) == "abc"
    assert llm.detokenize([]) == "" and llm.token_bytes(iter([])) == b""


def test_too_many_stop_strings_are_refused_at_the_call(llm):
    with pytest.raises(InvalidRequest, match="65 stop strings"):
        llm.stream("abc", stop=["x"] * 65)


@pytest.mark.parametrize(
    "name", [*EngineOptions.__dataclass_fields__, "draft_tokens", "unload_after", "notify"]
)
def test_options_of_a_load(path, name):
    """`strict="no"` was strict, and `notify=None` failed when there was something to tell."""
    is_switch = isinstance(EngineOptions.__dict__.get(name), bool)

    def load(value):
        LLM.from_files(path, **{"n_ctx": 64, "draft_tokens": 3, name: value}).close()

    for value in ODD:
        if not refused(load, value):
            assert isinstance(value, bool) or not is_switch


@pytest.mark.parametrize("name", ["target", "draft", "n_ctx", "home", "cache_type_k", "cache_type_v"])
def test_memory_needed(path, name):
    def ask(value):
        memory_needed(**{"target": path, "n_ctx": 64, name: value})

    outcomes = [refused(ask, value) for value in ODD]
    assert any(outcomes)


def test_a_call_made_with_what_another_takes_says_which(llm):
    for use, what in (
        (lambda: llm.chat("hello"), r"messages is a text.*`generate` and `stream` take a text"),
        (lambda: llm.chat(HELLO[0]), "messages is a dict.*Give a list of messages"),
        (lambda: llm.stream(HELLO), r"The prompt is a list of messages.*`chat`"),
        (lambda: llm.stream(HELLO[0]), "Give a text, a list of token ids or messages"),
        (lambda: llm.conversation().ask(""), "The question is empty"),
        (lambda: llm.conversation().ask(" \n"), "The question is empty"),
    ):
        with pytest.raises(InvalidRequest, match=what):
            use()


def test_text_parts_are_read_as_the_text_they_say(llm):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert llm.render([{"role": "user", "content": parts}]) == llm.render(HELLO)
    assert llm.tokenize([{"role": "user", "content": parts}]) == llm.render(HELLO)
