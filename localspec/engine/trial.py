"""A first load in a child process: where a file ends it, the application lives and is told how."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localspec import errors
from localspec.decoding.session import Span
from localspec.engine.options import EngineOptions
from localspec.errors import LocalspecError, ModelLoadError
from localspec.system.child import run_in_child
from localspec.system.load_watch import check_cancelled

_ENTRY = "localspec.engine.trial:main"
SECONDS = 600.0
"""How long a first load may take."""
_NOT_TRUSTED = "Use another file of this model: this one is damaged, or not for this version of llama.cpp."
_WIDTHS = (1, 4, 8)
"""Tokens of the passes that are tried: their kernels differ."""


def try_load(target: Path, draft: Path | None, options: EngineOptions, *, seconds: float = SECONDS) -> None:
    """Load both files and compute a few tokens, in a child process that then ends, with the library of the options.

    Costs the time and the memory of one more load. Raises what the load raises, and `ModelLoadError` with `path` and
    `code` (negative for a signal, None for no end) where the child ended over it, was ended, or took longer than
    `seconds`. Raises `LoadCancelled` where this load is cancelled meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="localspec-trial-") as folder:
        notes = Path(folder) / "notes.json"
        order = {
            "notes": str(notes),
            "target": str(target.absolute()),
            "draft": None if draft is None else str(draft.absolute()),
            "options": asdict(options),
        }
        ended = run_in_child(_ENTRY, json.dumps(order), seconds, Path(folder), check_cancelled)
        known: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            known = json.loads(notes.read_text(encoding="utf-8"))
    if error := known.get("error"):
        kind = getattr(errors, error["kind"], LocalspecError)
        raise kind(error["message"], error["remedy"], command=error["command"], **error["data"])
    if ended.code != 0 or known.get("stage") != "done":
        names = " and ".join(path.name for path in (target, draft) if path)
        last = ended.said.splitlines()[-1:] if ended.code else []
        raise ModelLoadError(
            f"A first load of {names} in a process of its own {ended.how}, {known.get('stage', 'starting')}"
            f"{f': {last[0][-300:]}' if last else ''}.",
            _NOT_TRUSTED,
            path=str(target),
            code=ended.code,
        )


# In the child


def main(order: str) -> None:
    """The child: load, compute, and write down how far it came."""
    from localspec.engine.engine import Engine
    from localspec.engine.libraries import AUTO, named

    given = json.loads(order)
    notes = Path(given["notes"])

    def note(**facts: object) -> None:
        unfinished = notes.with_suffix(".part")
        unfinished.write_text(json.dumps(facts, default=str), encoding="utf-8")
        unfinished.replace(notes)

    note(stage="while it was loaded")
    try:
        options = EngineOptions(**given["options"])
        library = None if options.library == AUTO else named(options.library)
        engine = Engine(given["target"], given["draft"], options, library=library)
        note(stage="while it computed a few tokens")
        for context in (engine.target, engine.draft):
            if context is not None:
                _compute(context)
        engine.close()
    except LocalspecError as error:
        words = {"message": error.message, "remedy": error.remedy, "command": error.command}
        note(error={"kind": type(error).__name__, **words, "data": error.data})
        return
    note(stage="done")


def _compute(context: Any) -> None:
    start = 0
    for width in _WIDTHS:
        if start + width <= context.n_ctx:
            context.decode([Span(0, (0,) * width, start, 1)])
            start += width
    context.truncate(0, 1)
