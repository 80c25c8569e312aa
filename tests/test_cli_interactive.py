"""The conversation: which turns are kept, and what each command does."""

from __future__ import annotations

import contextlib
import io
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from localspec import LLM
from localspec.answers.request import Completion
from localspec.answers.turn import Turn
from localspec.cli import main
from localspec.cli.chat import showing
from localspec.cli.chat.answer import Repetition, write_out
from localspec.cli.chat.commands import COMMANDS
from localspec.cli.chat.figures import MEANINGS, cut_off, explained, figures
from localspec.cli.chat.line_editor import History, history_path
from localspec.cli.chat.showing import REPEATS
from localspec.cli.chat.talk import Chat
from localspec.cli.chat.turns import seen
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import model_options
from localspec.cli.terminal import wrapped
from localspec.decoding.seeds import attempt_seed
from localspec.decoding.stats import Stats
from localspec.errors import PromptTooLong, StoreError
from localspec.text.continuation import Said
from localspec.text.controls import printable
from tests.fake_llm import FakeLLM, Template
from tests.tinygguf import write_trio


def parsed(*arguments: str) -> ModelOptions:
    """Options as the command line makes them."""
    caught: list[ModelOptions] = []
    command = click.command()(model_options(caught.append))
    assert CliRunner().invoke(command, arguments).exit_code == 0
    return caught[0]


def reader(lines: tuple[str, ...]) -> Callable[[], str]:
    """Gives the lines one by one, then the end of input."""
    rest: Iterator[str] = iter(lines)

    def read() -> str:
        for line in rest:
            return line
        raise EOFError

    return read


def converse(*lines: str, options: tuple[str, ...] = (), system: str = "", quiet: bool = False) -> Chat:
    chat = Chat(FakeLLM(), parsed(*options), system, quiet=quiet)  # type: ignore[arg-type]
    chat.run(reader(lines))
    return chat


def questions(chat: Chat) -> list[str]:
    return [turn.question for turn in chat.conversation.turns]


def calls(chat: Chat) -> list[dict[str, object]]:
    return chat.llm.calls  # type: ignore[attr-defined, no-any-return]


Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_trio(tmp_path_factory.mktemp("chat"))


def test_the_model_reads_the_whole_conversation(capsys: Capture) -> None:
    chat = converse("say one", "two", system="Be brief.")
    assert calls(chat)[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "say one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "two"},
    ]
    printed = capsys.readouterr()
    assert printed.out.startswith("one\n")
    assert printed.err.count("tokens/s") == 2


def test_quiet_prints_no_figures(capsys: Capture) -> None:
    converse("say one", quiet=True)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("one\n", "")


def test_a_failed_turn_leaves_no_trace_and_the_chat_goes_on(capsys: Capture) -> None:
    chat = converse("say one", "fail", "say two")
    assert questions(chat) == ["say one", "say two"]
    assert "error: The pass failed.\nTry again.\n" in capsys.readouterr().err


def test_blank_entries_are_passed_over() -> None:
    assert calls(converse("", " \n")) == []


def test_an_entry_that_is_no_utf8_is_not_sent(capsys: Capture) -> None:
    assert calls(converse("a\udcff")) == []
    assert "The question is not valid UTF-8 at character 1." in capsys.readouterr().err


def test_a_notice_is_said(capsys: Capture) -> None:
    converse("full")
    said = capsys.readouterr().err
    assert (
        "The context of 4096 tokens is full.\n/full drop_oldest goes on without the oldest turns, /undo"
        in said
    )
    assert "/clear" in said


def test_a_full_context_names_the_commands_that_help(capsys: Capture) -> None:
    class Full(FakeLLM):
        def stream(self, prompt: Any, **arguments: Any) -> Any:
            if len(Template.read("".join(map(chr, prompt)))) > 1:
                raise PromptTooLong("The prompt has 9 tokens and the context holds 8.", "Use n_ctx.", n_ctx=8)
            return super().stream(prompt, **arguments)

    chat = Chat(Full(), parsed())  # type: ignore[arg-type]
    chat.run(reader(("say one", "two", "/clear", "three")))
    said = capsys.readouterr().err
    assert "error: The prompt has 9 tokens and the context holds 8.\n/full drop_oldest goes on" in said
    assert "/undo takes" in said
    assert "/clear" in said
    assert "-c/--ctx-size" in said
    assert "n_ctx" not in said
    assert questions(chat) == ["three"]


