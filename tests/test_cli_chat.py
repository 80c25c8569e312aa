"""`localspec chat` with one prompt: what goes where, and every way it can go wrong."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from localspec.answers.request import Completion
from localspec.cli import download_progress as pulling
from localspec.cli import main, opening, terminal
from localspec.cli.app import COMMANDS, MEANT
from localspec.cli.chat import command as chat_command
from localspec.cli.model_options import ModelOptions
from localspec.cli.tables import show_table
from localspec.decoding.params import SamplingParams
from localspec.errors import ModelFileError, NotDownloaded, PairingError, TemplateError
from localspec.pairs.reference import Reference
from localspec.text.controls import printable
from tests.fake_llm import FakeLLM

ROOT = Path(__file__).parents[1]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(opening, "open_engine", lambda _options, _notify: fake)
    return fake


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ModelOptions]:
    options_seen: list[ModelOptions] = []

    def open_engine(options: ModelOptions, _notify: object) -> FakeLLM:
        options_seen.append(options)
        return FakeLLM()

    monkeypatch.setattr(opening, "open_engine", open_engine)
    return options_seen


@pytest.fixture(autouse=True)
def nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """No standard input, where `run` gives none."""
    monkeypatch.setattr(sys, "stdin", None)


def fail_to_open(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def open_engine(_options: ModelOptions, _notify: object) -> FakeLLM:
        raise error

    monkeypatch.setattr(opening, "open_engine", open_engine)


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["chat", *arguments], input=stdin)


def test_the_answer_alone_goes_to_standard_output(llm: FakeLLM) -> None:
    result = run("-p", "say 4")
    assert (result.exit_code, result.stdout) == (0, "4\n")
    assert llm.closed


@pytest.mark.usefixtures("llm")
def test_figures_and_drafting_go_to_standard_error() -> None:
    stderr = run("-p", "hello").stderr
    assert (
        "qwen2.5-coder-1.5b: target.gguf + draft.gguf, computed by llama.cpp, drafting on, 3 tokens a round"
        in stderr
    )
    assert (
        "4 drafted, 3 accepted, acceptance rate 0.75, mean acceptance length 1.00, drafting on, 3 tokens a round"
        in stderr
    )
    assert "tokens/s" in stderr


def test_a_hint_stands_under_the_first_line_or_else_under_the_figures(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Completion.__init__
    monkeypatch.setattr(Completion, "__init__", lambda self, **fields: true(self, **fields, hint="Do this."))
    assert run("-p", "hello").stderr.splitlines()[-1] == "Do this."
    llm.hint = "Do this."
    first, second, *rest = run("-p", "hello").stderr.splitlines()
    assert first.endswith("drafting on, 3 tokens a round")
    assert (second, "Do this." in rest) == ("Do this.", False)
    assert "Do this." not in run("-q", "-p", "hello").stderr


@pytest.mark.usefixtures("llm")
def test_an_answer_without_drafts_has_no_acceptance_rate() -> None:
    stderr = run("-p", "plain").stderr
    assert "tokens/s" in stderr
    assert "acceptance rate" not in stderr


@pytest.mark.usefixtures("llm")
def test_quiet_leaves_only_the_answer() -> None:
    result = run("-q", "-p", "say 4")
    assert (result.stdout, result.stderr) == ("4\n", "")


def test_a_notice_and_a_warning_are_said_even_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        opening, "open_engine", lambda _options, _notify: FakeLLM(warnings=("threads is 9.",))
    )
    assert (
        run("-q", "-p", "full").stderr == "warning: -t/--threads is 9.\nThe context of 4096 tokens is full.\n"
    )


@pytest.mark.usefixtures("llm")
def test_an_answer_that_ends_its_line_gets_no_second_line_break() -> None:
    assert run("-p", "say one\n").stdout == "one\n"


def test_standard_input_is_the_prompt_without_its_last_line_break(llm: FakeLLM) -> None:
    result = run("--system", "Be brief.", stdin="a\nb\n")
    assert result.exit_code == 0
    assert llm.calls[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
    ]


def test_standard_input_is_utf8_and_may_begin_with_a_mark(llm: FakeLLM) -> None:
    run(stdin="\ufeffgrüße 🙂\r\n".encode())
    assert llm.calls[0]["messages"] == [{"role": "user", "content": "grüße 🙂"}]


def test_input_that_is_no_utf8_names_the_byte(llm: FakeLLM) -> None:
    result = run(stdin=b"ab\xff")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: Standard input is not UTF-8: byte 2 is 0xff.")
    assert not llm.calls


@pytest.mark.parametrize(
    "question", [["-p", "Explain this"], ["pair", "Explain this"], ["pair", "Explain", "this"]]
)
@pytest.mark.parametrize(
    ("piped", "asked"),
    [
        ("a\nb\n", "Explain this\n\na\nb"),
        ("\n  a\r\n", "Explain this\n\n\n  a"),
        ("", "Explain this"),
        (" \n", "Explain this"),
    ],
)
def test_what_is_piped_in_stands_behind_the_question(
    llm: FakeLLM, question: list[str], piped: str, asked: str
) -> None:
    result = run(*question, stdin=piped)
    assert (result.exit_code, llm.calls[0]["messages"]) == (0, [{"role": "user", "content": asked}])


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n", "utf-16".encode("utf-16"), "text".encode("utf-16-be"), b"a\0b"]
)
@pytest.mark.parametrize("question", [[], ["-p", "Explain this"]])
def test_a_file_that_is_no_text_is_refused(llm: FakeLLM, question: list[str], data: bytes) -> None:
    result = run(*question, stdin=data)
    assert (result.exit_code, result.stdout, llm.calls) == (1, "", [])
    assert result.stderr.startswith("error: Standard input is ") and "UTF-8" in result.stderr
    assert "byte " in result.stderr


class BrokenInput(io.RawIOBase):
    """Cannot be read."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_input_that_cannot_be_read_is_one_sentence(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(BrokenInput())))
    with pytest.raises(SystemExit) as ended:
        main(["chat", "-p", "hi"], prog_name="localspec")
    said = capsys.readouterr()
    assert (ended.value.code, said.out, llm.calls) == (1, "", [])
    assert said.err.startswith("error: Standard input cannot be read: Input/output error.\n")


