"""Commands of the conversation that change it, keep it, or ask about files; and what is kept by itself."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from localspec import LLM, Conversation
from localspec.cli import opening
from localspec.cli.chat.completion import ChatCompleter
from localspec.cli.chat.kept import MOST, Kept, is_name, name_for
from localspec.cli.chat.talk import Chat
from localspec.cli.interrupts import ENDED, ends_deferred, interrupts_ignored
from localspec.cli.model_options import ModelOptions
from localspec.errors import ConversationFileError
from tests.fake_llm import FakeLLM
from tests.test_cli_interactive import calls, converse, parsed, questions, reader
from tests.tinygguf import write_trio

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_trio(tmp_path_factory.mktemp("models"))


def keeping(folder: Path, *lines: str, by_itself: bool = True) -> Chat:
    """A chat that keeps conversations, after these lines."""
    kept = Kept(folder, {"pair": "a-pair"}, by_itself=by_itself)
    chat = Chat(FakeLLM(), parsed(), quiet=True, kept=kept)  # type: ignore[arg-type]
    chat.run(reader(lines))
    return chat


# --- /set


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("/set temp 0", "temperature", 0.0),
        ("/set temperature=0.5", "temperature", 0.5),
        ("/set --top-k 7", "top_k", 7),
        ("/set seed 12345678901", "seed", 12345678901),
        ("/set seed random", "seed", None),
        ("/set max-tokens 9", "max_tokens", 9),
        ("/set n none", "max_tokens", None),
        ("/set ignore-eos on", "ignore_eos", True),
    ],
)
def test_set_counts_from_the_next_answer_on(capsys: Capture, line: str, field: str, value: object) -> None:
    chat = converse("one", line, "two", options=("-s", "3"))
    before, after = (call["params"] for call in calls(chat))
    assert after == replace(before, **{field: value}), "and changes nothing else"  # type: ignore[type-var]
    assert " from the next answer on." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/set", "  top-p                   0.95\n"),
        ("/set", "  seed                    another one each time\n"),
        ("/set temp", "temp is 0.8.\n"),
        ("/set markdown", "markdown is on.\n"),
        ("/set temp hot", "temp is 'hot'. It must be a number from 0 to 100.\n"),
        ("/set top-k 1.5", "top-k is 1.5. It must be a whole number, 0 or more.\n"),
        ("/set max-tokens 0", "max-tokens is 0. It must be at least 1, or none.\n"),
        ("/set tmp 1", "/set knows no tmp: did you mean temp? /set alone lists all.\n"),
        ("/set color blue", "/set color takes on or off, not 'blue'.\n"),
        ("/set colour on", "color is on from the next answer on.\n"),
    ],
)
def test_set_says_what_is_and_what_may_be(capsys: Capture, line: str, sentence: str) -> None:
    assert calls(converse(line)) == []
    assert sentence in capsys.readouterr().err


# --- /tokens, /read, /edit


def test_tokens_are_counted_with_the_system_prompt_and_the_files(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_text("12345")
    chat = converse(
        "/tokens", f"/read {tmp_path / 'notes.txt'}", "/tokens", "say one", "/tokens", system="Brief."
    )
    said = capsys.readouterr().err
    assert "6 of 4096 tokens of the context are taken, 4090 are left." in said
    assert "The files behind the next question take about 5 more." in said
    assert f"{len(chat.conversation.ids)} of 4096 tokens of the context are taken" in said


def test_files_stand_behind_the_next_question_and_no_other(tmp_path: Path, capsys: Capture) -> None:
    for name in ("a.txt", "b c.txt"):
        (tmp_path / name).write_text(f"text of {name}\n")
    chat = converse(f"/read {tmp_path / 'a.txt'}", f"/read {tmp_path / 'b c.txt'}", "What is it?", "And?")
    first = "What is it?\n\na.txt:\n\ntext of a.txt\n\nb c.txt:\n\ntext of b c.txt"
    assert questions(chat) == [first, "And?"]
    assert "a.txt stands behind the next question, about 13 tokens." in capsys.readouterr().err
    assert questions(converse(f"/read {tmp_path / 'a.txt'}", "/read", "x")) == ["x"]
    assert "Taken back: a.txt." in capsys.readouterr().err


def test_a_path_may_be_written_as_a_shell_writes_it(tmp_path: Path, capsys: Capture) -> None:
    """So does a terminal into which a file is dropped."""
    for name in ("b c.txt", "'q'.txt"):
        (tmp_path / name).write_text("text")
    for typed in (f"'{tmp_path}/b c.txt'", f'"{tmp_path}/b c.txt"', f"{tmp_path}/b\\ c.txt"):
        assert questions(converse(f"/read {typed}", "x")) == ["x\n\nb c.txt:\n\ntext"]
    assert questions(converse(f"/read {tmp_path}/'q'.txt", "x")) == ["x\n\n'q'.txt:\n\ntext"]
    capsys.readouterr()
    converse("/read 'no such file'", "/read 'open")
    said = capsys.readouterr().err
    assert "error: 'no such file' cannot be read" in said and "error: 'open cannot be read" in said


def test_files_of_the_same_name_are_told_apart(tmp_path: Path, capsys: Capture) -> None:
    one, two = tmp_path / "one" / "a.txt", tmp_path / "two" / "a.txt"
    for path in (one, two):
        path.parent.mkdir()
        path.write_text(f"in {path.parent.name}")
    chat = converse(f"/read {one}", f"/read {two}", f"/read {one}", "x")
    assert questions(chat) == [f"x\n\n{one}:\n\nin one\n\n{two}:\n\nin two"]
    said = capsys.readouterr().err
    assert "a.txt stands behind" in said and f"{two} stands behind the next question" in said


def test_another_answer_leaves_the_files_to_the_next_question(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    chat = converse("say one", f"/read {tmp_path / 'a.txt'}", "/retry", "x")
    assert questions(chat)[-1] == "x\n\na.txt:\n\ntext"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "is empty."), (b"\xff\xfe", "is not UTF-8: byte 0 is 0xff."), (b"a\0", "is no text: byte 1 is NUL."),
     (None, "cannot be read: No such file or directory.")],
)  # fmt: skip
def test_a_file_that_is_no_text_is_told(
    tmp_path: Path, capsys: Capture, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert questions(converse(f"/read {path}", "x")) == ["x"]
    assert f"error: {path} {sentence}" in capsys.readouterr().err


def test_files_of_a_question_that_failed_are_still_there(
    tmp_path: Path, files: dict[str, Path], capsys: Capture
) -> None:
    (tmp_path / "long.txt").write_text("x" * 3000)
    with LLM.from_files(files["target"], n_ctx=256, draft_tokens=0) as llm:
        chat = Chat(llm, parsed("-n", "2"), quiet=True)
        chat.run(reader((f"/read {tmp_path / 'long.txt'}", "why", "/read", "why")))
    assert questions(chat) == ["why"] and "Taken back: long.txt." in capsys.readouterr().err


def test_another_question_takes_the_place_of_the_last_when_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from localspec.cli.chat import turns

    written = iter(["fail", None, " ", "say two"])
    monkeypatch.setattr(turns, "edited", lambda _text: next(written))
    chat = converse("say one", "say first", "/edit", "/edit", "/edit", "/edit")
    assert questions(chat) == ["say one", "say two"]


# --- saved by name


def test_a_conversation_is_saved_by_name_and_listed(tmp_path: Path, capsys: Capture) -> None:
    chat = keeping(
        tmp_path, "say one", "/save", "/save my talk", "/clear", "/load my talk", "/list", "/load not there"
    )
    said = capsys.readouterr().err
    assert questions(chat) == ["say one"]
    assert "Saved 1 turn: /load say-one goes on with it." in said and "Loaded 1 turn." in said
    assert "error: There is no saved conversation 'not there'.\n/list shows them all." in said
    listed = [line.split()[0] for line in said.splitlines() if "a-pair, say one" in line]
    assert len(listed) == 3 and {"say-one", "my"} < set(listed)
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or os.name == "nt", "nobody else can read it"


def test_what_is_a_name_and_what_a_path() -> None:
    assert all(map(is_name, ("talk", "my talk", "2026-11-29-1", "ärger")))
    assert not any(map(is_name, ("a/b", "~/x", "x.zip", "..", "", "-x", "a" * 81, "a\\b", "a\n")))
    chat = converse('say "Why is the sky blue, and the sea?" (short)')
    assert name_for(chat.conversation) == "say-why-is-the-sky-blue"
    assert is_name(name_for(converse("???").conversation))


# --- kept by itself


def test_each_conversation_is_kept_with_its_last_answer(tmp_path: Path) -> None:
    kept = keeping(tmp_path, "say one", "fail", "say two", "/undo", "/clear", "say three").kept
    assert kept is not None
    entries = kept.entries()
    assert {(entry.question, entry.turns) for entry in entries} == {("say three", 1), ("say one", 1)}
    assert kept.newest().question == "say three" and kept.newest().model == {"pair": "a-pair"}


def test_who_keeps_nothing_can_still_save(tmp_path: Path) -> None:
    chat = keeping(tmp_path, "say one", "/save kept", by_itself=False)
    assert chat.kept is not None and [entry.name for entry in chat.kept.entries()] == ["kept"]
    with pytest.raises(ConversationFileError, match="There is no conversation in"):
        chat.kept.newest()


def test_only_so_many_are_kept_and_the_oldest_goes(tmp_path: Path) -> None:
    chat = keeping(tmp_path, "say one", "/save named")
    assert chat.kept is not None
    (first,) = [entry for entry in chat.kept.entries() if entry.by_itself]
    for number in range(MOST + 3):
        for suffix in (".localspec", ".json"):
            copy = first.path.with_name(f"{number}{suffix}")
            copy.write_bytes(first.path.with_suffix(suffix).read_bytes())
            os.utime(copy, (1000 + number, 1000 + number))
    chat.run(reader(("say more",)))
    names = [entry.name for entry in chat.kept.entries() if entry.by_itself]
    assert len(names) == MOST and first.name in names and "0" not in names and f"{MOST + 2}" in names
    assert not first.path.with_name("0.json").exists() and "named" in [e.name for e in chat.kept.entries()]


def test_a_folder_that_cannot_be_written_is_said_once_and_ends_nothing(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("")
    chat = keeping(tmp_path / "file" / "x", "say one", "say two", "/save here", "/list")
    said = capsys.readouterr().err
    assert questions(chat) == ["say one", "say two"]
    assert said.count("This conversation is not kept: The conversation cannot be written to") == 1
    assert "error: The conversation cannot be written to" in said and "No conversation is saved yet." in said


def test_what_is_kept_is_small_and_whole(files: dict[str, Path], tmp_path: Path) -> None:
    """Without the models' state: what is loaded from it is read again, and goes on the same."""
    with LLM.from_files(files["target"], n_ctx=512, draft_tokens=0) as llm:
        talk = llm.conversation(temperature=0, max_tokens=8)
        list(talk.ask("one"))
        talk.save(tmp_path / "small", with_state=False)
        talk.save(tmp_path / "large")
        assert (tmp_path / "small").stat().st_size < (tmp_path / "large").stat().st_size / 2
        again = Conversation.load(llm, tmp_path / "small", temperature=0, max_tokens=8)
        list(talk.ask("two"))
        list(again.ask("two"))
        assert again.ids == talk.ids and "read again" in again.restored