# --- A narrow terminal


class Narrow(io.StringIO):
    """A terminal of 60 columns."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Narrow]:
    def streams() -> Narrow:
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(showing, "busy", contextlib.nullcontext)
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, Narrow())
        assert isinstance(sys.stderr, Narrow)
        return sys.stderr

    return streams


@pytest.mark.parametrize(
    "lines",
    [
        ["/help"],
        ["say one", "/stats"],
        ["full"],
        ["fail"],
        ["/nothing of that name"],
        ["/full nothing of that kind, really nothing of that kind"],
    ],
)
def test_what_the_chat_says_is_broken_at_words(
    capsys: Capture, narrow: Callable[[], Narrow], lines: list[str]
) -> None:
    converse(*lines)
    whole = capsys.readouterr().err
    shown = narrow()
    converse(*lines)
    assert all(len(line) <= 60 for line in shown.getvalue().splitlines())
    words = [re.sub(r"\d[\d.]*", "0", text).split() for text in (shown.getvalue(), whole)]
    assert words[0] == words[1], "each word is there, and whole"


def test_help_and_figures_keep_a_column_for_the_names(narrow: Callable[[], Narrow]) -> None:
    shown = narrow()
    converse("/help", "say one", "/stats")
    lines = shown.getvalue().splitlines()
    for name, column in (("/draft", 26), ("  prefill seconds", 33), ("  tokens per second", 33)):
        (place,) = [index for index, line in enumerate(lines) if line.strip().startswith(name.strip())]
        if not lines[place + 1].lstrip().startswith(("/", "decode", "acceptance")):
            assert lines[place + 1].startswith(" " * column)
    assert any(line.startswith(" " * 26) for line in lines) and any(
        line.startswith(" " * 33) for line in lines
    )


@pytest.mark.parametrize(
    "arguments",
    [["chat", "--top-p", "7"], ["chat", "smollm2-135m", "-m", "x.gguf"], ["show", "no such pair at all"]],
)
def test_errors_are_broken_at_words(narrow: Callable[[], Narrow], arguments: list[str]) -> None:
    shown = narrow()
    with pytest.raises(SystemExit):
        main(arguments)
    lines = shown.getvalue().splitlines()
    assert lines and all(len(line) <= 60 for line in lines)
    assert not any(line.endswith(("-", "qwen")) for line in lines)


def test_what_is_to_be_copied_is_never_broken() -> None:
    path = "/home/somebody/models/" + "x" * 60 + ".gguf"
    text = f"{path} is damaged: run `localspec pull qwen2.5-coder-1.5b` to have another one."
    lines = wrapped(text, 40).splitlines()
    assert path in lines
    assert any("`localspec pull qwen2.5-coder-1.5b`" in line for line in lines)
    assert " ".join(lines) == text
    assert wrapped(text, None) == text
    assert wrapped("  name  " + "word " * 9, 12, hang=8).splitlines()[1] == "word word", (
        "too narrow for a column"
    )


# --- Ctrl-C


class Interrupted(FakeLLM):
    """Ctrl-C comes after the first word and again while the answer stops."""

    def _pieces(self, kind: str, messages: Any) -> Iterator[str]:
        yield "word "
        signal.raise_signal(signal.SIGINT)
        while not self._cancelled.wait(0.01):
            pass
        signal.raise_signal(signal.SIGINT)
        yield "last "


def test_a_second_ctrl_c_while_the_answer_stops_loses_nothing(capsys: Capture) -> None:
    chat = Chat(Interrupted(), parsed())  # type: ignore[arg-type]
    chat.run(reader(("one", "two")))
    assert questions(chat) == ["one", "two"]
    assert [turn.answer for turn in chat.conversation.turns] == ["word last "] * 2
    assert capsys.readouterr().err.count("stopped, ") == 2


def test_ctrl_c_between_answers_does_not_end_the_conversation() -> None:
    before = signal.getsignal(signal.SIGINT)
    lines = iter(("say one", "say two"))

    def read() -> str:
        for line in lines:
            signal.raise_signal(signal.SIGINT)
            return line
        raise EOFError

    chat = Chat(FakeLLM(), parsed())  # type: ignore[arg-type]
    chat.run(read)
    assert questions(chat) == ["say one", "say two"]
    assert signal.getsignal(signal.SIGINT) is before


def test_only_the_reader_may_leave_by_ctrl_c() -> None:
    def read() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Chat(FakeLLM(), parsed()).run(read)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_conversation_the_second_ctrl_c_ends_the_answer() -> None:
    def interrupt(_text: str) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    talk = FakeLLM().conversation()
    with pytest.raises(KeyboardInterrupt):
        write_out(lambda: talk.ask("slow"), interrupt)
    assert talk.turns == ()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_regen_answers_the_last_question_from_the_same_place_with_another_seed(capsys: Capture) -> None:
    chat = converse("say one", "two", "/regen", "/regen", options=("-s", "5"))
    assert capsys.readouterr().err.count("Again: two\n") == 2
    first, again, third = calls(chat)[1:]
    assert first["messages"] == again["messages"] == third["messages"]
    assert questions(chat) == ["say one", "two"]
    seeds = [call["params"].seed for call in calls(chat)]  # type: ignore[attr-defined]
    assert seeds == [5, 5, attempt_seed(5, 1), attempt_seed(5, 2)]
    assert len(set(seeds)) == 3


def test_attempts_without_a_seed_stay_without() -> None:
    assert attempt_seed(None, 3) is None
    assert attempt_seed(2**64 - 1, 1) is not None
    assert attempt_seed(2**64 - 1, 1) < 2**64  # type: ignore[operator]


def test_a_regeneration_that_fails_keeps_the_answer_there_was() -> None:
    chat = Chat(FakeLLM(), parsed())  # type: ignore[arg-type]
    chat.conversation._turns = (Turn("fail", "earlier", 0, Said((1,), "", (2,), "earlier")),)
    chat.run(reader(("/regen",)))
    assert questions(chat) == ["fail"] and chat.conversation.turns[0].answer == "earlier"


def test_undo_takes_back_question_and_answer(capsys: Capture) -> None:
    assert questions(converse("say one", "say two", "/undo")) == ["say one"]
    assert "Took back: say two" in capsys.readouterr().err


def test_clear_keeps_the_system_prompt() -> None:
    chat = converse("say one", "/clear", "two", system="Be brief.")
    assert calls(chat)[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "two"},
    ]


def test_system_sets_and_removes(capsys: Capture) -> None:
    chat = converse("/system Rhyme.", "a", "/system", "b", "/system")
    roles = [[message["role"] for message in call["messages"]] for call in calls(chat)]  # type: ignore[attr-defined]
    assert roles == [["system", "user"], ["user", "assistant", "user"]]
    printed = capsys.readouterr().err
    assert "Removed the system prompt: Rhyme." in printed
    assert "There is no system prompt." in printed


def test_draft_counts_from_the_next_answer_on(capsys: Capture) -> None:
    chat = converse(
        "a", "/draft off", "b", "/draft 5", "c", "/draft lots", "d", options=("--draft-tokens", "2")
    )
    assert [call["draft_tokens"] for call in calls(chat)] == [2, "off", 5, 5]
    assert "/draft takes auto, off or a whole number, not 'lots'." in capsys.readouterr().err
    converse("/draft 31", "/draft 999999")
    *_, most, beyond = capsys.readouterr().err.splitlines()
    assert most == "Draft tokens from the next answer on: 31."
    assert beyond == "Draft tokens from the next answer on: 31, for a pass checks no more."


def test_a_hint_is_given_once_in_a_conversation_and_stands_among_the_figures(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ["Do this.", "Do this.", "", "Do that."]
    true = Completion.__init__
    monkeypatch.setattr(Completion, "__init__", lambda self, **fields: true(self, **fields, hint=told.pop(0)))
    converse("a", "b", "c", "d", "/stats")
    printed = capsys.readouterr().err
    assert (printed.count("Do this."), printed.count("\nDo that.\n")) == (1, 1)
    assert printed.endswith("hint                   Do that.\n")
    told += ["Do this."]
    converse("a", quiet=True)
    assert "Do this." not in capsys.readouterr().err


def test_what_was_said_at_the_start_is_not_said_again(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Completion.__init__
    monkeypatch.setattr(Completion, "__init__", lambda self, **fields: true(self, **fields, hint="Do this."))
    for hint, times in (("Do this.", 0), ("", 1)):
        Chat(FakeLLM(hint=hint), parsed()).run(reader(("a", "b")))  # type: ignore[arg-type]
        assert capsys.readouterr().err.count("Do this.") == times


def test_the_speedup_is_said_where_it_is_known_and_something_was_drafted() -> None:
    def line(**counts: Any) -> str:
        stats = Stats(tokens=41, first_tokens=1, rounds=20, decode_seconds=4.0, **counts)
        return figures(Completion("", (), "stop", stats, None, "on"), None)

    assert "10.0 tokens/s, about 1.4x plain, 30 drafted," in line(drafted=30, accepted=21, plain_seconds=5.6)
    assert "about" not in line(drafted=30, accepted=21)
    assert "about" not in line(plain_seconds=4.0), "plain decoding needs no comparison"
    assert "about 0.9x plain, none drafted" in line(plain_seconds=3.6), (
        "but what it cost to draft nothing does"
    )


def test_stats_are_those_of_the_last_answer(capsys: Capture) -> None:
    converse("/stats", "a", "/stats")
    printed = capsys.readouterr().err
    assert "There is no answer yet." in printed
    assert "acceptance rate        0.750   accepted / drafted\n" in printed
    assert "prompt tokens          7 " in printed


def test_every_figure_is_explained_and_fits_a_narrow_window() -> None:
    names = {*Stats().to_dict(), "seed"}
    assert set(MEANINGS) == names
    stats = Stats(tokens=1000, prompt_tokens=100_000, decode_seconds=123.4, rounds=7)
    lines = list(explained(Completion("", (), "stop", stats, 7, "on")))
    assert len(lines) == len(names) + 1 and max(map(len, lines)) <= 78


def test_a_conversation_is_saved_and_goes_on_in_another_chat(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    """A client of `Conversation` like any application, on a real engine of tiny models."""
    saved = str(tmp_path / "talk.zip")
    options = ("--temp", "0", "-n", "8", "--draft-tokens", "2", "--system", "Be brief.")
    with LLM.from_files(files["target"], files["draft"], n_ctx=512, draft_tokens=2) as llm:
        chat = Chat(llm, parsed(*options[:-2]), options[-1], quiet=True)
        chat.run(reader(("one", "two", f"/save {saved}", "three")))
        ids = chat.conversation.ids
        assert chat.conversation.reread == ""  # its ids were kept from turn to turn
        again = Chat(llm, parsed(*options[:-2]), quiet=True)
        again.run(reader((f"/load {saved}", "three", "/load nowhere")))
    assert again.conversation.ids == ids and questions(again) == ["one", "two", "three"]
    assert again.conversation.system == "Be brief."
    printed = capsys.readouterr().err
    assert f"Saved 2 turns to {saved}." in printed
    assert "Loaded 2 turns. The target's state of" in printed
    assert "error: There is no file nowhere." in printed


def test_save_overwrites_conversations_only_and_knows_the_home_folder(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "notes.txt").write_text("precious")
    with LLM.from_files(files["target"], n_ctx=512, draft_tokens=0) as llm:
        chat = Chat(llm, parsed("-n", "2"), quiet=True)
        lines = (
            "/save ~/t",
            "one",
            "/save ~/notes.txt",
            "/save ~/t",
            "two",
            "/save ~/t",
            "/clear",
            "/load ~/t",
            "/save ~nosuchuser/x",
            "/load ~nosuchuser/x",
            f"/save {'a' * 300}",
            f"/save {tmp_path}",
        )
        chat.run(reader(lines))
    printed = capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "precious"
    assert "There is nothing to save." in printed
    assert "notes.txt is there and is no saved conversation: nothing was written." in printed
    assert f"Saved 2 turns to {tmp_path / 't'}." in printed and questions(chat) == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "said"), [(b"root:x:0", "no saved conversation"), (b"PK\3\4", "damaged")]
)
def test_a_file_that_is_no_conversation_is_told_in_plain_words(
    files: dict[str, Path], tmp_path: Path, capsys: Capture, content: bytes, said: str
) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(content)
    with LLM.from_files(files["target"], n_ctx=512, draft_tokens=0) as llm:
        Chat(llm, parsed("-c", "512")).run(reader((f"/load {path}",)))
    printed = capsys.readouterr().err
    assert f"error: {path} is " in printed and said in printed
    assert "Give a file that /save wrote." in printed and "BadZip" not in printed


@pytest.mark.parametrize(
    ("turns", "dropped", "sentence"),
    [
        (2, 0, "The model sees the whole conversation, 2 turns."),
        (2, 1, "The model sees the last of 2 turns."),
        (3, 1, "The model sees the last 2 of 3 turns."),
        (1, 1, "The model sees none of 1 turn."),
    ],
)
def test_what_the_model_sees_is_counted_in_words(turns: int, dropped: int, sentence: str) -> None:
    chat = Chat(FakeLLM(), parsed())  # type: ignore[arg-type]
    chat.conversation = SimpleNamespace(turns=[None] * turns, dropped=dropped)  # type: ignore[assignment]
    assert seen(chat) == sentence


def test_ctrl_c_ends_no_answer_of_others(files: dict[str, Path]) -> None:
    """The chat shares its engine: whoever waits behind it gets a whole answer."""
    with LLM.from_files(files["target"], n_ctx=512, draft_tokens=0) as llm:
        others: list[str] = []

        def ask() -> None:
            others.append(llm.generate("abc", temperature=0, max_tokens=5, ignore_eos=True).finish_reason)

        other = threading.Thread(target=ask)
        talk = llm.conversation(temperature=0, max_tokens=200, ignore_eos=True)
        heard: list[str] = []

        def write(_text: str) -> None:
            heard.append(_text)
            if len(heard) == 1:
                other.start()
                while not llm._queue._waiting:
                    time.sleep(0.001)
                signal.raise_signal(signal.SIGINT)

        assert write_out(lambda: talk.ask("one"), write).finish_reason == "cancelled"
        other.join()
        assert others == ["length"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/hlep", "There is no command /hlep"),
        ("/", "There is no command /:"),
        ("/usr/bin/env what", "//usr/bin/env sends the text to the model"),
        ("/undo", "There is nothing to take back."),
        ("/regen", "There is no answer to regenerate."),
        ("/clear all", "/clear takes no text."),
        ("/quit now", "/quit takes no text."),
        ("/q now", "/q takes no text."),
        ("/hlep", "There is no command /hlep: did you mean /help?"),
        ("/new", "There is no command /new: did you mean /clear?"),
        ("/reset", "did you mean /clear?"),
        ("/retry", "There is no answer to regenerate."),
        ("/again", "did you mean /retry?"),
        ("/temp 0", "There is no command /temp: /set temp VALUE changes that."),
        ("/top-p 1", "/set top-p VALUE changes that."),
        ("/threads 2", "that is chosen at the start, by -t/--threads of `localspec chat`."),
        ("/xyzzy", "There is no command /xyzzy: /help lists them, and //xyzzy sends the text to the model."),
        ("/draft", "Draft tokens: auto. /draft auto, off or a whole number changes it."),
        ("/draft 0", "Draft tokens from the next answer on: off."),
        ("/save", "There is nothing to save."),
        ("/load", "/load takes the name of a saved conversation"),
    ],
)
def test_what_cannot_be_done_is_said_and_not_sent(capsys: Capture, line: str, sentence: str) -> None:
    assert calls(converse(line)) == []
    assert sentence in capsys.readouterr().err


def test_two_slashes_send_one() -> None:
    assert questions(converse("//usr/bin is what?")) == ["/usr/bin is what?"]


def test_help_lists_every_command(capsys: Capture) -> None:
    converse("/help")
    printed = capsys.readouterr().err
    assert all(f"/{name}" in printed for name in COMMANDS)


@pytest.mark.parametrize(
    "line", ["/exit", "/bye", "/quit", "/EXIT", "  /exit ", "\t/bye", "exit", "quit", " Exit\n"]
)
def test_exit_reads_no_further(line: str) -> None:
    assert calls(converse(line, "more")) == []


@pytest.mark.parametrize("line", ["/help", " /help", "/?", "help", "Help "])
def test_help_is_not_sent(line: str, capsys: Capture) -> None:
    assert calls(converse(line)) == []
    assert "list the commands" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["exit the loop", "help me", "bye", "how do I quit"])
def test_a_sentence_is_no_command(line: str) -> None:
    assert questions(converse(line)) == [line]


def test_blanks_of_a_question_stay_and_those_of_a_command_part_it() -> None:
    chat = converse("    indented\n", "/system\tBe brief.", "/system \n Be\nbrief. ", " //x")
    assert questions(chat) == ["    indented\n", "/x"] and chat.conversation.system == "Be\nbrief."


# --- how an answer ended


def ended(reason: str, tokens: int = 40, **counts: int) -> Completion:
    stats = Stats(tokens=tokens, rounds=tokens, decode_seconds=4.0, **counts)
    return Completion("", (), reason, stats, None, "off: asked for")


def test_the_figures_say_how_an_answer_ended() -> None:
    assert figures(ended("length"), 40).startswith("cut off at 40 tokens (-n), ")
    assert figures(ended("length"), None).startswith("cut off at 40 tokens (the context is full), ")
    assert figures(ended("length", 39), 40).startswith("cut off at 39 tokens (the context is full), ")
    assert figures(ended("cancelled"), 40).startswith("stopped, 40 tokens, ")
    assert figures(ended("stop"), 40).startswith("40 tokens, ")
    assert [cut_off(ended(reason), 40) for reason in ("stop", "cancelled")] == ["", ""]


def test_the_figures_leave_out_what_there_is_nothing_to_say_about() -> None:
    assert figures(ended("stop"), None) == "40 tokens, 10.0 tokens/s, drafting off: asked for"
    assert figures(ended("stop", 1, first_tokens=1), None) == "1 token, drafting off: asked for"
    assert "mean acceptance length 1.00" in figures(ended("stop", drafted=4, accepted=3), None)


def test_the_figures_say_how_much_was_drafted() -> None:
    """Few of many tokens: a rate alone would read as if drafting had gone on."""
    little = replace(ended("stop", 388, drafted=3, accepted=1), drafting="on where it pays")
    told = (
        "3 drafted, 1 accepted, acceptance rate 0.33, mean acceptance length 1.00, drafting on where it pays"
    )
    assert figures(little, None).endswith(told)
    nothing = replace(ended("stop", 1), drafting="on, 3 tokens a round")
    assert figures(nothing, None).endswith("none drafted, drafting on, 3 tokens a round")


@pytest.mark.parametrize("quiet", [False, True])
def test_the_chat_says_that_an_answer_was_cut_off(
    files: dict[str, Path], capsys: Capture, quiet: bool
) -> None:
    with LLM.from_files(files["target"], n_ctx=512, draft_tokens=0) as llm:
        chat = Chat(llm, parsed("--temp", "0", "-n", "2", "--ignore-eos"), quiet=quiet)
        chat.run(reader(("one",)))
    assert "cut off at 2 tokens (-n)" in capsys.readouterr().err


# --- an answer that repeats itself


class Repeating(FakeLLM):
    """Gives the question a hundred times, in pieces of one character."""

    def _pieces(self, kind: str, messages: Any) -> Iterator[str]:
        yield from messages[-1]["content"] * 100


@pytest.mark.parametrize("question", ["again\n", "and again "])
def test_an_answer_that_only_repeats_itself_is_said_once_and_goes_on(capsys: Capture, question: str) -> None:
    chat = Chat(Repeating(), parsed())  # type: ignore[arg-type]
    chat.run(reader((question,)))
    printed = capsys.readouterr()
    assert printed.err.count(REPEATS) == 1
    assert printed.out.strip() == (question * 100).strip()


def found(ids: list[int], width: int = 3) -> bool:
    repetition = Repetition()
    for start in range(0, len(ids), width):
        repetition.heed(ids[start : start + width])
    return repetition.found


def test_what_counts_as_a_repetition() -> None:
    assert found([7] * 230) and found([*range(900), *[1, 2, 3] * 90]) and found([*range(40)] * 10)
    assert not found([7] * 190) and not found([*range(40)] * 7) and not found([*range(1000)])
    assert not found([token for line in range(60) for token in (1, 2, 3, line, 4)])


# --- a context that is full


LONG = tuple(f"question {number} {'word ' * 12}" for number in range(9))
SMALL = ("--temp", "0", "-n", "8")


def test_the_command_that_the_full_context_offers_goes_on_and_says_what_is_seen(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    saved = tmp_path / "talk"
    with LLM.from_files(files["target"], n_ctx=512, draft_tokens=0) as llm:
        chat = Chat(llm, parsed(*SMALL), quiet=True)
        chat.run(reader(LONG))
        said = capsys.readouterr().err
        assert said.count("/full drop_oldest goes on without the oldest turns") >= 1
        answered = len(chat.conversation.turns)
        chat.run(reader(("/full", "/full drop_oldest", LONG[0], f"/save {saved}", "/undo", f"/load {saved}")))
        said = capsys.readouterr().err
        turns, dropped = len(chat.conversation.turns), chat.conversation.dropped
        assert turns == answered + 1 and dropped
        assert (
            f"When the context is full: error. The model sees the whole conversation, {answered} turns."
            in said
        )
        assert "When the context is full: drop_oldest." in said
        notice = f"is full: the model no longer sees turns 1 to {dropped} of {answered}."
        assert said.count(notice) == 1 and said.index(notice) < said.index("cut off at")
        assert "Took back: question 0 word word" in said
        assert f"The model sees the whole conversation, {answered} turns." in said.partition("Took back")[2]
        assert f"Loaded {turns} turns. The model sees the last {turns - dropped} of {turns} turns." in said
        chat.run(reader(("x" * 3000, "/full all")))
        said = capsys.readouterr().err
        assert "tokens and the context holds 512.\nShorten the question; -c/--ctx-size" in said
        assert "/full takes error or drop_oldest, not 'all'." in said


def test_a_conversation_may_drop_from_the_start(files: dict[str, Path], capsys: Capture) -> None:
    with LLM.from_files(files["target"], n_ctx=512, draft_tokens=0) as llm:
        chat = Chat(llm, parsed(*SMALL), when_full="drop_oldest")
        chat.run(reader(LONG))
        assert questions(chat) == list(LONG) and chat.conversation.dropped
        chat.conversation.clear()
        chat.run(reader((LONG[0], "say more", "/stats")))
    assert "error" not in capsys.readouterr().err


def test_a_question_that_never_fits_is_to_be_shortened(files: dict[str, Path], capsys: Capture) -> None:
    with LLM.from_files(files["target"], n_ctx=64, draft_tokens=0) as llm:
        Chat(llm, parsed(*SMALL)).run(reader(("x" * 300,)))
    assert "Shorten the question; -c/--ctx-size gives" in capsys.readouterr().err


def test_answers_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b]0;title\x07\x9b1m\tb\r\n") == "a\ufffd]0;title\ufffd\ufffd1m\tb\r\n"


def test_history_lies_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    assert history_path() == tmp_path / "chat-history"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_HOME", "~/chats")
    assert history_path() == tmp_path / "chats" / "chat-history"
    monkeypatch.setenv("LOCALSPEC_HOME", "~nosuchuser/x")
    with pytest.raises(StoreError, match="there is no such user"):
        history_path()
    monkeypatch.delenv("LOCALSPEC_HOME")
    assert history_path().name == "chat-history"


def test_history_comes_back_newest_first_and_survives_bad_bytes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "chat-history"
    history = History(path)
    for entry in ("one\ntwo", "bad \udcff"):
        history.store_string(entry)
    assert History(path).load_history_strings() == ["bad ?", "one\ntwo"]


def test_a_history_that_cannot_be_written_does_not_end_the_chat(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "chat-history")
    history.store_string("lost")
    assert history.load_history_strings() == []
