"""A chat whose answers come at a pace that can be watched: `python -m tests.paced_llm` is the command line."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.answers.request import Chunk
from localspec.cli import main, opening
from localspec.decoding.stats import Stats
from tests.fake_llm import FakeLLM, Messages


class PacedLLM(FakeLLM):
    """To `show PATH` it answers the text of that file, a word at a time; every second word is a drafted one."""

    seconds = float(os.environ.get("PACE", "0.01"))

    def _pieces(self, kind: str, messages: Messages) -> Iterator[str]:
        if kind != "show":
            yield from super()._pieces(kind, messages)
            return
        text = Path(messages[-1]["content"].split()[1]).read_text(encoding="utf-8")
        for word in re.findall(r"\s*\S+", text):
            if self._cancelled.wait(self.seconds):
                return
            yield word

    def _chunks(self, *arguments: Any) -> Iterator[Chunk]:
        for number, chunk in enumerate(super()._chunks(*arguments)):
            if chunk.completion is None:
                counted = Stats(
                    tokens=40 + number, rounds=9, decode_seconds=4.0, plain_seconds=5.6, drafted=9, accepted=7
                )
                chunk = replace(chunk, drafted=(number % 2 == 1,) * len(chunk.tokens), stats=counted)
            yield chunk


def _loaded(_options: object, _notify: object) -> PacedLLM:
    time.sleep(float(os.environ.get("LOAD", "0")))
    return PacedLLM()


if __name__ == "__main__":
    opening.open_engine = _loaded  # type: ignore[assignment]
    main()
