"""docs/recipes.md: every block runs, against a real `localspec serve` with a tiny model and without a network; and what
Continue and Cline send is answered.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
import yaml
from click.testing import CliRunner

from localspec.cli import main

from .dockit import ROOT, Block, blocks, read
from .scripted_llm import QWEN, ScriptedLLM
from .serverkit import ready, running
from .tinygguf import write_pair

PAIR = "qwen2.5-coder-1.5b"
ADDRESS = "http://127.0.0.1:8080"
PAGE = blocks(read(ROOT / "docs" / "recipes.md"), "docs/recipes.md")
PYTHON = [block for block in PAGE if block.language == "python"]
LLM_COMMANDS = [line for block in PAGE for line in block.commands("llm")]
NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody runs: what goes to the network fails."""


@dataclass(frozen=True)
class Kitchen:
    """A server process that goes by the page's name, and localspec's folder, which knows the same pair as `tiny`."""

    url: str
    env: dict[str, str]
    printed: dict[Block, str] = field(default_factory=dict)

    def run(self, *argv: str, said: str = "") -> subprocess.CompletedProcess[str]:
        """Python's answer, in a process of its own."""
        return subprocess.run(
            [sys.executable, *argv], env=self.env, input=said, capture_output=True, text=True, encoding="utf-8",
            timeout=300,
        )  # fmt: skip


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    folder = tmp_path_factory.mktemp("recipes")
    target, draft = write_pair(folder, ends=True, n_ctx_train=8192, template=QWEN)
    own = {"LOCALSPEC_HOME": str(folder / "home"), "LLM_USER_PATH": str(folder / "llm"), "PYTHONUTF8": "1"}
    closed = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), NOWHERE)
    env = {
        **os.environ,
        **own,
        **closed,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", own["LOCALSPEC_HOME"])
        done = CliRunner().invoke(main, ["add", "tiny", "-m", str(target), "-md", str(draft)])
    assert done.exit_code == 0, done.output
    arguments = ["serve", "tiny", "--alias", PAIR, "--port", "0", "-c", "8192", "-t", "1", "--temp", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", *arguments], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        said: list[str] = []
        try:
            for line in server.stderr:
                said.append(line)
                if " is ready on " in line:
                    break
            found = re.search(r"http://\S+", said[-1])
            assert found is not None, said
            yield Kitchen(found[0], env)
        finally:
            server.kill()


def run(block: Block, kitchen: Kitchen) -> str:
    """What a block prints in a fresh interpreter, in which it runs once."""
    if block not in kitchen.printed:
        code = block.text.replace(ADDRESS, kitchen.url).replace(f"localspec/{PAIR}", "localspec/tiny")
        done = kitchen.run("-c", code)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        kitchen.printed[block] = done.stdout
    return kitchen.printed[block]


# The page


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_of_the_page_runs(block: Block, kitchen: Kitchen) -> None:
    assert run(block, kitchen).strip()


def test_the_page_has_what_it_promises() -> None:
    modules = {"llm", "openai", "langchain_openai", "litellm"}
    imported = {name for block in PYTHON for name in re.findall(r"^(?:import|from) (\w+)", block.text, re.M)}
    assert modules <= imported
    assert "prediction=" in "".join(block.text for block in PYTHON)


def of(word: str) -> Block:
    (block,) = [block for block in PYTHON if word in block.text]
    return block


def test_structured_answers_are_whole_objects(kitchen: Kitchen) -> None:
    for word in ("client.chat.completions.parse", "with_structured_output"):
        printed = run(of(word), kitchen)
        assert re.search(r"sentiment='(good|bad|mixed)' recommended=(True|False)", printed)


def test_the_loops_call_a_tool(kitchen: Kitchen) -> None:
    assert re.search(r"^read_file: (3|35) characters$", run(of("FILES ="), kitchen), re.M)
    assert re.search(r"^temperature \{'city': '(Rome|Oslo)'\}$", run(of("bind_tools"), kitchen), re.M)


def test_a_predicted_output_is_drafted_from(kitchen: Kitchen) -> None:
    assert re.search(r"^\d+ tokens came from drafts$", run(of("prediction="), kitchen), re.M)


def bounded(words: list[str]) -> list[str]:
    """The arguments of an `llm` command, with a limit of the answer where the page leaves that to the model."""
    if "max_tokens" in words or "pull" in words:
        return words
    at = words.index("chat") + 1 if "chat" in words else 0
    return [*words[:at], "-o", "max_tokens", "60", *words[at:]]


def test_the_llm_commands_run_in_turn(kitchen: Kitchen) -> None:
    assert {"pull", "chat", "-c", "--schema", "-T"} <= {
        word for line in LLM_COMMANDS for word in line.split()
    }
    for line in LLM_COMMANDS:
        words = shlex.split(line.replace(PAIR, "tiny"), comments=True)[1:]
        done = kitchen.run("-m", "llm", *bounded(words), said="Hello\nexit\n")
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert ("ready" in done.stderr) if "pull" in words else done.stdout.strip(), line
        assert "--schema" not in words or '"large"' in done.stdout


def test_the_configuration_of_continue_reaches_the_server(kitchen: Kitchen) -> None:
    (config,) = [yaml.safe_load(block.text) for block in PAGE if block.language == "yaml"]
    assert [role for model in config["models"] for role in model["roles"]] == [
        "chat", "edit", "apply", "autocomplete",
    ]  # fmt: skip
    for model in config["models"]:
        base = model["apiBase"].replace(ADDRESS, kitchen.url)
        with openai.OpenAI(base_url=base, api_key=model["apiKey"]) as client:
            assert model["model"] in [known.id for known in client.models.list()]


# What Continue sends


TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "required": ["filepath"],
            "properties": {"filepath": {"type": "string", "description": "Where it lies in the workspace"}},
        },
    },
}
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"filepath": "README.md"}}\n</tool_call>'
AFTER_CURSOR = "\n\nprint(add(1, 2))\n"
STOPS = [
    "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<|im_start|>", "<|im_end|>", "/src/", "#- coding: utf-8", "```",
]  # fmt: skip


