"""Commands about files: conversations that are saved, and texts that are asked about."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.checks import user_path
from localspec.cli.chat.kept import Entry, is_name, name_for
from localspec.cli.chat.turns import counted, seen, shortened
from localspec.cli.terminal import LARGEST_INPUT, say, utf8_text
from localspec.errors import ConversationFileError, InvalidRequest

if TYPE_CHECKING:
    from localspec.cli.chat.talk import Chat


def save(chat: Chat, text: str) -> None:
    """By a name, in localspec's folder, or to any other file."""
    from localspec.answers.saved import is_saved

    turns = len(chat.conversation.turns)
    if not turns:
        say("There is nothing to save.")
        return
    name = text or name_for(chat.conversation)
    if chat.kept is not None and is_name(name):
        chat.kept.save(chat.conversation, name)
        say(f"Saved {counted(turns)}: /load {name} goes on with it.", dim=True)
        return
    path = user_path(name)
    if os.path.lexists(path) and not is_saved(path):
        say(f"{path} is there and is no saved conversation: nothing was written. Give another name.")
    else:
        chat.conversation.save(path)
        say(f"Saved {counted(turns)} to {path}.", dim=True)


def load(chat: Chat, text: str) -> None:
    """Go on with one that was saved, by name or path."""
    if not text:
        say("/load takes the name of a saved conversation, which /list shows, or the path of a file.")
        return
    chat.go_on(_entry(chat, text))
    loaded = f"Loaded {counted(len(chat.conversation.turns))}."
    if chat.conversation.dropped:
        loaded = f"{loaded} {seen(chat)}"
    say(f"{loaded} {chat.conversation.restored}".strip(), dim=True)


def _entry(chat: Chat, text: str) -> Entry:
    """Raises `ConversationFileError` for a name that there is not."""
    if chat.kept is not None and is_name(text):
        for entry in chat.kept.entries():
            if entry.name == text:
                return entry
        if not os.path.isfile(text):  # noqa: PTH113 - that of pathlib raises for a long text
            raise ConversationFileError(
                f"There is no saved conversation {text!r}.",
                "Check its name.",
                command="/list shows them all.",
            )
    return Entry(Path(user_path(text)), 0.0, 0, "", {}, by_itself=False)


def show_list(chat: Chat, _text: str) -> None:
    """All that /load knows by name."""
    entries = chat.kept.entries() if chat.kept is not None else []
    if not entries:
        say("No conversation is saved yet.")
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.seconds))
        model = " + ".join(entry.model.values())
        about = ", ".join(
            part for part in (when, counted(entry.turns), model, shortened(entry.question)) if part
        )
        say(f"  {entry.name:<25} {about}", hang=28)


def read(chat: Chat, text: str) -> None:
    """Put a text file behind the next question."""
    if not text:
        names = ", ".join(file_names(chat))
        chat.files.clear()
        say(f"Taken back: {names}." if names else "/read takes the path of a text file.", dim=bool(names))
        return
    path = _meant(text)
    chat.files[path] = found = _text_of(path)
    if not chat.quiet:
        with chat.llm.using() as engine:
            count = len(engine.vocab.tokenize(found, parse_special=False))
        name = dict(zip(chat.files, file_names(chat), strict=True))[path]
        say(
            f"{name} stands behind the next question, about {count} tokens. /read alone takes it back.",
            dim=True,
        )


def file_names(chat: Chat) -> list[str]:
    """What the files behind the next question are called: by name, and by path where several have that name."""
    names = [path.name for path in chat.files]
    said = [path.name if names.count(path.name) == 1 else str(path) for path in chat.files]
    return [name.encode("utf-8", "replace").decode() for name in said]  # they stand in the question


def _meant(text: str) -> Path:
    """A path as it is typed, or as a shell and a terminal into which a file is dropped write it: in quotes, or with a
    backslash before each blank.
    """
    path = user_path(text)
    if os.path.lexists(path):
        return path
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that nothing closes
        return path
    unquoted = user_path(words[0]) if len(words) == 1 else path
    return unquoted if os.path.lexists(unquoted) else path


def _text_of(path: Path) -> str:
    """Raises `InvalidRequest` for what is no text, or cannot be read."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InvalidRequest(f"{path} is no regular file.", "Give a text file.")
        with path.open("rb") as file:
            data = file.read(LARGEST_INPUT + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"{path} cannot be read: {reason}.", "Check the path.") from error
    found = utf8_text(str(path), data)
    if not found.strip():
        raise InvalidRequest(f"{path} is empty.", "Give a file with some text.")
    return found
