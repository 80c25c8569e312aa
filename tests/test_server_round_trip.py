"""What a client sends back of an earlier answer is never refused, whatever the model wrote."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localspec import LLM

from .scripted_llm import LLAMA, QWEN, ScriptedLLM
from .serverkit import ready, running
from .tinygguf import write_llama

QUESTION = {"role": "user", "content": "Weather in Ulm?"}
PARAMETERS = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
FUNCTION = {"name": "weather", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
CODER = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls %}
<tool_call><function={{ call.function.name }}>
{%- for name, value in call.function.arguments | items %}<parameter={{ name }}>{{ value }}</parameter>{% endfor -%}
</function></tool_call>
{%- endfor %}<|im_end|>
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"""
"""Goes through the members of arguments, as Qwen3-Coder's does."""
BROKEN = ['{"location', "[]", "null", '"Rome"', "", "Rome", '{"location": "\\ud83d\\u0000"}', "[" * 3000]


class Serving:
    """A server whose model says what it is told to."""

    def __init__(self, client: openai.OpenAI, llm: ScriptedLLM) -> None:
        self.client, self.llm = client, llm

    def says(self, *answers: str) -> None:
        self.llm.says(*answers)

    def chat(self, messages: list[Any], **options: Any) -> Any:
        given = {"model": "tiny", "messages": messages, "tools": [TOOL]} | options
        return self.client.chat.completions.create(**given).choices[0]

    def respond(self, given: Any, **options: Any) -> Any:
        tools = [{"type": "function", **FUNCTION}]
        return self.client.responses.create(**{"model": "tiny", "input": given, "tools": tools} | options)


@pytest.fixture(scope="module", params=[QWEN, LLAMA, CODER], ids=["qwen", "llama", "coder"])
def served(request):
    llm = ScriptedLLM(request.param)
    with running(lambda: llm) as server, ready(server).client() as client:
        yield Serving(client, llm)


def call(arguments: Any) -> dict[str, Any]:
    called = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [called]}


@pytest.mark.parametrize("arguments", BROKEN)
def test_an_old_call_whose_arguments_are_no_json_object_is_shown(served, arguments):
    result = {"role": "tool", "tool_call_id": "call00001", "content": "error: bad arguments"}
    served.says("Sorry.", "Sorry.")
    assert served.chat([QUESTION, call(arguments), result]).message.content == "Sorry."
    items = [
        {"type": "function_call", "call_id": "call00001", "name": "weather", "arguments": arguments},
        {"type": "function_call_output", "call_id": "call00001", "output": "error: bad arguments"},
    ]
    assert served.respond([QUESTION, *items]).output_text == "Sorry."
    assert served.llm.prompts[0] == served.llm.prompts[1]
    if arguments == '{"location':
        shown = {QWEN: '"{\\"location"', LLAMA: '"{\\"location"', CODER: '{"location</parameter>'}
        assert shown[served.llm.template.source] in served.llm.prompts[0]


WRITTEN = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.text('{}[]",:\\a0u \n\0', max_size=30),
    st.recursive(
        st.none() | st.text(max_size=4),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ).map(json.dumps),
)
ANSWERS = st.builds(
    lambda thought, text, arguments, end, keep: (
        f"{thought}{text}<tool_call>\n" + f'{{"name": "weather", "arguments": {arguments}{end}'[:keep]
    ),
    st.sampled_from(["", "<think>a\0b</think>", "<think>"]),
    WRITTEN,
    WRITTEN,
    st.sampled_from(["", "}", "}\n</tool_call>", "}\n</tool_call>\n<tool_call>{"]),
    st.integers(0, 120),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=ANSWERS)
@example(answer='<tool_call>\n{"name": "weather", "arguments": {"location')
@example(answer='<tool_call>\n{"name": "weather", "arguments": {"location": "\\u0000\0"}}</tool_call>')
def test_whatever_the_server_wrote_can_be_sent_back(served, answer):
    served.says(answer, "Yes.")
    message = served.chat([QUESTION]).message
    assert served.chat([QUESTION, message.model_dump(), QUESTION]).message.content == "Yes."
    served.says(answer, "Yes.", "Yes.")
    first = served.respond([QUESTION])
    items = [item.model_dump() for item in first.output]
    assert served.respond([QUESTION, *items, QUESTION]).output_text == "Yes."
    assert served.respond([QUESTION], previous_response_id=first.id).output_text == "Yes."


def test_a_forced_call_that_was_cut_off_goes_back_to_a_real_engine(tmp_path):
    path = write_llama(tmp_path / "tiny.gguf", seed=1, template=QWEN, n_ctx_train=2048, ends=True)
    with (
        running(lambda: LLM.from_files(path, n_ctx=2048, threads=1, draft_tokens=3)) as server,
        ready(server).client() as client,
    ):
        served = Serving(client, ScriptedLLM(QWEN))
        for limit in (30, 34, 38, 42, 46):
            choice = served.chat([QUESTION], tool_choice="required", max_tokens=limit)
            assert choice.finish_reason == "length"
            again = [QUESTION, choice.message.model_dump(), QUESTION]
            assert served.chat(again, max_tokens=1).finish_reason == "length"
