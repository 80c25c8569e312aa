"""Tool calls are found in the text of an answer, however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.text.tool_calls import CallDelta, Piece, ToolCallParser

NAMES = ("weather", "time.now", "add")
SUM = '{"name": "add", "arguments": {"a": 1, "b": "}\\"{"}}'
SUM_ARGUMENTS = '{"a": 1, "b": "}\\"{"}'
WEATHER = '{"name": "weather", "arguments": {"city": "Ulm"}}'
CITY = '{"city": "Ulm"}'
PARAMETERS = {
    "add": {
        "properties": {
            "a": {"type": "integer"}, "b": {"type": ["string", "null"]}, "list": {"type": "array"},
            "flag": {"type": "boolean"}, "kind": {"enum": ["x", "y"]}, "number": {"enum": [1, 2]},
        }
    },
    "weather": None,
}  # fmt: skip


def tagged(name: str, **arguments: str) -> str:
    """A call as Qwen3-Coder writes it."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{inside}</function>"


def joined(pieces: list[Piece]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and name and arguments of each call."""
    text, calls = "", []
    for piece in pieces:
        if isinstance(piece, str):
            assert piece, "an empty piece of text"
            text += piece
            continue
        if piece.name:
            assert piece.index == len(calls)
            assert len(piece.id) == 9 and piece.id.isalnum()
            calls.append((piece.name, ""))
        name, arguments = calls[piece.index]
        calls[piece.index] = (name, arguments + piece.arguments)
    return text, calls


def parse(*texts: str, parallel: bool = True) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolCallParser(NAMES, parallel=parallel, parameters=PARAMETERS)
    return joined([piece for text in texts for piece in parser.push(text)] + parser.finish())


CASES = [
    # Qwen and Hermes
    (f"<tool_call>\n{SUM}\n</tool_call>", "", [("add", SUM_ARGUMENTS)]),
    (f"I look.\n\n<tool_call>\n{WEATHER}\n</tool_call>", "I look.", [("weather", CITY)]),
    (
        f"<tool_call>\n{SUM}\n</tool_call>\n<tool_call>\n{WEATHER}\n</tool_call>",
        "",
        [("add", SUM_ARGUMENTS), ("weather", CITY)],
    ),
    (f"a <tool_call>{WEATHER}</tool_call> b", "a\nb", [("weather", CITY)]),
    (f"<tool_call>{WEATHER}</tool_call> b", "b", [("weather", CITY)]),
    (f"<tool_call>{WEATHER}", "", [("weather", CITY)]),
    (f"<tools>\n{WEATHER}\n</tools>", "", [("weather", CITY)]),
    ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [("add", '{"a": 1}')]),
    ('<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
    ('<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [("add", "{}")]),
    ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
    ('<tool_call>{"name": "add", "arguments": {"a": [1, {}]} }</tool_call>', "", [("add", '{"a": [1, {}]}')]),
    ('<tool_call>{"name": "add", "arguments": {"a": 1', "", [("add", '{"a": 1')]),
    (
        r'<tool_call>{"name": "add", "arguments": {"b": "C:\\"}}</tool_call>'
        r'<tool_call>{"name": "add", "arguments": {"b": "\\\"}"}}</tool_call>',
        "",
        [("add", r'{"b": "C:\\"}'), ("add", r'{"b": "\\\"}"}')],
    ),
    # of a key that comes twice the first counts: it was given out when the second came
    (
        '<tool_call>{"name": "add", "arguments": {"a": 1}, "arguments": {"a": 22}, "name": "x"}</tool_call>',
        "",
        [("add", '{"a": 1}')],
    ),
    # Qwen3-Coder
    (f"<tool_call>\n{tagged('weather', city='Ulm')}\n</tool_call>", "", [("weather", CITY)]),
    (
        f"I look.\n<tool_call>\n{tagged('weather', city='Ulm')}\n</tool_call>\n"
        f"<tool_call>\n{tagged('add', a='1')}\n</tool_call>",
        "I look.",
        [("weather", CITY), ("add", '{"a": 1}')],
    ),
    (f"{tagged('weather', city='Ulm')}\n</tool_call>", "", [("weather", CITY)]),
    (f"a {tagged('add', b='1')} b", "a\nb", [("add", '{"b": "1"}')]),
    (
        tagged("add", a="2", list='["x", {}]', flag="True", kind="x", number="2", other="3", b="two\n lines"),
        "",
        [
            (
                "add",
                '{"a": 2, "list": ["x", {}], "flag": true, "kind": "x", "number": 2, "other": "3",'
                ' "b": "two\\n lines"}',
            )
        ],
    ),
    (tagged("add", a="no number", b="<b>&</b>"), "", [("add", '{"a": "no number", "b": "<b>&</b>"}')]),
    (tagged("add"), "", [("add", "{}")]),
    ("<function=add><parameter=b>x</parameter></function>", "", [("add", '{"b": "x"}')]),
    ("<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx", "", [("add", '{"a": 1')]),
    (tagged("unknown", a="1"), tagged("unknown", a="1"), []),
    (
        f"Write <function=unknown> or <function=. {tagged('weather', city='Ulm')}",
        "Write <function=unknown> or <function=.",
        [("weather", CITY)],
    ),
    ("<function=add", "<function=add", []),
    ("<tool_call>\n<function", "<tool_call>\n<function", []),
    ("<tool_call>\n<function=no>x", "<tool_call>\n<function=no>x", []),
    # Llama 3
    ('{"name": "add", "parameters": {"a": 1}}', "", [("add", '{"a": 1}')]),
    ('<|python_tag|>{"name": "add", "parameters": {}}', "", [("add", "{}")]),
    (
        '{"type": "function", "name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {}}',
        "",
        [("add", '{"a": 1}'), ("add", "{}")],
    ),
    # Mistral
    (f"[TOOL_CALLS] [{SUM}, {WEATHER}]", "", [("add", SUM_ARGUMENTS), ("weather", CITY)]),
    (f"[TOOL_CALLS]weather[ARGS]{CITY}", "", [("weather", CITY)]),
    (f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{CITY}", "", [("weather", CITY)]),
    (
        f"Hm. [TOOL_CALLS]weather{CITY}[TOOL_CALLS]time.now{{}}",
        "Hm.",
        [("weather", CITY), ("time.now", "{}")],
    ),
    # bare JSON, as a schema forces it, and in code blocks
    (f"\n {WEATHER}\n", "", [("weather", CITY)]),
    (f"[{WEATHER},\n{SUM}]", "", [("weather", CITY), ("add", SUM_ARGUMENTS)]),
    (f"```json\n{WEATHER}\n```", "", [("weather", CITY)]),
    (f"```\n{WEATHER}\n```\nDone.", "Done.", [("weather", CITY)]),
    # no calls
    ("", "", []),
    ("Hello.\n", "Hello.\n", []),
    ("  two <b> <tool", "  two <b> <tool", []),
    ('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', []),
    ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',) * 2 + ([],),
    ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>',) * 2 + ([],),
    ('{"name": "add"}', '{"name": "add"}', []),
    ('{"name": "add", "age": 3}\n', '{"name": "add", "age": 3}\n', []),
    ('{"city": {"name": "add"}}', '{"city": {"name": "add"}}', []),
    ("[1, 2]", "[1, 2]", []),
    ("[TOOL", "[TOOL", []),
    ("[TOOL_CALLS] none", "[TOOL_CALLS] none", []),
    ("```python\nprint()\n```", "```python\nprint()\n```", []),
    ("<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", []),
    ('text {"name": "add", "arguments": {}}', 'text {"name": "add", "arguments": {}}', []),
    ('{"name": "add", ', '{"name": "add", ', []),
    ("{broken] }}", "{broken] }}", []),
    ("a\n\n", "a\n\n", []),
]


@pytest.mark.parametrize(("text", "shown", "calls"), CASES)
def test_however_it_is_cut(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    assert parse(text) == (shown, calls)
    assert parse(*text) == (shown, calls)
    for at in range(len(text)):
        assert parse(text[:at], text[at:]) == (shown, calls)


@pytest.mark.parametrize("text", [case[0] for case in CASES if len(case[2]) > 1])
def test_only_the_first_call_counts_when_asked(text: str) -> None:
    _, calls = parse(text)
    assert parse(*text, parallel=False)[1] == calls[:1]


def test_arguments_stream_while_they_are_written() -> None:
    parser = ToolCallParser(NAMES)
    assert parser.push('Yes.<tool_call>{"name": "wea') == ["Yes."]
    assert parser.push('ther", "arguments": ') == []
    start, first = parser.push('{"city": ')
    assert isinstance(start, CallDelta) and (start.name, start.arguments) == ("weather", "")
    assert first == CallDelta(0, arguments='{"city": ')
    assert parser.push('"Ul') == [CallDelta(0, arguments='"Ul')]
    assert parser.push('m"}}</tool_call>') == [CallDelta(0, arguments='m"}')]
    assert parser.finish() == []


def test_text_streams_while_it_is_written() -> None:
    parser = ToolCallParser(NAMES)
    assert [parser.push(piece) for piece in ("One", " two", " <", "b>", " ")] == [
        ["One"],
        [" two"],
        [],
        [" <b>"],
        [],
    ]
    assert parser.finish() == [" "]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_arguments_any_cut(data) -> None:
    calls: list[tuple[str, dict[str, Any]]] = data.draw(
        st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(), JSON, max_size=3)), max_size=3)
    )
    ascii_only = data.draw(st.booleans())
    objects = [
        json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only)
        for name, arguments in calls
    ]
    text = "Well. " + "\n".join(f"<tool_call>\n{item}\n</tool_call>" for item in objects)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    shown, found = parse(*(text[start:end] for start, end in pairwise(cuts)))
    assert shown.strip() == "Well."
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_markup_any_cut(data) -> None:
    pieces = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        '{"name": "add"',
        ', "arguments": {',
        "}",
        "[",
        "]",
    ]
    pieces += ['"', "\\", "a", " ", "```json", "add[ARGS]", "<", ",", ":"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=12)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    assert parse(*(text[start:end] for start, end in pairwise(cuts))) == parse(text)
