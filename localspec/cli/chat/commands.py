"""The commands of the conversation: what each is called, what stands behind it, and what does it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.cli.chat import files, models, settings, turns
from localspec.cli.options import flags
from localspec.cli.terminal import say

if TYPE_CHECKING:
    from localspec.cli.chat.talk import Chat


@dataclass(frozen=True)
class Command:
    """argument: what may stand behind it, "" for nothing. what: it does. run: does it."""

    argument: str
    what: str
    run: Callable[[Chat, str], None]


def show_help(_chat: Chat, _text: str) -> None:
    """All commands and keys."""
    for name, known in COMMANDS.items():
        say(f"  {f'/{name} {known.argument}'.strip():<23} {known.what}", hang=26)
    say(f"  {KEYS}", hang=2)


def leave(chat: Chat, _text: str) -> None:
    """The conversation ends."""
    chat.leaving = True


COMMANDS = {
    "help": Command("", "list the commands", show_help),
    "clear": Command("", "forget the conversation, keep the system prompt", turns.clear),
    "retry": Command("", "answer the last question again, with another seed", turns.retry),
    "edit": Command(
        "[new]", "change the last question in your editor and ask it; new: write one", turns.edit
    ),
    "undo": Command("", "take the last question and its answer back", turns.undo),
    "read": Command("[PATH]", "put a text file behind the next question; alone: none after all", files.read),
    "copy": Command(
        "[code]", "copy the last answer, or its last piece of code, as the model wrote it", turns.copy
    ),
    "system": Command("[TEXT]", "set the system prompt; without TEXT remove it", turns.system),
    "model": Command("[PAIR]", "go on with another pair, or GGUF file; alone: which it is", models.model),
    "set": Command(
        "[OPTION [VALUE]]", "change sampling, markdown or color; alone: show all", settings.set_option
    ),
    "draft": Command("[auto|off|N]", "tokens drafted per round from now on; alone: how many", settings.draft),
    "full": Command(
        "[MODE]", "when the context is full: error or drop_oldest; alone: what the model sees", turns.full
    ),
    "tokens": Command("", "what the conversation takes of the context, and what is left", turns.tokens),
    "save": Command("[NAME|PATH]", "save the conversation", files.save),
    "load": Command("NAME|PATH", "go on with one that was saved", files.load),
    "list": Command("", "the conversations that were saved, and the last ones", files.show_list),
    "stats": Command("", "figures of the last answer, and what they mean", turns.stats),
    "quit": Command("", "leave (so do /exit, /bye and Ctrl-D)", leave),
}
ALIASES = {"bye": "quit", "exit": "quit", "q": "quit", "?": "help", "regen": "retry"}
MEANT = {
    "new": "clear", "reset": "clear", "forget": "clear", "again": "retry", "redo": "retry", "regenerate": "retry",
    "back": "undo", "draft_tokens": "draft", "when_full": "full", "context": "tokens", "info": "stats", "file": "read",
    "attach": "read", "yank": "copy", "resume": "load", "open": "load", "sessions": "list", "history": "list",
    "pair": "model", "target": "model", "markdown": "set", "color": "set", "options": "set",
}  # fmt: skip
"""What other programs call it."""
PLAIN_WORDS = {"exit": "quit", "quit": "quit", "help": "help"}
"""Alone on a line they are commands: whoever types one means the program."""
KEYS = (
    '//text sends /text. Enter sends, Esc-Enter or Alt-Enter makes a new line; so does Enter between """ and """. '
    "Several lines that are pasted are one message. Tab completes commands and what stands behind them. "
    "Ctrl-X Ctrl-E opens the input in your editor. "
    "Ctrl-C stops an answer and keeps what is there, or empties the line. "
    "What is typed while an answer runs stands in the line after it, unsent."
)


def command(chat: Chat, line: str) -> None:
    """Do what a line says that begins with "/". Raises `LocalspecError`."""
    name, argument = [*re.split(r"\s", line[1:], maxsplit=1), ""][:2]
    typed, argument = name.lower(), argument.strip()
    known = COMMANDS.get(ALIASES.get(typed, typed))
    if known is None:
        say(f"There is no command /{typed}: {_hint(typed)}, and //{typed} sends the text to the model.")
    elif argument and not known.argument:
        say(f"/{typed} takes no text.")
    else:
        known.run(chat, argument)


def _hint(typed: str) -> str:
    """What may have been meant by a command that there is not; no full stop."""
    name = typed.replace("-", "_")
    if name not in MEANT:
        if name in settings.OPTIONS or settings.OTHERWISE.get(name) in settings.OPTIONS:
            return f"/set {settings.OTHERWISE.get(name, name).replace('_', '-')} VALUE changes that. /help lists all"
        if (option := flags().get(name)) is not None:
            return f"that is chosen at the start, by {option} of `localspec chat`. /help lists all"
    near = MEANT.get(name) or next(iter(difflib.get_close_matches(name, COMMANDS, n=1)), None)
    return "/help lists them" if near is None else f"did you mean /{near}? /help lists all"
