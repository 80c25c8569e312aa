"""`localspec serve`: its options, and the whole command as a process with signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from localspec.cli import main
from localspec.cli import serve as command
from localspec.errors import LoadCancelled
from localspec.system.load_watch import LoadWatch, watching

from .serverkit import QUESTION, SECONDS, wait_until
from .tinygguf import write_llama

ROOT = Path(__file__).parents[1]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = write_llama(tmp_path_factory.mktemp("tiny") / "my-model.gguf", seed=1, n_ctx_train=8192)
    return ["-m", str(file), "-c", "4096", "-t", "1", "--draft-tokens", "off"]


@contextmanager
def process(*arguments, **env):
    """The command, its URL and its standard error; killed at the end of the block if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", "serve", *arguments, "--port", "0"],
        cwd=ROOT, env=os.environ | env, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        lines = []
        try:
            for line in running.stderr:
                lines.append(line)
                if " is ready on " in line:
                    break
            url = re.search(r"http://\S+", lines[-1])[0]
            yield running, url, lines
        finally:
            if running.poll() is None:
                running.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_the_answer_finish(model, number, code):
    with process(*model, "--grace", "100") as (running, url, lines):
        assert any("my-model.gguf" in line for line in lines)
        with httpx.stream(
            "POST",
            url + CHAT,
            json={"messages": QUESTION, "max_tokens": 300, "stream": True},
            timeout=SECONDS,
        ) as answer:
            pieces = answer.iter_text()
            text = next(pieces)
            running.send_signal(number)
            text += "".join(pieces)
        assert text.endswith("data: [DONE]\n\n")
        assert running.wait(SECONDS) == code
        rest = running.stderr.read()
        assert "Traceback" not in rest
        assert "rror" not in rest
        assert "what is being answered (1) may finish within 100 seconds; Ctrl-C ends it at once" in rest


def test_a_second_signal_ends_it_at_once(model):
    with process(*model, "-n", "4000", "--grace", "100") as (running, url, _):
        with httpx.stream(
            "POST", url + CHAT, json={"messages": QUESTION, "stream": True}, timeout=SECONDS
        ) as answer:
            pieces = answer.iter_text()
            next(pieces)
            running.send_signal(signal.SIGTERM)
            running.send_signal(signal.SIGINT)
            text = "".join(pieces)
        assert running.wait(SECONDS) in (130, 143)
        assert text.endswith("[DONE]\n\n") or "stopping" in text


def test_the_options_are_the_requests_defaults(model):
    arguments = ["-n", "3", "--alias", "mine", "--api-key", "k"]
    with process(*model, *arguments) as (running, url, _):
        headers = {"Authorization": "Bearer k"}
        answer = httpx.post(url + CHAT, json={"messages": QUESTION}, headers=headers, timeout=SECONDS).json()
        assert answer["model"] == "mine"
        assert answer["usage"]["completion_tokens"] == 3
        by_file = {"messages": QUESTION, "model": "my-model.gguf"}
        assert httpx.post(url + CHAT, json=by_file, headers=headers, timeout=SECONDS).status_code == 200
        other = {"messages": QUESTION, "model": "gpt-4"}
        refused = httpx.post(url + CHAT, json=other, headers=headers, timeout=SECONDS)
        assert "ask for 'mine', or start the server with --any-model" in refused.text
        running.terminate()
        running.wait(SECONDS)


def test_memory_is_freed_when_nothing_is_asked_and_comes_back(model):
    with process(*model, "--unload-after", "0.2") as (_, url, _lines):

        def loaded() -> bool:
            return "localspec_model_loaded 1" in httpx.get(url + "/metrics", timeout=SECONDS).text

        def ask() -> str:
            body = {"messages": QUESTION, "max_tokens": 9, "temperature": 0}
            answer = httpx.post(url + CHAT, json=body, timeout=SECONDS)
            return answer.raise_for_status().json()["choices"][0]["message"]["content"]

        first = ask()
        for _ in range(2):
            wait_until(lambda: not loaded())
            assert httpx.get(url + "/health", timeout=SECONDS).status_code == 200
            assert ask() == first


def test_verbose_logs_requests_and_never_their_texts(model):
    with process(*model, "--verbose") as (running, url, _lines):
        question = [{"role": "user", "content": "a secret"}]
        body = {"messages": question, "max_tokens": 3, "temperature": 0}
        assert httpx.post(url + CHAT, json=body, timeout=SECONDS).status_code == 200
        running.terminate()
        said = running.stderr.read()
        running.wait(SECONDS)
    assert "answered: " in said and "secret" not in said


def run(*arguments, **env):
    return CliRunner().invoke(main, ["serve", *arguments], env=env)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "--port"),
        (["--queue", "-1"], "--queue"),
        (["--timeout", "0"], "--timeout"),
        (["--grace", "-1"], "--grace"),
        (["--grace", "inf"], "--grace"),
        (["--grace", "nan"], "--grace"),
        (["--timeout", "nan"], "--timeout"),
        (["--timeout", "1e30"], "--timeout"),
        (["--unload-after", "0"], "--unload-after"),
        (["--cors", "foo"], "--cors foo"),
        (["--cors", "http://a b"], "--cors"),
        (["--api-key", " "], "empty"),
        (["--alias", ""], "--alias"),
        (["--temp", "-3"], "--temp is -3.0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(model, arguments, said):
    done = run(*model, *arguments)
    assert done.exit_code in (1, 2)
    assert said in done.stderr


def test_a_model_that_is_not_there_ends_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "serve", "-m", str(tmp_path / "no.gguf"), "--port", "0"],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_while_the_model_loads_ends_the_load(model, monkeypatch):
    ended = []

    def serve(load, _settings, _listening, _tell):
        watch = LoadWatch()  # the server's
        watch.cancel()
        with watching(watch), pytest.raises(LoadCancelled):
            load()
        ended.append(True)

    monkeypatch.setattr("localspec.server.serve.serve", serve)
    assert run(*model, "--port", "0").exit_code == 0
    assert ended


def test_without_the_extra_the_command_to_install_it_is_said(model, monkeypatch):
    find = command.importlib.util.find_spec
    monkeypatch.setattr(
        command.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    done = run(*model)
    assert done.exit_code == 1
    assert "pip install uvicorn" in done.stderr
    assert "uvicorn" in done.stderr


def test_the_key_may_come_from_the_environment(model):
    done = run(*model, LOCALSPEC_API_KEY=" ")
    assert done.exit_code == 2
    assert "LOCALSPEC_API_KEY" in done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "65", "1.5", "many", ""])
def test_what_is_no_number_of_answers_at_a_time_is_refused_with_the_bounds(value):
    result = CliRunner().invoke(main, ["serve", "--parallel", value])
    assert result.exit_code == 2
    assert f"'{value}' is not auto or a whole number from 1 to 64." in result.output
