"""The `localspec` command: a group whose commands load when they are called, and the one place for errors."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib import import_module
from types import FrameType
from typing import Any

import click

from localspec.cli.terminal import (
    columns_of,
    drop_output,
    flushed_output,
    prepare_streams,
    wrapped,
)
from localspec.errors import InvalidRequest, LocalspecError
from localspec.text.controls import printable

COMMANDS = {
    "chat": "localspec.cli.chat.command:chat",
    "app": "localspec.cli.desktop:app",
    "serve": "localspec.cli.serve:serve",
    "pull": "localspec.cli.pull:pull",
    "list": "localspec.cli.listing:list_pairs",
    "show": "localspec.cli.show:show",
    "rm": "localspec.cli.remove:remove",
    "verify": "localspec.cli.verify:verify",
    "prune": "localspec.cli.prune:prune",
    "add": "localspec.cli.add:add",
    "import": "localspec.cli.importing:import_files",
    "export": "localspec.cli.export:export",
    "check": "localspec.cli.check:check",
    "draft": "localspec.cli.draft:draft",
    "bench": "localspec.cli.bench:bench",
    "acceptance": "localspec.cli.acceptance:acceptance",
    "audit": "localspec.cli.audit:audit",
    "estimate": "localspec.cli.estimate:estimate",
    "calibrate": "localspec.cli.calibrate:calibrate",
    "suggest": "localspec.cli.suggest:suggest",
    "doctor": "localspec.cli.doctor:doctor",
}
MEANT = {
    "run": "chat",
    "ask": "chat",
    "ls": "list",
    "get": "pull",
    "download": "pull",
    "install": "pull",
    "remove": "rm",
    "delete": "rm",
    "info": "show",
}
"""What other programs call it."""
INTERRUPTED = 130
TERMINATED = 143
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


class LazyGroup(click.Group):
    """A group that imports a command's module on demand and turns every error into a sentence.

    Exit codes: 0 done, 1 an error (one sentence and its remedy on standard error), 2 wrong usage,
    130 stopped by Ctrl-C, 143 by SIGTERM.
    """

    def main(self, *args: Any, **extra: Any) -> Any:
        """Like click's. Output that fails before a command runs, such as a help page, ends in an exit code too."""
        if not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        with _terminable():
            try:
                return super().main(*args, **extra)
            except OSError as error:
                _give_up(error)
                sys.exit(1)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's; for a misspelt command the error suggests near names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = MEANT.get(args[0].lower())
            near = [meant] if meant else difflib.get_close_matches(args[0], COMMANDS, n=2)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from None

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names, in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; every exception leaves as an exit code."""
        prepare_streams()
        try:
            with flushed_output():
                super().invoke(ctx)
        except click.UsageError as error:
            raise _broken_at_words(error) from error
        except (click.ClickException, click.exceptions.Exit):
            raise
        except InvalidRequest as error:
            self._refuse(ctx, error)
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            _give_up(error)
            ctx.exit(1)

    def _refuse(self, ctx: click.Context, error: InvalidRequest) -> None:
        """Wrong usage where a flag's value is at fault, else an error like any other."""
        from localspec.cli.options import wrong_usage

        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        if command is not None and (usage := wrong_usage(error, command)) is not None:
            usage.ctx = click.Context(command, info_name=command.name, parent=ctx)
            raise _broken_at_words(usage) from error
        _give_up(error)
        ctx.exit(1)


def _broken_at_words(error: click.UsageError) -> click.UsageError:
    prefix = "Error: "  # click's own
    text = wrapped(f"{prefix}{printable(error.format_message())}", columns_of(sys.stderr))
    return click.UsageError(text.removeprefix(prefix), error.ctx)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the block as an exception would, so that no child process is left behind; a second one kills."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _give_up(error: Exception) -> None:
    """Say what went wrong, wherever something can still be said."""
    output_failed = drop_output() or (
        isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE
    )
    if not isinstance(error, BrokenPipeError):  # whoever read the answer has had enough
        with contextlib.suppress(OSError):
            _report(error, output_failed)
    drop_output()


def _report(error: Exception, output_failed: bool) -> None:
    """Print the sentence and the remedy; the traceback only where LOCALSPEC_DEBUG asks for it."""
    if os.environ.get("LOCALSPEC_DEBUG"):
        click.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
    text = printable(f"error: {_sentence(error, output_failed)}")
    click.echo(wrapped(text, columns_of(sys.stderr)), err=True)


def _sentence(error: Exception, output_failed: bool) -> str:
    if isinstance(error, LocalspecError):
        return f"{error.message}\n{error.command}".rstrip()
    if isinstance(error, MemoryError):
        return "there is not enough memory.\nUse a smaller -c/--ctx-size or a smaller model."
    if isinstance(error, OSError) and output_failed:
        return (
            f"standard output cannot be written: {error.strerror or error}.\n"
            "Free some space there, or send it elsewhere."
        )
    what = " ".join(str(error).split())
    return f"{type(error).__name__}: {what}\nThis was not expected: LOCALSPEC_DEBUG=1 shows the traceback."


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from localspec import __version__

        click.echo(f"localspec {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, name="localspec", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run quantized GGUF models on this machine by speculative decoding: a small draft model proposes tokens,
    the target checks them, and the answer is the target's own."""
