"""Sets localspec up in `.venv` and runs it: `python3 scripts/dev.py chat|test|soak|setup [ARGS...]`.

Standard library only, any OS. The first run makes `.venv`, compiles llama-cpp-python and installs the
packages; a stamp in `.venv` lets later runs start at once. Everything said here goes to standard error, so
that standard output holds only what the command itself prints. The exit code is the command's own; 1 if
the set-up failed, 2 for a wrong command, 130 after Ctrl-C during the set-up.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dev_compiler import PREBUILT, find_compiler, no_compiler
from dev_display import no_display
from dev_progress import run_logged

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "localspec-stamp.json"
LOG = VENV / "localspec-setup.log"
OLDEST_PYTHON = (3, 11)
LLAMA = "llama-cpp-python"
FAST = "ik-llama-cpp-python"
EXTRAS = {"chat": "", "test": "test", "soak": "test", "setup": "test"}

USAGE = """\
usage: python3 scripts/dev.py COMMAND [ARGS...]

  chat [ARGS...]   set up if needed, then run `localspec chat ARGS...`
  test [ARGS...]   set up if needed, then run every check and test: `pytest ARGS...`
  soak [ARGS...]   set up if needed, then run `scripts/soak.py ARGS...`: four clients for so many minutes
  setup            set up for all of them and stop

CMAKE_ARGS in the environment is passed to the compile of llama.cpp, e.g. CMAKE_ARGS="-DGGML_CUDA=on"."""

# The first pattern found in pip's log decides; the end of the log is shown in any case.
LOG_REMEDIES = (
    ("No space left on device", "The disk is full: free some space and run the same command again."),
    (
        "NewConnectionError",
        "The package index did not answer: check the network, the proxy and pip's settings.",
    ),
    ("No matching distribution", "Check the network and which package index pip uses: pip config list."),
    ("CUDA Toolkit not found", "Install NVIDIA's CUDA toolkit (nvcc), or run again without CMAKE_ARGS."),
    ("Building wheel for llama", f"If the compiler is at fault, replace or update it. {PREBUILT}"),
)


class SetupError(Exception):
    """The set-up cannot go on; the message says why and what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_python(version: tuple[int, ...]) -> None:
    if version < OLDEST_PYTHON:
        raise SetupError(
            f"localspec needs Python 3.11 or newer, and this is Python {version[0]}.{version[1]} "
            f"({sys.executable}). Run it with a newer one, e.g. python3.12 scripts/dev.py chat."
        )


def program(name: str, os_name: str = os.name) -> Path:
    """Where a venv keeps its programs: `bin/NAME`, on Windows `Scripts/NAME.exe`."""
    return VENV / "Scripts" / f"{name}.exe" if os_name == "nt" else VENV / "bin" / name


# The stamp


