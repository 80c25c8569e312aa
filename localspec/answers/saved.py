"""Saved conversations: a file with the turns, their ids, and what was in the models' cells.

The file is a zip archive without compression, whose sums tell damage: conversation.json, and target.kv and draft.kv.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.answers.saved_options import packed_options, unpacked_options
from localspec.answers.turn import Turn
from localspec.checks import check_when_full, checked_path
from localspec.decoding.session import Session, common_prefix
from localspec.engine.engine import Engine
from localspec.errors import ConversationFileError, StateError
from localspec.text.continuation import Said

FORMAT = 2
"""1 knew no dropped turns, and is read still; neither need hold options."""
WORTH = 0.5
"""Cells are saved where they hold at least this share of the conversation; the rest is read again."""
_HEADER = "conversation.json"


@dataclass(frozen=True)
class Cells:
    """What one model's cells hold for the first `length` of the ids that it reads. facts: all that it depends on."""

    length: int
    facts: dict[str, Any]
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Saved:
    """What the file holds. cells: by "target" and "draft", those that were worth it.

    options, when_full: the conversation's own.
    """

    system: str
    turns: tuple[Turn, ...]
    cells: dict[str, Cells]
    options: dict[str, Any] = field(default_factory=dict)
    when_full: str = "error"


def saved_cells(engine: Engine, ids: Sequence[int]) -> dict[str, Cells]:
    """The cells of both models for the conversation `ids`, as far as they are there. The engine must be idle."""
    found = {}
    for name, session in engine.sessions.items():
        own = engine.read_by(name, ids)
        length = common_prefix(session.tokens, own)
        if not length or length < WORTH * len(own):
            continue
        session.rollback(length)
        with suppress(StateError):  # the conversation is then read again
            tokens, data = session.save()
            if len(tokens) == length:
                found[name] = Cells(length, _facts(engine, name), data)
    return found


def restore_cells(engine: Engine, ids: Sequence[int], cells: dict[str, Cells]) -> str:
    """Put saved cells into the models, which must be idle; says in a sentence what became of them."""
    notes = (
        [] if "target" in cells else ["The target's state was not saved, so the conversation is read again."]
    )
    if cells and not engine.sessions:
        notes = [
            "The models are in another process, which takes no saved state: the conversation is read again."
        ]
    for name, session in engine.sessions.items():
        session.rollback(0)
        if name not in cells:
            continue
        if cells[name].facts != _facts(engine, name):
            note = (
                f"The {name} or its settings are not those it was saved with: the conversation is read again."
            )
        elif not _restore(session, own := engine.read_by(name, ids), cells[name]):
            note = f"The saved state of the {name} was refused: the conversation is read again."
        else:
            note = f"The {name}'s state of {len(session.tokens)} of {len(own)} tokens is restored."
        notes.append(note)
    return " ".join(notes)


def _restore(session: Session, ids: Sequence[int], cells: Cells) -> bool:
    try:
        session.restore(ids[: cells.length], cells.data)
    except StateError:
        return False
    return True


def write_saved(path: str | os.PathLike[str], saved: Saved, engine: Engine) -> None:
    """Write the file, readable by its owner alone, at once or not at all.

    Raises `ConversationFileError`, `InvalidRequest` for options that no answer could have.
    """
    path = checked_path("path", path)
    header = {
        "format": FORMAT,
        "vocabulary": _vocabulary(engine),
        "system": saved.system,
        "options": packed_options(saved.options),
        "when_full": check_when_full(saved.when_full),
        "turns": _packed(saved.turns),
        "cells": {
            name: {"length": cells.length, "facts": cells.facts} for name, cells in saved.cells.items()
        },
    }
    unfinished = None
    try:
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(_HEADER, json.dumps(header))
                for name, cells in saved.cells.items():
                    archive.writestr(f"{name}.kv", cells.data)
            file.flush()
            os.fsync(file.fileno())
        Path(unfinished).replace(path)
        unfinished = None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ConversationFileError(
            f"The conversation cannot be written to {path}: {reason}.",
            "Choose another place.",
            path=str(path),
        ) from error
    finally:  # also after Ctrl-C
        if unfinished is not None:
            with suppress(OSError):
                Path(unfinished).unlink()


