"""Writes docs/commands.md from the commands themselves: `python3 scripts/write_commands.py [--check]`.

With --check nothing is written, and the exit code is 1 if the file is not what would be written.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from localspec.cli import main as localspec  # noqa: E402

FILE = ROOT / "docs" / "commands.md"
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

In a conversation `/help` lists the commands; [chat.md](chat.md) explains them, and the keys. What you type is kept for
the next one in a file `chat-history`, and the last 30 conversations in a folder `conversations`, both readable by you
alone: in the folder that `LOCALSPEC_HOME` names, where that is set, else in `~/.local/state/localspec` (Linux),
`~/Library/Application Support/localspec` (macOS) or `%LOCALAPPDATA%\\localspec` (Windows). Delete them to forget all
of it; with `--no-history` a conversation neither reads nor writes them, but for what you `/save`.

Exit codes: 0 done, 1 an error (one sentence and its remedy on standard error), 2 wrong usage, 130 stopped by Ctrl-C,
143 by SIGTERM, 129 by the end of the terminal.
"""


def commands_page() -> str:
    """The whole file."""
    return INTRO + "".join(map(_section, _contexts()))


def _contexts() -> Iterator[click.Context]:
    """The group's and each command's, in the order of the help page."""
    assert isinstance(localspec, click.Group)
    top = _context(localspec, "localspec")
    yield top
    for name in localspec.list_commands(top):
        command = localspec.get_command(top, name)
        assert command is not None, name
        yield _context(command, f"localspec {name}")


def _context(command: click.Command, name: str) -> click.Context:
    return command.context_class(command, info_name=name, help_option_names=["-h", "--help"])


def _section(context: click.Context) -> str:
    """Made of what the command is, not of click's page, whose layout another version of click may change."""
    command = context.command
    usage = " ".join(["usage:", str(context.info_name), *command.collect_usage_pieces(context)])
    lines = [
        "",
        f"## {context.info_name}",
        "",
        "```text",
        usage,
        "```",
        "",
        *_paragraphs(command.help or ""),
        "",
    ]
    return "\n".join([*lines, *_commands(context), *_options(context), ""])


def _paragraphs(text: str) -> list[str]:
    """The help as Markdown, without click's marks."""
    return [line.strip() for line in inspect.cleandoc(text).splitlines() if line.strip() != "\b"]


def _commands(context: click.Context) -> Iterator[str]:
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None, name
            yield f"- `{name}`: {command.get_short_help_str(limit=1000)}"


def _options(context: click.Context) -> Iterator[str]:
    for param in context.command.get_params(context):
        record = param.get_help_record(context)
        if record and record[1]:
            yield f"- `{record[0]}`: {' '.join(record[1].split())}"


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