def test_input_without_an_end_is_refused_at_a_limit(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "LARGEST_INPUT", 1 << 20)
    assert run("-p", "x", stdin=b"y\n" * (1 << 19)).exit_code == 0
    result = run("-p", "x", stdin=b"y\n" * (1 << 19) + b"y")
    assert result.exit_code == 1 and "error: Standard input holds more than 1 MiB." in result.stderr


@pytest.mark.usefixtures("llm")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pair", "why", "-p", "what"], "QUESTION and -p/--prompt both ask something"),
        (
            ["Explain this"],
            "'Explain this' stands in the place of PAIR. A question goes behind PAIR, or behind -p.",
        ),
        (["why " * 200], "stands in the place of PAIR"),
    ],
)
def test_a_question_in_the_wrong_place_is_told_where_it_goes(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in " ".join(result.stderr.split())


def test_a_path_with_blanks_is_a_path(opened: list[ModelOptions], tmp_path: Path) -> None:
    (tmp_path / "my model").write_text("")
    for path in ("My models/x.GGUF", str(tmp_path / "my model")):
        assert run(path, "hi").exit_code == 0
    assert [options.files()[0] for options in opened] == [Path("My models/x.GGUF"), tmp_path / "my model"]


@pytest.mark.usefixtures("llm")
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("watched", [False, True])
def test_a_cut_answer_is_said_to_a_person_and_the_answer_stays_clean(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, watched: bool
) -> None:
    monkeypatch.setattr(chat_command, "is_terminal", lambda stream: watched and stream is sys.stdout)
    result = run(*(["-q"] if quiet else []), "-n", "1", "-p", "cut")
    assert result.stdout == "user:cut \n"
    assert ("cut off at 1 token (-n)" in result.stderr) is (watched or not quiet)
    assert json.loads(run("--json", "-q", "-n", "1", "-p", "cut").stdout)["finish_reason"] == "length"


@pytest.mark.parametrize("arguments", [[], ["-p", ""], ["-p", " \n"], ["-p", "x", "--system", ""]])
def test_empty_text_is_refused(llm: FakeLLM, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, llm.calls) == (1, "", [])
    assert "is empty." in result.stderr


@pytest.mark.parametrize("arguments", [["-p", "a\udcff"], ["-p", "a", "--system", "b\udcff"]])
def test_undecodable_arguments_are_refused(llm: FakeLLM, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert "is not valid UTF-8 at character 1." in result.stderr
    assert not llm.calls


@pytest.mark.usefixtures("llm")
def test_json_is_one_object_with_everything() -> None:
    result = run("--json", "-s", "7", "-p", "say 🙂")
    answer = json.loads(result.stdout)
    assert result.stdout.isascii()
    assert list(answer) == [
        "text",
        "ids",
        "finish_reason",
        "statistics",
        "settings",
        "sampling",
        "seed",
        "drafting",
        "hint",
        "notice",
    ]
    assert (answer["text"], answer["ids"], answer["finish_reason"], answer["seed"]) == (
        "🙂",
        [ord("🙂")],
        "stop",
        7,
    )
    assert answer["statistics"]["acceptance_rate"] == 0.75
    assert (answer["sampling"]["temperature"], answer["sampling"]["top_k"]) == (0.8, 40)
    assert answer["settings"]["draft"]["file"] == "/models/draft.gguf"


def test_json_errors_are_text_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_open(monkeypatch, ModelFileError("x.gguf is no GGUF file.", "Pull it again.", path="x.gguf"))
    result = run("--json", "-m", "x.gguf", "-p", "hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: x.gguf is no GGUF file.\nPull it again.\n"


def test_a_failure_half_way_keeps_the_half_and_ends_with_the_sentence(llm: FakeLLM) -> None:
    result = run("-q", "-p", "fail")
    assert (result.exit_code, result.stdout) == (1, "half")
    assert result.stderr == "error: The pass failed.\nTry again.\n"
    assert llm.closed


def test_a_refused_pair_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_open(monkeypatch, PairingError("They do not pair.", "Use --no-draft."))
    result = run("-m", "a.gguf", "-md", "b.gguf", "-p", "hi")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: They do not pair.\nUse --no-draft.\n",
    )


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kind", [TemplateError, ZeroDivisionError])
def test_what_a_model_file_says_cannot_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], debug: bool
) -> None:
    """A template's own sentence, a name in the metadata: error reports quote them."""
    fail_to_open(monkeypatch, kind("no \x1b]0;title\x07 and \x9b2J"))
    monkeypatch.setenv("LOCALSPEC_DEBUG", "1" if debug else "")
    stderr = run("-p", "hi").stderr
    assert "no \ufffd]0;title\ufffd and \ufffd2J" in stderr
    assert printable(stderr) == stderr


