"""The plugin of the `llm` tool, in the real tool: its command line, its Python API, sync and async."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import CliRunner
from llm.cli import cli

from localspec import LLM, AnswerOptions, EngineOptions, LoadOptions, SamplingParams
from localspec.cli import main
from localspec.errors import EngineBusy
from localspec.pairs.pins import Pins, hub_model, pinned_pair
from localspec.plugins import llm_tool
from localspec.store.store import Store

from .dockit import ROOT
from .scripted_llm import QWEN, R1, ScriptedLLM
from .tinygguf import write_llama, write_pair

FAST: dict[str, Any] = {"threads": 1, "temperature": 0, "max_tokens": 20}
AS_FLAGS = [text for name, value in FAST.items() for text in ("-o", name, str(value))]
FORM = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}},
    "required": ["size"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tool:
    """The tool's command line with a folder of its own, and localspec's folder, which knows the pair `tiny`."""

    env: dict[str, str]

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "llm", *args]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, encoding="utf-8", input="")


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    folder = tmp_path_factory.mktemp("llm")
    target, draft = write_pair(folder, n_ctx_train=2048)
    own = {"LOCALSPEC_HOME": str(folder / "home"), "LLM_USER_PATH": str(folder / "user")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        for pair in (["tiny", "-m", str(target), "-md", str(draft)], ["other", "-m", str(draft)]):
            done = CliRunner().invoke(main, ["add", *pair])
            assert done.exit_code == 0, done.output
        yield Tool({**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"})
        llm_tool.HELD.close()


@pytest.fixture
def model(tool: Tool) -> llm.Model:
    return llm.get_model("localspec/tiny")


@pytest.fixture
def async_model(tool: Tool) -> llm.AsyncModel:
    return llm.get_async_model("localspec/tiny")


def alone(messages: list[dict[str, str]]) -> str:
    """What the library answers, in an engine of its own."""
    with LLM.from_pair("tiny", threads=1) as engine:
        return engine.generate(messages, temperature=0, max_tokens=20).text


# The command line


def test_the_tool_finds_the_plugin() -> None:
    assert "localspec.plugins.llm_tool" in {point.value for point in entry_points(group="llm")}


def test_it_answers_what_the_library_answers_and_goes_on_with_the_conversation(tool: Tool) -> None:
    asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello there"}]
    done = tool("-m", "localspec/tiny", *AS_FLAGS, "-s", "Be kind.", "hello there")
    answer = alone(asked)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{answer}\n", "")
    went_on = tool("-c", "-m", "localspec/tiny", *AS_FLAGS, "again")
    assert went_on.stdout == (
        alone([*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": "again"}]) + "\n"
    )
    logged = json.loads(tool("logs", "-n", "1", "--json").stdout)[0]
    assert logged["output_tokens"] <= 20 < logged["input_tokens"]
    assert logged["response_json"]["finish_reason"] in ("length", "stop")


def test_a_chat_in_the_terminal(tool: Tool) -> None:
    argv = [sys.executable, "-m", "llm", "chat", "-m", "localspec/tiny", *AS_FLAGS]
    done = subprocess.run(argv, env=tool.env, capture_output=True, text=True, input="hello\nagain\nexit\n")
    assert done.returncode == 0, done.stderr
    talk = done.stdout.partition("insert one or more fragments\n")[2]
    answers = talk.removeprefix("> ").removesuffix("\n> ").split("\n> ")
    assert len(answers) == 2 and all(answers), done.stdout


def test_listing_says_what_is_here_and_loads_nothing(tool: Tool) -> None:
    heavy = "sorted({'llama_cpp', 'huggingface_hub', 'jinja2', 'localspec.llm'} & set(sys.modules))"
    code = (
        "import sys; from click.testing import CliRunner; from llm.cli import cli; "
        f"print(CliRunner().invoke(cli, ['models']).output); print({heavy})"
    )
    done = subprocess.run([sys.executable, "-c", code], env=tool.env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert "localspec: localspec/tiny" in lines
    assert "localspec: localspec/qwen3-4b (not downloaded)" in lines
    assert lines[-1] == "[]"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["-m", "localspec/qwen3-4b", "hi"], "Run `llm localspec pull qwen3-4b`."),
        (["-m", "localspec/tiny", "-o", "draft_tokens", "many", "hi"], "It must be auto, off or a number"),
        (["-m", "localspec/tiny", "-o", "threads", "1", "x" * 5000], "Shorten it, or load the model with"),
        (["-m", "localspec/tiny", "-o", "colour", "red", "hi"], "colour"),
        (["-m", "localspec/tiny", "-T", "llm_time", "hi"], "knows no tools"),
        (["-m", "localspec/tiny", "-a", __file__, "hi"], "does not support attachments"),
        (["localspec", "pull", "tinny"], "Did you mean 'tiny'?"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(tool: Tool, args: list[str], told: str) -> None:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 1
    assert told in done.stderr
    assert "Traceback" not in done.output


def test_pull_reads_what_is_here(tool: Tool) -> None:
    done = CliRunner().invoke(cli, ["localspec", "pull", "localspec/tiny"])
    assert done.exit_code == 0, done.output
    assert "target.gguf ready" in done.stderr


def test_a_folder_of_localspec_that_cannot_be_used_leaves_the_tool_its_other_models(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "format").write_text("999\n", encoding="utf-8")
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    done = CliRunner().invoke(cli, ["models"])
    assert done.exit_code == 0
    assert "localspec has no models: " in done.stderr
    assert "OpenAI" in done.stdout and "localspec/" not in done.stdout


# Answers


def test_a_conversation_is_not_read_again_and_answers_as_a_fresh_engine(model: llm.Model) -> None:
    talk = model.conversation()
    first = talk.prompt("hello there", system="Be kind.", **FAST)
    said = first.text()
    held = llm_tool.HELD.get("tiny", {"threads": 1})
    second = talk.prompt("again", **FAST)
    kept = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello there"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "again"},
    ]
    assert second.text() == alone(kept)
    assert llm_tool.HELD.get("tiny", {"threads": 1}) is held
    usage, before = second.usage(), first.usage()
    assert usage.details["prompt_tokens_details"]["cached_tokens"] >= before.input - 1
    assert usage.input > before.input


@pytest.mark.parametrize("stream", [True, False])
def test_a_schema_holds_and_chunks_join_to_the_whole(model: llm.Model, stream: bool) -> None:
    response = model.prompt("Which size?", schema=FORM, stream=stream, **{**FAST, "max_tokens": 200})
    text = "".join(response)
    assert json.loads(text)["size"] in ("small", "large")
    assert text == response.text()


def test_drafting_can_be_switched_off_and_counts_are_told(model: llm.Model) -> None:
    drafted = model.prompt("hello there", draft_tokens=3, **FAST)
    plain = model.prompt("hello there", draft_tokens="off", **FAST)
    assert drafted.text() == plain.text()
    assert drafted.usage().details["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert "completion_tokens_details" not in (plain.usage().details or {})


def test_an_answer_that_is_dropped_frees_the_engine(model: llm.Model) -> None:
    chunks = iter(model.prompt("hello there", **{**FAST, "max_tokens": 400}))
    next(chunks)
    with pytest.raises(llm.ModelError, match=r"not read to its end|being read"):
        model.prompt("again", **FAST).text()
    del chunks
    assert model.prompt("again", **FAST).text()


def test_an_answer_that_others_end_is_no_answer(model: llm.Model) -> None:
    response = model.prompt("hello there", **{**FAST, "max_tokens": 400})
    chunks = iter(response)
    next(chunks)
    llm_tool.HELD.get("tiny", {"threads": 1}).cancel()
    with pytest.raises(llm.ModelError, match="was cancelled"):
        list(chunks)
    assert model.prompt("again", **FAST).text()


def test_other_options_of_the_load_load_it_again(model: llm.Model) -> None:
    model.prompt("hello", **FAST).text()
    first = llm_tool.HELD.get("tiny", {"threads": 1})
    model.prompt("hello", n_ctx=512, **FAST).text()
    second = llm_tool.HELD.get("tiny", {"threads": 1, "n_ctx": 512})
    assert first is not second and not first.loaded
    assert second.engine.target.n_ctx == 512
    chunks = iter(model.prompt("hello", n_ctx=512, **FAST))
    next(chunks)
    with pytest.raises(EngineBusy):
        llm_tool.HELD.get("tiny", {"threads": 1})
    assert "".join(chunks)


def test_a_second_model_stays_beside_the_first_while_memory_lasts(
    model: llm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = llm.get_model("localspec/other")
    model.prompt("hello", **FAST).text()
    other.prompt("hello", **FAST).text()
    both = [llm_tool.HELD.get(name, {"threads": 1}) for name in ("tiny", "other")]
    assert all(each.loaded for each in both)
    monkeypatch.setattr("localspec.engine.memory.free_memory", lambda: 0 if both[0].loaded else 2**40)
    assert other.prompt("hello", n_ctx=512, **FAST).text()
    assert not any(each.loaded for each in both)
    monkeypatch.setattr("localspec.engine.memory.free_memory", lambda: 0)
    with pytest.raises(llm.ModelError, match=r"0 bytes|0 B|are free"):
        model.prompt("hello", **FAST).text()


def test_a_model_that_was_pulled_from_a_hub_is_one_too(model: llm.Model, tmp_path: Path) -> None:
    file = write_llama(tmp_path / "hub-Q8_0.gguf", seed=3)
    body = file.read_bytes()
    target = hub_model("org/repo", "c" * 40, [(file.name, len(body), hashlib.sha256(body).hexdigest())])
    store = Store()
    Pins(store.home).put(pinned_pair("org/repo:Q8_0", "mit", target))
    place = store.place_of(target)
    place.parent.mkdir(parents=True)
    place.write_bytes(body)
    pulled = llm.get_model("localspec/org/repo:Q8_0")
    assert str(pulled) == "localspec: localspec/org/repo:Q8_0"
    with LLM.from_files(file, threads=1) as engine:
        expected = engine.generate([{"role": "user", "content": "hello"}], temperature=0, max_tokens=20).text
    assert pulled.prompt("hello", **FAST).text() == expected


def test_the_options_are_the_apis_and_tell_its_defaults() -> None:
    offered = llm_tool.LocalspecModel.Options.model_fields
    known = {*LoadOptions.__annotations__, *AnswerOptions.__annotations__, "enable_thinking"}
    assert set(offered) <= known
    defaults = {field.name: field.default for field in [*fields(SamplingParams), *fields(EngineOptions)]}
    told = {
        name: found[1]
        for name, field in offered.items()
        if (found := re.search(r"\(([\d.]+)\)$", field.description or ""))
    }
    assert {"temperature", "top_k", "n_ctx"} <= set(told)
    assert told == {name: f"{defaults[name]:g}" for name in told}


def test_threads_share_one_loaded_model(model: llm.Model) -> None:
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(model.prompt("hello there", **FAST).text()))
        for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 2 and texts[0] == texts[1]


# asyncio


def test_the_async_model_answers_alike(model: llm.Model, async_model: llm.AsyncModel) -> None:
    async def answer() -> tuple[str, str, Any]:
        response = async_model.prompt("hello there", **FAST)
        chunks = [chunk async for chunk in response]
        return "".join(chunks), await response.text(), await response.usage()

    joined, text, usage = asyncio.run(answer())
    assert joined == text == model.prompt("hello there", **FAST).text()
    assert 0 < usage.output <= 20


def test_two_async_answers_at_once_and_a_conversation(async_model: llm.AsyncModel) -> None:
    async def ask() -> list[str]:
        both = [async_model.prompt("hello there", **FAST) for _ in "ab"]
        texts = await asyncio.gather(*(response.text() for response in both))
        talk = async_model.conversation()
        await talk.prompt("hello there", **FAST).text()
        second = talk.prompt("again", **FAST)
        await second.text()
        assert (await second.usage()).details["prompt_tokens_details"]["cached_tokens"] > 0
        return list(texts)

    first, second = asyncio.run(ask())
    assert first == second


def test_a_cancelled_task_ends_its_answer(async_model: llm.AsyncModel) -> None:
    async def leave() -> str:
        response = async_model.prompt("hello there", **{**FAST, "max_tokens": 1500, "min_p": 0.0})
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in response:
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await async_model.prompt("again", **FAST).text()

    assert asyncio.run(leave())


def test_errors_reach_whoever_awaits(async_model: llm.AsyncModel) -> None:
    async def ask() -> None:
        await async_model.prompt("hello", temperature=-1.0).text()

    with pytest.raises(llm.ModelError, match="temperature is -1"):
        asyncio.run(ask())


# Tools and thoughts, of a model that says what it is told to


class Scripted(ScriptedLLM):
    """Takes options by name, as `LLM.stream` does."""

    warnings = ()

    def stream(self, ids: list[int], **options: Any) -> Any:
        params = SamplingParams(max_tokens=options.get("max_tokens"))
        return super().stream(ids, **{"params": params, **options})


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    engine = Scripted(QWEN)
    monkeypatch.setattr(llm_tool.HELD, "get", lambda _name, _options: engine)
    return engine


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def test_a_tool_is_called_and_its_result_answered(model: llm.Model, scripted: Scripted) -> None:
    scripted.says(f"Let me see. {CALL}", "It is 5.")
    chain = model.chain("2 + 3?", system="Be exact.", tools=[add])
    assert chain.text() == "Let me see. It is 5."
    asked, answered = scripted.prompts
    assert '"name": "add"' in asked and "Add two numbers." in asked and "Be exact." in asked
    assert '"arguments": {"a": 2, "b": 3}' in answered and "<|im_start|>tool\n5<|im_end|>" in answered
    called, *_ = chain._responses
    assert [(call.name, call.arguments) for call in called.tool_calls()] == [("add", {"a": 2, "b": 3})]


def test_two_calls_at_once_and_the_async_chain(async_model: llm.AsyncModel, scripted: Scripted) -> None:
    scripted.says(CALL + CALL.replace("2", "4"), "They are 5 and 7.")

    async def ask() -> str:
        return await async_model.chain("2 + 3 and 4 + 3?", tools=[add]).text()

    assert asyncio.run(ask()) == "They are 5 and 7."
    assert "tool\n5<" in scripted.prompts[1] and "tool\n7<" in scripted.prompts[1]


def test_a_call_that_is_cut_off_is_no_call(model: llm.Model, scripted: Scripted) -> None:
    scripted.says(CALL)
    with pytest.raises(llm.ModelError, match=r"The model called add .* allow more max_tokens"):
        model.prompt("2 + 3?", tools=[add], max_tokens=45).text()


def test_thoughts_are_apart_and_go_back_with_the_conversation(model: llm.Model, scripted: Scripted) -> None:
    scripted.says("<think>hm</think>\n\nYes.", "Really.")
    talk = model.conversation()
    first = talk.prompt("Is it?")
    assert first.text() == "Yes."
    assert next((event.type, event.chunk) for event in first.stream_events()) == ("reasoning", "hm")
    assert talk.prompt("Really?").text() == "Really."
    assert "<think>hm</think>Yes." in scripted.prompts[1]


def test_an_answer_in_a_form_is_not_thought_about(model: llm.Model, scripted: Scripted) -> None:
    scripted.says('{"size": "small"}')
    assert model.prompt("Which?", schema=FORM).text() == '{"size": "small"}'
    assert scripted.calls[0]["json_schema"] == FORM
    assert scripted.prompts[0].endswith("<think>\n\n</think>\n\n")


def test_a_template_that_opens_the_thoughts(model: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scripted(R1, "hm</think>\n\nYes.", '{"size": "small"}')
    monkeypatch.setattr(llm_tool.HELD, "get", lambda _name, _options: engine)
    response = model.prompt("Is it?")
    assert response.text() == "Yes."
    assert [event.chunk for event in response.stream_events() if event.type == "reasoning"] == ["hm"]
    assert model.prompt("Which?", schema=FORM).text() == '{"size": "small"}'
    assert engine.prompts[1].endswith("<think>\n\n</think>\n\n")


def test_tools_beside_a_form_are_refused(model: llm.Model, scripted: Scripted) -> None:
    with pytest.raises(llm.ModelError, match="Leave one out"):
        model.prompt("Which?", schema=FORM, tools=[add]).text()


def test_an_image_in_given_messages_is_refused(model: llm.Model, scripted: Scripted) -> None:
    picture = llm.user("What is this?", llm.Attachment(type="image/png", content=b"png"))
    with pytest.raises(llm.ModelError, match="reads text only"):
        model.prompt(messages=[picture]).text()