def test_a_completion_in_the_middle_of_a_file(kitchen: Kitchen) -> None:
    """As Continue asks for it: its own template, and all of its stop strings."""
    prompt = f"<|fim_prefix|>def add(a, b):\n    <|fim_suffix|>{AFTER_CURSOR}<|fim_middle|>"
    with openai.OpenAI(base_url=f"{kitchen.url}/v1", api_key="none") as client:
        chunks = list(
            client.completions.create(
                model=PAIR, prompt=prompt, max_tokens=40, temperature=0.01, stream=True, stop=STOPS
            )
        )
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert not any(stop in text for stop in STOPS)


class Talk:
    """Requests of an agent to a server whose model says what it is told to, as the agent sends them."""

    def __init__(self, client: openai.OpenAI, llm: ScriptedLLM) -> None:
        self.client, self.llm = client, llm

    def ask(self, messages: list[Any], **body: Any) -> tuple[str, list[Any], Any]:
        """Text, deltas of calls, and the last chunk of a stream."""
        chunks = list(
            self.client.chat.completions.create(
                model=PAIR, messages=messages, stream=True, stream_options={"include_usage": True}, **body
            )
        )
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        return "".join(delta.content or "" for delta in deltas), calls, chunks[-1]


@pytest.fixture(scope="module")
def talk() -> Iterator[Talk]:
    llm = ScriptedLLM(QWEN)
    with running(lambda: llm, name=PAIR) as server, ready(server).client() as client:
        yield Talk(client, llm)


def whole(calls: list[Any]) -> tuple[str, str, Any]:
    """Id, name and arguments of one call, as agents put them together: both names come first."""
    first, *rest = calls
    assert first.id and first.function.name and all(not call.function.name for call in rest)
    arguments = "".join(call.function.arguments or "" for call in calls)
    return first.id, first.function.name, json.loads(arguments)


