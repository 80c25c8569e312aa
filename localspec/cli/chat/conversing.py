"""A conversation from its start to its end: the engine, the keyboard, what is kept, and the chat between them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localspec.cli import opening
from localspec.cli.chat.keyboard import Keyboard
from localspec.cli.chat.showing import Look
from localspec.cli.interrupts import Interrupts, interrupts_ignored
from localspec.cli.model_options import ModelOptions
from localspec.cli.terminal import say

if TYPE_CHECKING:
    from localspec.cli.chat.kept import Entry, Kept
    from localspec.llm import LLM


@dataclass(frozen=True)
class Manner:
    """How a conversation is held.

    keep: it, and what is typed, for later ones. go_on: with the last one that was kept.
    """

    system: str
    when_full: str
    look: Look
    keep: bool
    go_on: bool


def converse(options: ModelOptions, consent: opening.Consent, manner: Manner) -> None:
    """Hold it, until whoever types leaves. Raises `LocalspecError` for what cannot be loaded."""
    from localspec.cli.chat.kept import Kept, state_folder

    kept = Kept(state_folder() / "conversations", options.named(), by_itself=manner.keep)
    last = kept.newest() if manner.go_on else None
    if last is not None and not options.named():
        model = last.model.get
        options = replace(options, pair=model("pair"), target=model("target"), draft=model("draft"))
        kept.model = options.named()
    keyboard, interrupts = Keyboard(), Interrupts()
    attended = contextlib.ExitStack()

    def loaded() -> None:
        nonlocal interrupts
        interrupts = attended.enter_context(interrupts_ignored())
        attended.enter_context(keyboard.held())

    # Ended before the engine is closed, and also where nothing was read.
    with attended, opening.engine(options, consent, loading=keyboard.held, loaded=loaded) as llm, attended:
        if not consent.quiet:
            say("/help lists the commands, Ctrl-D leaves", dim=True)
        _attend(llm, options, manner, consent, kept, last, keyboard, interrupts)


def _attend(
    llm: LLM,
    options: ModelOptions,
    manner: Manner,
    consent: opening.Consent,
    kept: Kept,
    last: Entry | None,
    keyboard: Keyboard,
    interrupts: Interrupts,
) -> None:
    from localspec.cli.chat.line_editor import prompt_reader
    from localspec.cli.chat.talk import Chat
    from localspec.cli.chat.turns import counted, shortened

    chat = Chat(
        llm, options, manner.system, when_full=manner.when_full, quiet=consent.quiet,
        look=manner.look, kept=kept, lent=keyboard.lent,
    )  # fmt: skip
    if last is not None:
        chat.go_on(last)
        chat.conversation.system = manner.system or chat.conversation.system
        turns = chat.conversation.turns
        if not consent.quiet:
            say(f"Going on with {counted(len(turns))}, the last: {shortened(turns[-1].question)}", dim=True)
    read = prompt_reader(keyboard, interrupts, keep=manner.keep, kept=kept, stopped=lambda: chat.stopped)
    chat.run(read)
