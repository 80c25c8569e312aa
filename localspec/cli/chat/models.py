"""The command that goes on with another model."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from localspec.cli import opening
from localspec.cli.options import in_flags
from localspec.cli.terminal import say
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.cli.chat.talk import Chat
    from localspec.llm import LLM


def model(chat: Chat, text: str) -> None:
    """Go on with what `text` names; where that cannot be, the present model stays."""
    if not text:
        say(f"The model is {chat.options.title()}. /model PAIR goes on with another one.", dim=True)
        return
    options = replace(chat.options, pair=text, target=None, draft=None, no_draft=False)
    try:
        llm = _loaded(chat, options)
        try:
            chat.use(llm, options)
        except BaseException:
            llm.close()
            raise
    except click.UsageError as error:
        say(f"{error.format_message()}\n{_stays(chat)}")
    except LocalspecError as error:
        say(f"error: {error.message}\n{error.command}\n{_stays(chat)}".replace("\n\n", "\n"))
    except KeyboardInterrupt:
        say(f"Stopped. {_stays(chat)}")
    else:
        for warning in llm.warnings:
            say(f"warning: {in_flags(warning)}")
        if not chat.quiet:
            say(opening.introduction(options, llm), dim=True)


def _loaded(chat: Chat, options: object) -> LLM:
    """The weights of the present model are given back meanwhile: it loads them again when it is asked."""
    from localspec.cli.model_options import ModelOptions

    assert isinstance(options, ModelOptions)
    consent = opening.Consent(yes=False, offline=True, quiet=chat.quiet)
    options.check()
    opening.fetch(options, consent)
    chat.llm.unload()
    with _interruptible():
        return opening.load(options, consent)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt in the block."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _stays(chat: Chat) -> str:
    return f"{chat.options.title()} stays."
