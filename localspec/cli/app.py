"""The `localspec` command: a group whose commands load when they are called, and the one place for errors."""

from __future__ import annotations

import os
import traceback
from importlib import import_module

import click

from localspec.cli.terminal import drop_output, flushed_output, prepare_streams
from localspec.errors import LocalspecError

COMMANDS = {
    "chat": "localspec.cli.chat:chat",
    "pull": "localspec.cli.models:pull",
    "list": "localspec.cli.models:list_pairs",
    "rm": "localspec.cli.models:remove",
    "draft": "localspec.cli.draft:draft",
    "bench": "localspec.cli.bench:bench",
    "estimate": "localspec.cli.estimate:estimate",
    "calibrate": "localspec.cli.calibrate:calibrate",
}
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command's module on demand and turns every error into a sentence.

    Exit codes: 0 done, 1 an error (one sentence and its remedy on standard error), 2 wrong usage,
    130 stopped by Ctrl-C.
    """

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
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            drop_output()
            if not isinstance(error, BrokenPipeError):  # whoever read the answer has had enough
                _report(error)
            ctx.exit(1)


def _report(error: Exception) -> None:
    """Print the sentence and the remedy; the traceback only where LOCALSPEC_DEBUG asks for it."""
    if os.environ.get("LOCALSPEC_DEBUG"):
        traceback.print_exception(error)
    click.echo(f"error: {_sentence(error)}", err=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, LocalspecError):
        return f"{error.message}\n{error.remedy}".rstrip()
    if isinstance(error, MemoryError):
        return "there is not enough memory.\nUse a smaller -c/--ctx-size or a smaller model."
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