@pytest.mark.parametrize("debug", [False, True])
def test_an_unexpected_exception_is_one_sentence_unless_debugging(
    monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    fail_to_open(monkeypatch, ZeroDivisionError("two\nlines"))
    monkeypatch.setenv("LOCALSPEC_DEBUG", "1" if debug else "")
    result = run("-p", "hi")
    assert result.exit_code == 1
    assert "error: ZeroDivisionError: two lines\n" in result.stderr
    assert "LOCALSPEC_DEBUG=1" in result.stderr
    assert ("Traceback" in result.stderr) is debug


def test_ctrl_c_while_loading_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_open(monkeypatch, KeyboardInterrupt())
    assert run("-p", "hi").exit_code == 130


# --- options


@pytest.mark.parametrize(
    "arguments",
    [
        ["pair", "-m", "x.gguf"],
        ["-md", "x.gguf"],
        ["pair", "-md", "x.gguf"],
        ["--draft-tokens", "many"],
        ["--draft-tokens", "-1"],
        ["-ngl", "1.5"],
        ["-ngld", "off"],
        ["--temp", "warm"],
        ["--no-such-option"],
        ["a", "b"],
        [""],
        [" "],
        ["-m", ""],
        ["-m", "a.gguf", "-md", ""],
    ],
)
def test_wrong_usage_ends_with_2(opened: list[ModelOptions], arguments: list[str]) -> None:
    result = run("-p", "hi", *arguments)
    assert (result.exit_code, result.stdout, opened) == (2, "", [])
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["--temp", "-1"], "--temp"), (["-n", "-5"], "-n/--max-tokens"), (["--stop", ""], "--stop")],
)
def test_a_value_out_of_range_is_refused_before_loading(
    opened: list[ModelOptions], arguments: list[str], name: str
) -> None:
    result = run("-p", "hi", *arguments)
    assert (result.exit_code, opened) == (2, [])
    assert f"Error: {name} is " in result.stderr