def read_stamp() -> dict[str, Any]:
    """What was set up: `key`, `extras`, `cmake_args`. Empty if nothing was, or if it cannot be read."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(**changes: object) -> None:
    STAMP.write_text(json.dumps({**read_stamp(), **changes}), encoding="utf-8")


def venv_version() -> tuple[int, ...]:
    """The Python version of `.venv` from its pyvenv.cfg, e.g. (3, 11); () if there is no venv."""
    try:
        lines = (VENV / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
        values = dict(line.split(" = ", 1) for line in lines if " = " in line)
        return tuple(int(part) for part in values["version"].split(".")[:2])
    except (OSError, KeyError, ValueError):
        return ()


def setup_key() -> str:
    """Hash of what an installation depends on; the folder counts because the scripts in a venv name it."""
    facts = repr((venv_version(), str(ROOT))).encode() + (ROOT / "pyproject.toml").read_bytes()
    return hashlib.sha256(facts).hexdigest()


def cmake_args() -> str:
    return os.environ.get("CMAKE_ARGS", "").strip()


def wants_rebuild() -> bool:
    """Whether CMAKE_ARGS is set and llama.cpp was not built with it; if it is unset, any build will do."""
    return cmake_args() not in ("", read_stamp().get("cmake_args", ""))


def is_ready(extra: str) -> bool:
    stamp = read_stamp()
    same = stamp.get("key") == setup_key() and extra in stamp.get("extras", [])
    return same and program("python").exists() and not wants_rebuild()


# The steps


def setup(extra: str) -> None:
    """Make `.venv` and install localspec into it, unless the stamp says that this was done."""
    if is_ready(extra):
        return
    say(f"Setting up localspec in {VENV} (once).")
    make_venv()
    pip("updating pip", "--upgrade", "pip")
    install_llama()
    # A path entry instead of an import hook: from the folder above the clone, the clone itself, which has the
    # package's name, would otherwise be taken for it.
    compat = ("--config-settings", "editable_mode=compat")
    what = f".[{extra}]" if extra else "."
    pip("installing localspec and the packages it needs", *compat, "--editable", what)
    install_fast()
    write_stamp(key=setup_key(), extras=sorted({"", extra}))


def make_venv() -> None:
    """Keep a working `.venv`, whoever made it; make it anew if it is missing, broken or too old."""
    if venv_version() >= OLDEST_PYTHON and in_venv("-m", "pip", "--version"):
        return
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise SetupError(
            f"{sys.executable} lacks the modules venv and ensurepip. On Debian or Ubuntu: "
            f"sudo apt install python3.{sys.version_info[1]}-venv, then run the same command again."
        )
    say("making .venv ...")
    argv = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    made = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if made.returncode:
        raise SetupError(
            f"{made.stdout}{made.stderr}\nPython could not make {VENV}; its own words are above."
        )


def in_venv(*args: str) -> bool:
    """Whether `python ARGS` succeeds in `.venv`, with pip cut off from its settings."""
    env = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    argv = [str(program("python")), *args]
    try:
        return subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


def install_llama() -> None:
    """Install llama-cpp-python, compiling it unless a wheel is at hand.

    pip's cache does not know CMAKE_ARGS, so a build with them neither takes a wheel from it nor leaves one.
    """
    requirement, compiler = llama_requirement(), find_compiler()
    rebuild = wants_rebuild()
    if not rebuild and is_satisfied(requirement):
        return
    if rebuild and not compiler:
        raise SetupError(no_compiler())
    options = ["--force-reinstall", "--no-deps", "--no-cache-dir", "--no-binary", LLAMA] if rebuild else []
    if not compiler:
        options = ["--only-binary", LLAMA]
    try:
        pip("fetching llama-cpp-python (77 MB)", *options, requirement)
    except SetupError as error:
        raise error if compiler else SetupError(no_compiler()) from None
    write_stamp(cmake_args=cmake_args())


def install_fast() -> None:
    """Install the second compute library where a wheel of it can be had; everything works without it.

    pip itself leaves it out, without a word, on the systems for which pyproject.toml names none.
    """
    requirement = fast_requirement()
    if is_satisfied(requirement):
        return
    try:
        pip(f"fetching {FAST} (10 to 30 MB)", "--no-deps", "--only-binary", FAST, requirement)
    except SetupError:
        say(f"No wheel of {FAST} could be had: set up without it, which may be slower. The log: {LOG}")


def llama_requirement() -> str:
    """The pin of llama-cpp-python as pyproject.toml has it."""
    return next(str(item) for item in project()["dependencies"] if item.startswith(LLAMA))


def fast_requirement() -> str:
    """The pin of the second library, and on which systems it is asked for, as pyproject.toml has it."""
    return str(project()["optional-dependencies"]["fast"][0])


def project() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    import tomllib  # not at the top: an older Python must get as far as the sentence about its age

    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def is_satisfied(requirement: str) -> bool:
    """Whether what `.venv` holds meets the requirement: pip, cut off from every index, has nothing to do."""
    options = ["--isolated", "--no-index", "--no-deps", "--dry-run"]
    return in_venv("-m", "pip", "install", *options, requirement)


def pip(doing: str, *args: str) -> None:
    """`pip install ARGS` in `.venv` with a line of progress; SetupError with the log's end if it fails."""
    argv = [str(program("python")), "-m", "pip", "install", "--disable-pip-version-check", *args]
    code = run_logged(
        argv, LOG, lambda log: compiling() if b"Building wheel for llama" in log else doing, ROOT
    )
    if code:
        log = LOG.read_text(encoding="utf-8", errors="replace")
        remedy = next(
            (text for pattern, text in LOG_REMEDIES if pattern in log), "Run the same command again."
        )
        end = "\n".join(log.splitlines()[-40:])
        raise SetupError(f"{end}\n\npip ended with exit code {code}. {remedy} The whole log: {LOG}")


def compiling() -> str:
    if cmake_args():
        return f"compiling llama.cpp with {cmake_args()}, once (for a GPU this takes far longer than for the CPU)"
    return "compiling llama.cpp, 4 to 8 minutes on 2 cores, once"


# Running

TESTS_FAILED = 1
"""pytest's exit code for failed tests; others mean that it could not run, or was stopped."""


def launch(argv: list[str]) -> int:
    """Become the program, so that signals and the exit code are its own; on Windows wait for it instead."""
    if os.name == "posix":
        os.execv(argv[0], argv)
    return wait_for(argv)


def wait_for(argv: list[str]) -> int:
    """Run the program to its end. It gets Ctrl-C too and decides what that means; here it is ignored.

    KeyboardInterrupt is not caught instead: raised just after the program has ended, it would lose the exit code.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.Popen(argv).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def run_tests(args: list[str]) -> int:
    """Run pytest with these arguments. Without any: first the tests of the code, two at a time, then those on the real
    weights, one at a time, because they want both cores.
    """
    pytest = [str(program("python")), "-m", "pytest"]
    if args:
        return launch([*pytest, *args])
    if missing := no_display():
        say(missing)
    code = wait_for([*pytest, "-m", "not real", "-n", "2"])
    if code not in (0, TESTS_FAILED):
        return code
    return wait_for([*pytest, "-m", "real"]) or code


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in EXTRAS:
        asked = argv[:1] in (["-h"], ["--help"])
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    command, args = argv[0], argv[1:]
    try:
        check_python(sys.version_info[:2])
        setup(EXTRAS[command])
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from here.")
        return 130
    if command == "chat":
        return launch([str(program("localspec")), "chat", *args])
    if command == "soak":
        return launch([str(program("python")), str(ROOT / "scripts" / "soak.py"), *args])
    if command == "test":
        os.chdir(ROOT)
        return run_tests(args)
    say("Ready: python3 scripts/dev.py chat")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