def is_saved(path: Path) -> bool:
    """Whether that file is a saved conversation, by its form alone."""
    if not path.is_file():  # a pipe would never end
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return _HEADER in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def read_saved(path: str | os.PathLike[str], engine: Engine) -> Saved:
    """Read and check the file. Raises `ConversationFileError` where it is damaged, or of another vocabulary."""
    path = checked_path("path", path)
    try:
        header, states = _unzip(path)
        if header["format"] not in (1, FORMAT):
            raise ConversationFileError(
                f"{path} has the format {header['format']!r:.40}, and this version knows 1 and {FORMAT}.",
                "Use the version of localspec that wrote it.",
                path=str(path),
            )
        if header["vocabulary"] != _vocabulary(engine):
            raise ConversationFileError(
                f"{path} was saved with a model of another vocabulary than {engine.vocab.name}: its ids "
                "mean other texts.",
                "Load the model it was saved with, or start anew from its messages.",
                path=str(path),
            )
        cells = {
            name: Cells(int(entry["length"]), dict(entry["facts"]), states[name])
            for name, entry in header["cells"].items()
        }
        return Saved(
            _text(header["system"]),
            _unpacked(header["turns"], engine.target.n_vocab),
            cells,
            unpacked_options(header.get("options", {})),
            check_when_full(header.get("when_full", "error")),
        )
    except (ConversationFileError, MemoryError):
        raise
    except FileNotFoundError:
        raise ConversationFileError(f"There is no file {path}.", "Check the path.", path=str(path)) from None
    except IsADirectoryError:
        raise ConversationFileError(f"{path} is a directory.", "Give a file.", path=str(path)) from None
    except zipfile.BadZipFile as error:
        what = f"is a damaged conversation: {error}" if _begins_as_saved(path) else "is no saved conversation"
        raise ConversationFileError(
            f"{path} {what}.",
            "Give a file that `Conversation.save` wrote.",
            command="Give a file that /save wrote.",
            path=str(path),
        ) from error
    except Exception as error:  # zip and JSON have a dozen ways to say it
        raise ConversationFileError(
            f"{path} is no saved conversation, or it is damaged: {type(error).__name__}: {str(error)[:100]}.",
            "Use another copy of it.",
            path=str(path),
        ) from error


def _begins_as_saved(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"PK\3\4"
    return False


def _unzip(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device may never end
        raise ValueError("it is no regular file")
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")
        names = [name for name in archive.namelist() if name.endswith(".kv")]
        return json.loads(archive.read(_HEADER)), {name[:-3]: archive.read(name) for name in names}


def _packed(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """A prompt mostly begins as the one after it does: that part is written once."""
    packed: list[dict[str, Any]] = []
    following: Sequence[int] = ()
    for turn in reversed(turns):
        shared = common_prefix(turn.said.prompt, following)
        packed.append(
            {
                "question": turn.question,
                "answer": turn.answer,
                "attempt": turn.attempt,
                "dropped": turn.dropped,
                "shared": shared,
                "prompt": list(turn.said.prompt[shared:]),
                "ids": list(turn.said.ids),
                "digest": turn.said.digest,
            }
        )
        following = turn.said.prompt
    return packed[::-1]


def _unpacked(packed: list[dict[str, Any]], n_vocab: int) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    following: tuple[int, ...] = ()
    for index, entry in reversed(list(enumerate(packed))):
        prompt = (*following[: int(entry["shared"])], *entry["prompt"])
        ids, answer = tuple(entry["ids"]), _text(entry["answer"])
        if (ids and not prompt) or not all(
            type(token) is int and 0 <= token < n_vocab for token in (*prompt, *ids)
        ):
            raise ValueError("a token id is outside the vocabulary")
        dropped = entry.get("dropped", 0)
        if type(dropped) is not int or not 0 <= dropped <= index:
            raise ValueError("more turns are dropped than there are")
        said = Said(prompt, _text(entry["digest"]), ids, answer)
        turns.append(Turn(_text(entry["question"]), answer, int(entry["attempt"]), said, dropped))
        following = prompt
    return tuple(turns[::-1])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _context(engine: Engine, name: str) -> Any:
    return engine.target if name == "target" else engine.draft


def _vocabulary(engine: Engine) -> str:
    facts = engine.target.weights.metadata
    digest = hashlib.sha256(f"{facts.tokenizer_model} {facts.tokenizer_pre} {len(facts.tokens)}".encode())
    digest.update(b"\0".join(facts.tokens))
    digest.update(facts.token_types)
    return digest.hexdigest()


def _facts(engine: Engine, name: str) -> dict[str, Any]:
    """Everything that the numbers in a model's cells depend on."""
    context, described = _context(engine, name), engine.describe()[name]
    assert isinstance(described, dict)
    facts = context.weights.metadata
    values = hashlib.sha256(repr(sorted(facts.key_values.items())).encode("utf-8", "replace")).hexdigest()
    settings = ("n_ctx", "n_batch", "gpu_layers", "cache_type_k", "cache_type_v", "repack", "strict")
    return {
        "file": facts.path.name,
        "bytes": facts.size_bytes,
        "key_values": values,
        "build": context.weights.build,
        "machine": [platform.machine(), platform.processor()],
        **{setting: described[setting] for setting in settings},
    }