def test_short_options_of_several_letters_stand_beside_those_of_one(opened: list[ModelOptions]) -> None:
    arguments = (
        "-m t.gguf -md d.gguf -n 5 -ngl 3 -ngld all -c 99 -ctk q8_0 -ctv bf16 -t 2 -s 1 -q -p hi --library ik"
    )
    assert run(*arguments.split()).exit_code == 0
    (options,) = opened
    assert options.files() == (Path("t.gguf"), Path("d.gguf"))
    assert (options.max_tokens, options.seed, options.sampling().max_tokens) == (5, 1, 5)
    assert options.engine() == {
        "n_ctx": 99,
        "threads": 2,
        "gpu_layers": 3,
        "draft_gpu_layers": "all",
        "draft_tokens": "auto",
        "use_mmap": True,
        "no_draft": False,
        "no_cross_vocabulary": False,
        "head": "auto",
        "prepare_draft": True,
        "cache_type_k": "q8_0",
        "cache_type_v": "bf16",
        "strict": False,
        "library": "ik",
        "rpc": "",
        "draft_rpc": "",
    }


def test_the_defaults_are_those_of_the_library(opened: list[ModelOptions]) -> None:
    from localspec.engine.options import EngineOptions

    assert run("-p", "hi").exit_code == 0
    (options,) = opened
    assert options.sampling() == SamplingParams()
    engine = options.engine()
    assert engine.pop("draft_tokens") == "auto"
    assert EngineOptions(**engine) == EngineOptions()


@pytest.mark.parametrize("path", ["x.gguf", "X.GGUF", "./folder/x", "C:\\models\\x"])
def test_pair_may_be_a_path(opened: list[ModelOptions], path: str) -> None:
    run("-p", "hi", path)
    assert opened[0].pair_name() is None
    assert opened[0].files() == (Path(path), None)


def test_models_may_be_those_of_a_hub(opened: list[ModelOptions]) -> None:
    run("-p", "hi", "Qwen/Some-GGUF:q4_k_m", "-md", "Qwen/Draft-GGUF:Q8_0")
    run("-p", "hi", "-m", "a.gguf", "-md", "Qwen/Draft-GGUF")
    assert [options.pair_name() for options in opened] == [None, None]
    draft = Reference("Qwen/Draft-GGUF", "Q8_0")
    assert opened[0].files() == (Reference("Qwen/Some-GGUF", "Q4_K_M"), draft)
    assert opened[1].files() == (Path("a.gguf"), Reference("Qwen/Draft-GGUF", ""))


def test_options_reach_the_engine_and_the_request(llm: FakeLLM) -> None:
    run("-p", "hi", "--temp", "0", "--stop", "a", "--stop", "b", "--repeat-penalty", "1.1", "--top-k", "3")
    params = llm.calls[0]["params"]
    assert params == SamplingParams(temperature=0, stop=("a", "b"), repeat_penalty=1.1, top_k=3)


