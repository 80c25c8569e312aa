"""Writes docs/commands.md from the commands themselves: `python3 scripts/write_commands.py [--check]`.

With --check nothing is written, and the exit code is 1 if the file is not what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from localspec.cli import main as localspec  # noqa: E402

FILE = ROOT / "docs" / "commands.md"
WIDTH = 100
"""Columns of help pages, whatever the terminal has."""
INTRO = """\
# Commands

<!-- Written by scripts/write_commands.py: change that, or the help of the command. -->

`localspec COMMAND --help` shows the same as this page. Further examples are in [Models](models.md),
[Performance](performance.md), [Exactness](exactness.md) and [Troubleshooting](troubleshooting.md).

```
localspec chat smollm2-135m                      # another pair than the default one: 98 MB, a quick start
localspec chat --json -p "Name three rivers"     # text, ids, statistics, settings, sampling
localspec chat -m target.gguf -md draft.gguf     # files of your own
localspec chat --temp 0 --max-tokens 200 --draft-tokens 4
localspec chat --temp 0 --json-schema '{"type": "object"}' -p "Name three rivers, as JSON"
localspec chat --grammar 'root ::= "yes" | "no"' -p "Is the sky blue?"
```

In a conversation `/help` lists the commands; Ctrl-C stops the answer and keeps what was said. What you type is kept for
the next conversation in `chat-history`, in localspec's folder or your system's state folder, readable by you alone.

Exit codes: 0 done, 1 an error (one sentence and its remedy on standard error), 2 wrong usage, 130 stopped by Ctrl-C,
143 by SIGTERM.
"""


def commands_page() -> str:
    """The text of the whole page."""
    return INTRO + "".join(map(_section, _contexts()))


def _contexts() -> Iterator[click.Context]:
    """Contexts of the group and of each command, in the order of the help page."""
    assert isinstance(localspec, click.Group)
    top = _context(localspec, "localspec")
    yield top
    for name in localspec.list_commands(top):
        command = localspec.get_command(top, name)
        assert command is not None, name
        yield _context(command, f"localspec {name}")


def _context(command: click.Command, name: str) -> click.Context:
    return command.context_class(
        command,
        info_name=name,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )


def _section(context: click.Context) -> str:
    lines = [line.rstrip() for line in context.get_help().strip().splitlines()]
    return "\n".join(["", f"## {context.info_name}", "", "```text", *lines, "```", ""])


def run(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    page = commands_page()
    if not arguments:
        FILE.write_text(page, encoding="utf-8", newline="\n")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == page:
        return 0
    print("docs/commands.md is out of date: run python3 scripts/write_commands.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