# --- another model


def other_model(folder: Path) -> Path:
    folder.mkdir()
    return write_trio(folder)["target"]


def with_files(target: Path, *arguments: str) -> ModelOptions:
    return parsed("-m", str(target), "-c", "512", "-n", "6", "--temp", "0", "-t", "1", *arguments)


def opened(options: ModelOptions) -> LLM:
    return opening.open_engine(options, lambda _sentence: None)


def test_a_conversation_goes_on_with_another_model(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    other, kept = other_model(tmp_path / "other"), Kept(tmp_path / "kept", {})
    options = with_files(files["target"])
    with opened(options) as llm:
        chat = Chat(llm, options, "Be brief.", kept=kept)
        chat.run(reader(("one", "/set seed 9", f"/model {other}", "/model", "/tokens", "two", "/tokens")))
        assert questions(chat) == ["one", "two"] and chat.llm is not llm
        assert chat.conversation.system == "Be brief." and chat.conversation.defaults["params"].seed == 9
        assert kept.newest().model == {"pair": str(other)}
    said = capsys.readouterr().err
    assert f"The model is {other}." in said and "error" not in said
    before, behind = map(int, re.findall(r"(\d+) of 512 tokens", said))
    assert len("Be brief.one") < before < behind, "a letter is a token of it"
    assert "The model sees the whole conversation, 2 turns." in said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no-such-pair", "There is no pair named 'no-such-pair'."),
        ("qwen2.5-coder-7b", "is not complete on this disk"),
        ("{folder}/missing.gguf", "There is no file"),
        ("{folder}/damaged.gguf", "damaged.gguf"),
    ],
)
def test_a_model_that_cannot_be_used_leaves_the_present_one(
    files: dict[str, Path],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    sentence: str,
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    (tmp_path / "damaged.gguf").write_bytes(files["target"].read_bytes()[:5000])
    options = with_files(files["target"])
    with opened(options) as llm:
        chat = Chat(llm, options, quiet=True)
        chat.run(reader(("one", f"/model {name.format(folder=tmp_path)}", "two")))
        assert questions(chat) == ["one", "two"] and chat.llm is llm
    said = capsys.readouterr().err
    assert sentence in said and f"{files['target']} stays." in said


def test_ctrl_c_stops_the_load_of_another_model(
    files: dict[str, Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = with_files(files["target"])

    def interrupted(*_arguments: object) -> LLM:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
        raise AssertionError("it was not stopped")

    with opened(options) as llm:
        chat = Chat(llm, options, quiet=True)
        monkeypatch.setattr(opening, "load", interrupted)
        chat.run(reader((f"/model {files['draft']}", "two")))
        assert questions(chat) == ["two"]
    assert f"Stopped. {files['target']} stays." in capsys.readouterr().err


def test_a_conversation_of_another_vocabulary_says_which_model_it_was_held_with(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    keeping(tmp_path, "say one", "/save letters")
    options = with_files(files["target"])
    with opened(options) as llm:
        chat = Chat(llm, options, quiet=True, kept=Kept(tmp_path, options.named()))
        chat.run(reader(("one", "/load letters", "two")))
    assert questions(chat) == ["one", "two"]
    said = capsys.readouterr().err
    assert "another vocabulary" in said and "It was held with a-pair: go on with that model." in said


def test_a_conversation_that_went_meanwhile_is_not_blamed_on_the_model(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """Another chat goes on with it, which gives it another name."""
    held = keeping(tmp_path, "say one")
    assert held.kept is not None
    entry = held.kept.newest()
    entry.path.unlink()
    options = with_files(files["target"])
    with opened(options) as llm, pytest.raises(ConversationFileError) as caught:
        Chat(llm, options, quiet=True).go_on(entry)
    assert "There is no file" in str(caught.value) and "held with" not in caught.value.command


def test_a_model_is_kept_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert parsed("-m", "x.gguf", "-md", "org/repo:q4").named() == {
        "target": str(tmp_path / "x.gguf"),
        "draft": "org/repo:q4",
    }
    assert parsed("smollm2-135m").title() == "smollm2-135m" and parsed().title() == "qwen2.5-coder-1.5b"


# --- Files that others wrote, or that cannot be written


@pytest.mark.parametrize(
    "about",
    [
        "[" * 100_000, '{"turns": 1e999, "model": {}}', '{"turns": NaN, "model": {}}', "null",
        '{"turns": 1, "model": [1]}', '{"turns": 1, "model": {"pair": 5}, "question": {"a": 1}}',
    ],
)  # fmt: skip
def test_what_is_damaged_beside_a_conversation_ends_nothing(
    tmp_path: Path, capsys: Capture, about: str
) -> None:
    keeping(tmp_path, "one")
    (kept,) = (tmp_path / "last").glob("*.json")
    kept.write_text(about)
    keeping(tmp_path, "/list", "two")
    assert kept.stem in capsys.readouterr().err
    assert len(list((tmp_path / "last").glob("*.localspec"))) == 2


def test_a_name_of_a_file_overwrites_nothing_on_the_screen(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a\x1b]52;c;aGk=\x07\rb\x9b2J.localspec").touch()
    keeping(tmp_path, "/list", "/load \x1b[2J\r.x", "/save \x1b/\r", "/read \x1b\r")
    assert not set(capsys.readouterr().err) & set("\x1b\x07\r\x9b")


def test_a_folder_that_cannot_be_looked_into_is_said_once(tmp_path: Path, capsys: Capture) -> None:
    chat = keeping(tmp_path / ("a" * 300), "one", "/list", "two")  # the system knows no such name
    assert questions(chat) == ["one", "two"]
    assert capsys.readouterr().err.count("This conversation is not kept: ") == 1


def test_a_name_that_no_file_can_have_is_no_conversation(tmp_path: Path, capsys: Capture) -> None:
    keeping(tmp_path, "one", f"/load {'𠀀' * 80}", f"/save {'𠀀' * 80}", "two")
    said = capsys.readouterr().err
    assert "There is no saved conversation" in said and "cannot be written" in said


def test_what_a_killed_program_left_half_written_goes(tmp_path: Path) -> None:
    keeping(tmp_path, "one")
    old, new = (tmp_path / "last" / f".{name}.localspec.abc.part" for name in ("old", "new"))
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    keeping(tmp_path, "two")
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_file_whose_name_is_no_text_can_be_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff.txt"
    path.write_text("what it says")
    chat = keeping(tmp_path, f"/read {path}", "one")
    assert questions(chat) == ["one\n\na?.txt:\n\nwhat it says"]


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_tab_offers_no_name_with_control_characters(tmp_path: Path) -> None:
    for name in ("ab", "a\x1b[2J", "a\x9b2J"):
        (tmp_path / name).touch()
    document = Document(f"/read {tmp_path}/a")
    assert [found.text for found in ChatCompleter().get_completions(document, CompleteEvent())] == ["b"]


@pytest.mark.skipif(os.name == "nt", reason="no such signal there")
def test_a_signal_that_ends_counts_where_the_answer_fails() -> None:
    found = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(SystemExit) as ended, interrupts_ignored(), ends_deferred():
            signal.raise_signal(signal.SIGTERM)
            raise ConversationFileError("It failed.", "Try again.")
    finally:
        signal.signal(signal.SIGTERM, found)
    assert ended.value.code == ENDED + signal.SIGTERM
