"""Tab in a shell: what docs/install.md says is done, and then Tab is pressed in that shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from localspec.cli import main
from localspec.pairs.catalogue import own_folder, pairs

from .dockit import ROOT, blocks, read

SHELLS = [shell for shell in ("bash", "zsh", "fish") if sys.platform != "win32" and shutil.which(shell)]
INSTALL = ROOT / "docs" / "install.md"


def said(shell: str) -> str:
    """What the page tells to type in that shell."""
    (block,) = [block for block in blocks(read(INSTALL), INSTALL.name) if block.language == shell]
    return block.text


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder, with `localspec` on the PATH, a pair of the user's own, and a file in the folder that is open."""
    for folder in ("bin", "here", "store"):
        (tmp_path / folder).mkdir()
    program = tmp_path / "bin" / "localspec"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m localspec "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "here" / "mymodel.gguf").touch()
    (tmp_path / ".zshrc").write_text("autoload -Uz compinit && compinit -u\nPS1='> '\n", encoding="utf-8")
    (tmp_path / ".bashrc").write_text("PS1='> '\nbind 'set enable-bracketed-paste off'\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LOCALSPEC_PAIRS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = read(ROOT / "models" / "smollm2-135m.toml").replace('"smollm2-135m"', '"zebra-7b"')
    own_folder(tmp_path / "store").mkdir()
    (own_folder(tmp_path / "store") / "zebra-7b.toml").write_text(text, encoding="utf-8")
    return tmp_path


def offered(*words: str) -> list[str]:
    """What is offered for the last word."""
    *before, incomplete = words
    return [
        item.value for item in ShellComplete(main, {}, "localspec", "_X").get_completions(before, incomplete)
    ]


TABS = [
    ("localspec cha", "chat "),
    ("localspec chat --no-cross", "--no-cross-vocabulary "),
    ("localspec show zeb", "zebra-7b "),
    ("localspec verify smo", "smollm2-135m "),
    ("localspec chat --library i", "ik "),
    ("localspec check zebra-7b mym", "mymodel.gguf "),
    ("localspec chat -m my", "mymodel.gguf "),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_is_pressed(shell, home):
    import pexpect  # not for Windows

    subprocess.run([shell, "-c", said(shell)], check=True, cwd=home)
    arguments = {"bash": ["--noprofile", "-i"], "zsh": ["-i"], "fish": ["-i"]}[shell]
    child = pexpect.spawn(
        shell, arguments, cwd=str(home / "here"), encoding="utf-8", timeout=30, dimensions=(24, 200)
    )
    try:
        for typed, completed in TABS:
            child.send(f"{typed}\t")
            child.expect_exact(completed.rstrip())
            child.sendcontrol("u")
    finally:
        child.close(force=True)


def test_a_shell_is_on_this_machine_to_press_tab_in():
    assert SHELLS or sys.platform == "win32"


def test_names_of_pairs_with_what_they_are(home):
    names = [pair.name for pair in pairs()]
    assert "zebra-7b" in names
    for command in ("chat", "pull", "show", "rm", "verify", "export", "check", "suggest", "bench", "serve"):
        assert offered(command, "") == names, command
    assert offered("check", "zebra-7b", "smol") == ["smollm2-135m"] and offered("draft", "make", "zeb") == [
        "zebra-7b"
    ]
    (item,) = ShellComplete(main, {}, "localspec", "_X").get_completions(["pull"], "zeb")
    assert item.help and item.type == "plain"


def test_every_argument_and_option_that_takes_a_pair_or_a_file_completes(home):
    """So that none is forgotten: what names one says so in its metavar or its name."""
    silent = []
    assert isinstance(main, click.Group)
    for name in main.list_commands(click.Context(main)):
        command = main.get_command(click.Context(main), name)
        context = click.Context(command)
        for parameter in command.params:
            wanted = parameter.name in ("pair", "target", "draft", "files") or "FILE" in str(
                parameter.metavar
            )
            if wanted and not parameter.shell_complete(context, ""):
                silent.append(f"{name} {parameter.name}")
    assert silent == ["pull draft"]  # which is on a hub, and not here


def test_a_damaged_store_or_pair_file_is_no_matter_for_a_shell(home):
    (own_folder(home / "store") / "zebra-7b.toml").write_text("nonsense", encoding="utf-8")
    (home / "store" / "references").mkdir()
    (home / "store" / "references" / "x.json").write_text("nonsense", encoding="utf-8")
    assert "smollm2-135m" in offered("chat", "")


def test_a_model_pulled_from_a_hub_is_offered(home, monkeypatch):
    from localspec.pairs.pins import Pins

    pinned = [pair for pair in pairs() if pair.name == "zebra-7b"]
    monkeypatch.setattr(Pins, "all", lambda _pins: pinned)
    assert offered("rm", "zeb") == ["zebra-7b", "zebra-7b"]


def test_no_socket_is_opened_and_nothing_heavy_loaded(home):
    env = {**os.environ, "_LOCALSPEC_COMPLETE": "bash_complete", "COMP_WORDS": "localspec chat zeb"}
    code = (
        "import atexit, runpy, socket, sys\n"
        "def refuse(*_): raise SystemExit('a socket was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "heavy = {'llama_cpp', 'numpy', 'huggingface_hub', 'rich', 'prompt_toolkit'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules))))\n"
        "sys.argv = ['localspec']\n"
        "runpy.run_module('localspec', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**env, "COMP_CWORD": "2"}, capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (["plain,zebra-7b", "[]"], "")
