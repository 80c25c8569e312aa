"""How a chat's prompt ends (add_generation_prompt, continue_final_message), and which form of the answer holds."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from localspec import LLM
from localspec.errors import InvalidRequest
from localspec.text.prompt import render_prompt
from localspec.text.template import ChatTemplate

from .scripted_llm import LLAMA, QWEN, R1, ScriptedLLM
from .serverkit import ready, running
from .test_text_prompt import FakeVocabulary, plain
from .tinygguf import CHATML, write_llama

BEGUN = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, "}]
OPENED = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne, two, "
NO, YES = {"add_generation_prompt": False}, {"add_generation_prompt": True}
GO_ON = {"continue_final_message": True}


class Serving:
    """A server whose model says what it is told to."""

    def __init__(self, client: openai.OpenAI, llm: ScriptedLLM) -> None:
        self.client, self.llm = client, llm

    def chat(self, answer: str, messages: Any = BEGUN, extra: Any = None, **options: Any) -> Any:
        self.llm.answers.clear()
        self.llm.answers.append(answer)
        self.llm.prompts.clear()
        self.llm.calls.clear()
        given = {"model": "tiny", "messages": messages, "extra_body": extra} | options
        return self.client.chat.completions.create(**given).choices[0].message

    @property
    def prompt(self) -> str:
        return self.llm.prompts[0]


@pytest.fixture(scope="module", params=[QWEN])
def served(request):
    llm = ScriptedLLM(request.param)
    with running(lambda: llm) as server, ready(server).client() as client:
        yield Serving(client, llm)


thinking = pytest.mark.parametrize("served", [R1], indirect=True)


@pytest.mark.parametrize(
    ("extra", "prompt"),
    [
        ({}, f"{OPENED}<|im_end|>\n<|im_start|>assistant\n"),
        (YES, f"{OPENED}<|im_end|>\n<|im_start|>assistant\n"),
        (YES | {"continue_final_message": False}, f"{OPENED}<|im_end|>\n<|im_start|>assistant\n"),
        (NO, f"{OPENED}<|im_end|>\n"),
        (NO | {"continue_final_message": False}, f"{OPENED}<|im_end|>\n"),
        (NO | GO_ON, OPENED),
        (GO_ON, OPENED),
        (GO_ON | {"add_generation_prompt": None}, OPENED),
    ],
)
def test_the_prompt_ends_as_it_is_asked(served, extra, prompt):
    assert served.chat("three.", extra=extra).content == "three."
    assert served.prompt == prompt


@pytest.mark.parametrize(
    ("messages", "extra", "what"),
    [
        (BEGUN, GO_ON | YES, "both true"),
        (BEGUN[:1], GO_ON, "of the role 'user'"),
        (
            [*BEGUN, {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}],
            GO_ON,
            "calls tools",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(served, messages, extra, what):
    with pytest.raises(openai.BadRequestError) as caught:
        served.chat("never", messages, extra)
    assert caught.value.param == "continue_final_message"
    assert what in caught.value.message


def test_thoughts_that_were_begun_go_on(served):
    begun = [BEGUN[0], {"role": "assistant", "content": "<think>\nHm, "}]
    message = served.chat("well.\n</think>\n\nThree.", begun, GO_ON)
    assert (message.reasoning_content, message.content) == ("well.", "Three.")
    assert served.prompt.endswith("<think>\nHm, ")
    begun[1] = {"role": "assistant", "content": "<think>Hm.</think>Thr"}
    message = served.chat("ee.", begun, GO_ON)
    assert (getattr(message, "reasoning_content", None), message.content) == (None, "ee.")


@thinking
def test_an_answer_that_goes_on_has_no_thoughts_of_its_own(served):
    """This template opens thoughts where a new answer begins, and cuts old ones away."""
    message = served.chat("three.", extra=GO_ON)
    assert message.content == "three."
    assert served.prompt.endswith("<|assistant|>One, two, ")
    assert served.chat("three.", extra=NO).content == "three."
    assert served.chat("Hm.</think>three.").content == "three."


@pytest.mark.parametrize("source", [CHATML, QWEN, LLAMA])
@pytest.mark.parametrize("said", ["", " ", "One, \n\n", "<|im_end|>a<s>", "a\0b"])
def test_the_last_message_stands_at_the_end_as_it_is(source, said):
    template = ChatTemplate(source, bos="", eos="", name="tiny.gguf")
    messages = [BEGUN[0], {"role": "assistant", "content": said}]
    ids = render_prompt(FakeVocabulary(), template, messages, ending="message")
    text = said.replace("\0", "\ufffd")
    assert ids[len(ids) - len(text) :] == plain(text)
    whole = render_prompt(FakeVocabulary(), template, messages, ending="nothing")
    assert whole[: len(ids)] == ids
    assert len(whole) > len(ids)


@pytest.mark.parametrize("source", ["{{ messages | length }}", "{{ messages[-1].content * 2 }}"])
def test_a_template_that_changes_the_last_message_cannot_continue_it(source):
    template = ChatTemplate(source, bos="", eos="", name="tiny.gguf")
    with pytest.raises(InvalidRequest, match="cannot be continued") as caught:
        render_prompt(FakeVocabulary(), template, BEGUN, ending="message")
    assert caught.value.name == "continue_final_message"
    with pytest.raises(InvalidRequest, match="ending is 'end'"):
        render_prompt(FakeVocabulary(), template, BEGUN, ending="end")


@pytest.fixture
def tiny(tmp_path):
    """A real engine, for the server to close."""
    return LLM.from_files(write_llama(tmp_path / "tiny.gguf", seed=1), n_ctx=512, threads=1, draft_tokens=3)


def test_a_real_engine_goes_on_where_the_text_ends(tiny):
    with running(lambda: tiny) as server, ready(server).client() as client:
        ids = tiny.render(BEGUN, ending="message")
        assert ids == tiny.tokenize(tiny.detokenize(ids))
        expected = tiny.generate(ids, temperature=0, max_tokens=20)
        answer = client.chat.completions.create(
            model="tiny", messages=BEGUN, max_tokens=20, extra_body=NO | GO_ON
        )
        assert answer.choices[0].message.content == expected.text
        assert answer.usage.prompt_tokens == len(ids)


DEFAULTS = [{"json_schema": {"const": "a"}}, {"grammar": 'root ::= "a"'}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"const": 1}}}


@pytest.mark.parametrize("default", DEFAULTS)
def test_what_a_request_says_of_the_form_replaces_what_the_server_says(default):
    llm = ScriptedLLM(QWEN)
    tools = [{"type": "function", "function": {"name": "f"}}]
    with running(lambda: llm, answering=default) as server, ready(server).client() as client:
        served = Serving(client, llm)

        def form(**options: Any) -> dict[str, Any]:
            served.chat("{}", **options)
            return {name: llm.calls[0][name] for name in ("grammar", "json_schema") if name in llm.calls[0]}

        assert form() == default
        assert form(extra={"response_format": None, "grammar": None, "json_schema": None}) == default
        assert form(response_format={"type": "text"}) == {}
        assert form(response_format={"type": "json_object"}) == {"json_schema": {"type": "object"}}
        assert form(response_format=FORMAT) == {"json_schema": {"const": 1}}
        assert form(extra={"json_schema": {"const": 2}}) == {"json_schema": {"const": 2}}
        assert form(extra={"grammar": 'root ::= "b"'}) == {"grammar": 'root ::= "b"'}
        assert form(extra={"grammar": 'root ::= "b"'}, response_format={"type": "text"}) == {
            "grammar": 'root ::= "b"'
        }
        assert list(form(tools=tools, tool_choice="required")) == ["json_schema"]

        def response(**options: Any) -> dict[str, Any]:
            llm.answers.append("{}")
            llm.calls.clear()
            client.responses.create(model="tiny", input="Count.", **options)
            return {name: llm.calls[0][name] for name in ("grammar", "json_schema") if name in llm.calls[0]}

        assert response() == default
        assert response(text={"verbosity": "low"}) == default
        assert response(text={"format": {"type": "text"}}) == {}
        assert response(text={"format": {"type": "json_object"}}) == {"json_schema": {"type": "object"}}
        assert response(extra_body={"grammar": 'root ::= "b"'}) == {"grammar": 'root ::= "b"'}


@pytest.mark.parametrize("default", DEFAULTS)
def test_text_completions_replace_it_as_well(tiny, default):
    with running(lambda: tiny, answering=default) as server, ready(server).client() as client:

        def text(**extra: Any) -> str:
            return (
                client.completions.create(model="tiny", prompt="abc", max_tokens=9, extra_body=extra)
                .choices[0]
                .text
            )

        assert text() in ("a", '"a"')
        assert text(grammar='root ::= "b"') == "b"
        assert text(json_schema={"const": 1}) == "1"
        assert text(response_format={"type": "text"}) not in ("a", '"a"')