def test_continue_in_agent_mode(talk: Talk) -> None:
    talk.llm.says(f"I look into it. {CALL}", "It is about rivers.")
    messages: list[Any] = [
        {"role": "system", "content": "<important_rules>You are in agent mode.</important_rules>"},
        {"role": "user", "content": "What is this project?"},
    ]
    text, calls, _ = talk.ask(messages, max_tokens=1024, tools=[TOOL])
    identifier, name, arguments = whole(calls)
    assert (text, name, arguments) == ("I look into it.", "read_file", {"filepath": "README.md"})
    function = {"name": name, "arguments": json.dumps(arguments)}
    messages += [
        {
            "role": "assistant",
            "content": " ",
            "tool_calls": [{"id": identifier, "type": "function", "function": function}],
        },
        {"role": "tool", "content": "# Rivers", "tool_call_id": identifier},
    ]
    text, calls, last = talk.ask(messages, max_tokens=1024, tools=[TOOL])
    assert (text, calls, last.usage.completion_tokens) == ("It is about rivers.", [], 19)
    assert "<|im_start|>tool\n# Rivers<|im_end|>" in talk.llm.prompts[1]


def test_calls_that_continue_explains_in_its_instructions_come_as_they_are_written(talk: Talk) -> None:
    said = "I look.\n```tool\nTOOL_NAME: read_file\nBEGIN_ARG: filepath\nREADME.md\nEND_ARG\n```"
    talk.llm.says(said)
    text, calls, _ = talk.ask([{"role": "user", "content": "What is this project?"}], max_tokens=1024)
    assert (text, calls) == (said, [])


# What Cline sends


def test_cline_with_native_tools(talk: Talk) -> None:
    talk.llm.says(CALL, "Done.")
    options = {"temperature": 0, "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}
    task = [{"type": "text", "text": "<task>\nRead it\n</task>"}, {"type": "text", "text": "# task_progress"}]
    messages: list[Any] = [
        {"role": "system", "content": "You are a software engineer."},
        {"role": "user", "content": task},
    ]
    text, calls, last = talk.ask(messages, **options)
    identifier, name, arguments = whole(calls)
    assert (text, name, arguments) == ("", "read_file", {"filepath": "README.md"})
    assert last.choices == [] and last.usage.prompt_tokens_details.cached_tokens == 0
    function = {"name": name, "arguments": json.dumps(arguments)}
    messages += [
        {
            "role": "assistant",
            "tool_calls": [{"id": identifier, "type": "function", "function": function}],
            "reasoning_details": None,
        },
        {"role": "tool", "tool_call_id": identifier, "content": "# Rivers"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "<environment_details>\n</environment_details>"}],
        },
    ]
    assert talk.ask(messages, **options)[0] == "Done."
    assert "tool\n# Rivers<|im_end|>\n<|im_start|>user\n<environment_details>" in talk.llm.prompts[1]


def test_cline_with_tools_in_xml(talk: Talk) -> None:
    """They stand in its instructions; the answer's text comes as the model wrote it, and Cline reads the tags."""
    said = "<thinking>I read it.</thinking>\n\n<read_file>\n<path>README.md</path>\n</read_file>"
    talk.llm.says(said, "<attempt_completion>\n<result>Read.</result>\n</attempt_completion>")
    messages: list[Any] = [
        {"role": "system", "content": "TOOL USE\n\n<read_file>\n<path>File path here</path>\n</read_file>"},
        {"role": "user", "content": [{"type": "text", "text": "<task>\nRead it\n</task>"}]},
    ]
    text, calls, _ = talk.ask(messages, temperature=0)
    assert (text, calls) == (said, [])
    result = [
        {"type": "text", "text": "[read_file for 'README.md'] Result:"},
        {"type": "text", "text": "# Rivers"},
    ]
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": result}]
    assert "<result>Read.</result>" in talk.ask(messages, temperature=0)[0]
    assert said in talk.llm.prompts[1]