# --- a pair that is not on disk


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pair is missing until it is pulled."""
    pulled: list[str] = []

    def open_engine(_options: ModelOptions, _notify: object) -> FakeLLM:
        if not pulled:
            raise NotDownloaded("The pair tiny is not here.", "Run `localspec pull tiny`.", name="tiny")
        return FakeLLM()

    monkeypatch.setattr(opening, "open_engine", open_engine)
    monkeypatch.setattr(pulling, "pull_pair", lambda name, **_options: pulled.append(name))
    return pulled


def test_without_a_terminal_a_missing_pair_gives_the_command(pulls: list[str]) -> None:
    result = run("-p", "hi")
    assert (result.exit_code, result.stdout, pulls) == (1, "", [])
    assert result.stderr == "error: The pair tiny is not here.\nRun `localspec pull tiny`.\n"


def test_yes_pulls_the_missing_pair(pulls: list[str]) -> None:
    result = run("-y", "-p", "say 4")
    assert (result.exit_code, result.stdout, pulls) == (0, "4\n", ["tiny"])


def test_offline_wins_over_yes(pulls: list[str]) -> None:
    assert run("-y", "--offline", "-p", "hi").exit_code == 1
    assert pulls == []


@pytest.mark.parametrize(
    ("answer", "pulled"), [("\n", True), ("what\ny\n", True), ("n\n", False), ("", False)]
)
def test_at_a_terminal_it_asks(
    pulls: list[str], monkeypatch: pytest.MonkeyPatch, answer: str, pulled: bool
) -> None:
    monkeypatch.setattr(opening, "can_ask", lambda: True)
    monkeypatch.setattr(chat_command, "is_terminal", lambda stream: stream is sys.stdin)
    result = run("-p", "hi", stdin=answer)
    assert "The pair tiny is not here.\nDownload it now? [Y/n] " in result.stderr
    assert (result.exit_code, pulls) == ((0, ["tiny"]) if pulled else (1, []))


def test_the_real_default_pair_is_missing_from_an_empty_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    result = run("-p", "hi")
    assert result.exit_code == 1
    assert "1.61 GB" in result.stderr
    assert "localspec pull qwen2.5-coder-1.5b" in result.stderr


# --- output that cannot be written


class FullDisk(io.RawIOBase):
    """Takes nothing; `given_up` lets what is left in a buffer go."""

    given_up = False

    def __init__(self, code: int) -> None:
        self.code = code

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.given_up:
            raise OSError(self.code, os.strerror(self.code))
        return len(data)


@pytest.mark.usefixtures("llm")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "list", "list --json", "chat --help", "chat -q -p say-4", "chat -q --json -p hi"],
)
def test_standard_output_that_is_full_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    code: int,
    buffered: bool,
) -> None:
    disk = FullDisk(code)
    binary: Any = io.BufferedWriter(disk) if buffered else disk
    stdout = io.TextIOWrapper(binary, encoding="utf-8", write_through=not buffered)
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit) as ended:
        main(arguments.split(), prog_name="localspec")
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"error: standard output cannot be written: {os.strerror(code)}.\n"
        "Free some space there, or send it elsewhere.\n"
    )
    disk.given_up = True


@pytest.mark.usefixtures("llm")
def test_an_answer_needs_no_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FullDisk(errno.ENOSPC)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(disk), encoding="utf-8"))
    with pytest.raises(SystemExit) as ended:
        main(["chat", "-p", "say 4"], prog_name="localspec")
    assert (ended.value.code, capsys.readouterr().out) == (0, "4\n")
    disk.given_up = True


@pytest.mark.parametrize("words", [["hi"], ["hi", "there"], ["TCP/IP", "is", "what?"], ["what is a/b?"]])
def test_with_a_target_file_every_word_is_the_question(llm: FakeLLM, words: list[str]) -> None:
    result = run("-m", "x.gguf", *words)
    assert (result.exit_code, llm.calls[0]["messages"]) == (0, [{"role": "user", "content": " ".join(words)}])
    assert run("-m", "x.gguf", *words, "-p", "more").exit_code == 2


@pytest.mark.parametrize("word", ["smollm2-135m", "y.gguf", "org/repo:Q4_0"])
def test_two_models_are_refused_whatever_stands_behind(llm: FakeLLM, word: str) -> None:
    result = run("-m", "x.gguf", word, "hi")
    assert (result.exit_code, llm.calls) == (2, [])
    assert "PAIR and -m/--target both say what to run" in result.stderr


@pytest.mark.parametrize("arguments", [["-m", "smollm2-135m"], ["-m", "x.gguf", "-md", "smollm2-135m"]])
def test_a_pair_in_the_place_of_a_file_is_told_where_its_files_are(
    llm: FakeLLM, arguments: list[str]
) -> None:
    result = run(*arguments, "-p", "hi")
    assert (result.exit_code, llm.calls) == (2, [])
    said = " ".join(result.stderr.split())
    assert "smollm2-135m is a pair, and -m and -md take files or org/repo:quant" in said
    assert "`localspec show smollm2-135m`" in said


@pytest.mark.parametrize("arguments", [["hello"], ["hello", "there"]])
def test_a_question_in_the_place_of_pair_is_told_where_it_goes(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: There is no pair named 'hello'." in result.stderr
    assert "A question goes behind PAIR, or behind -p." in result.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["smollm2-135m"], ["smollm2-135m", "-p", ""], ["-m", "x.gguf", " "]]
)
def test_without_a_question_it_says_where_one_goes(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr == (
        "error: The prompt is empty.\nGive a question behind PAIR, with -p or on standard input.\n"
    )


@pytest.mark.parametrize("text", ["# Read me", "Größe und Maß ü"])
def test_a_file_on_this_disk_is_no_unknown_pair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text(text, encoding="utf-8")
    for arguments in (["chat", "README.md", "hi"], ["show", "README.md"], ["check", "README.md"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert "README.md is not a GGUF file: it looks like a text file." in result.stderr, arguments
        assert "Give the path of a GGUF file" in result.stderr


def test_a_pair_goes_before_a_file_of_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2-135m").touch()
    assert CliRunner().invoke(main, ["show", "smollm2-135m"]).stdout.startswith("smollm2-135m: ")


def test_tables_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["name"], [["a\x1b[2J"]], title="t\x1b]0;x\x07")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "a\ufffd[2J" in printed


# --- the process


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    script = (
        "from localspec.cli import opening, main\n"
        "from tests.fake_llm import FakeLLM\n"
        "opening.open_engine = lambda options, notify: FakeLLM()\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def test_a_console_that_cannot_print_a_character_gets_a_question_mark() -> None:
    result = run_process("chat", "-p", "say grün 🙂", PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert (result.returncode, result.stdout.strip()) == (0, b"gr?n ?")


def test_help_is_light() -> None:
    heavy = ["llama_cpp", "numpy", "rich", "prompt_toolkit", "huggingface_hub", "jinja2"]
    script = (
        "import sys\nfrom localspec.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    lines = result.stdout.decode("ascii").splitlines()
    assert lines[-1] == "[]"
    assert {line.split()[0] for line in lines[:-1] if line.strip()} >= {"chat", "pull", "list", "rm"}


@pytest.mark.parametrize("command", ["chat", "pull", "list", "rm"])
def test_every_command_has_a_help_page(command: str) -> None:
    result = CliRunner().invoke(main, [command, "-h"])
    assert (result.exit_code, result.stdout.isascii()) == (0, True)


def test_version() -> None:
    from localspec import __version__

    assert CliRunner().invoke(main, ["--version"]).stdout == f"localspec {__version__}\n"


def test_python_m_localspec_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "localspec", "no-such"], cwd=ROOT, capture_output=True, check=False
    )
    assert result.returncode == 2
    assert b"No such command 'no-such'" in result.stderr


def test_ctrl_c_while_the_command_is_imported_shows_no_traceback() -> None:
    script = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from localspec.__main__ import main\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


def test_the_console_script_is_the_guarded_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"localspec": "localspec.__main__:main"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("serv", "serve"),
        ("lst", "list"),
        ("chta", "chat"),
        ("run", "chat"),
        ("RUN", "chat"),
        ("download", "pull"),
    ],
)
def test_a_command_that_was_nearly_typed_is_named(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2 and f"Did you mean {meant}" in result.stderr
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).stderr


def test_what_other_programs_call_it_is_no_command_here() -> None:
    assert set(MEANT.values()) <= set(COMMANDS) and not set(MEANT) & set(COMMANDS)


def test_short_help_is_whole() -> None:
    commands = CliRunner().invoke(main, ["--help"]).output.partition("Commands:")[2]
    assert all(
        line.endswith(".") and not line.endswith("...") for line in commands.split("\n") if line.strip()
    )
