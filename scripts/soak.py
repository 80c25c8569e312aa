"""Four clients on one engine for so many minutes: every greedy answer must be the one it gets alone, and memory flat.

    python scripts/soak.py MINUTES TARGET.gguf [DRAFT.gguf]

One request in ten is dropped after its first pieces, others are cancelled or make no sense. The engine is strict, so
that answers can be compared to the last bit. Prints one line of JSON; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from localspec import LLM
from localspec.errors import LocalspecError, PromptTooLong

CLIENTS = 4
FLAT = 0.02
TEXTS = (
    "Write a function that sorts a list. ",
    "Once upon a time there was a king. ",
    "def parse(line):\n    ",
)
LENGTHS = (8, 40, 160, 400)
BAD: tuple[dict[str, object], ...] = (
    {"temperature": -1.0},
    {"max_tokens": "many"},
    {"no_such_option": 1},
    {"draft_tokens": -3},
)
Question = tuple[str, int]


def questions() -> list[Question]:
    """Prompts and answer lengths."""
    return [
        (f"{number}: " + text * (length // 8), 8 + length % 48)
        for number, text in enumerate(TEXTS)
        for length in LENGTHS
    ]


def solo(llm: LLM, asked: list[Question]) -> dict[Question, tuple[int, ...]]:
    """Each answer from an engine that has forgotten everything else; what the context cannot hold is left out."""
    answers = {}
    for prompt, max_tokens in asked:
        llm.forget()
        with suppress(PromptTooLong):
            answers[prompt, max_tokens] = llm.generate(prompt, temperature=0, max_tokens=max_tokens).ids
    return answers


class Client(threading.Thread):
    """Asks until the deadline; counts what came out."""

    def __init__(self, llm: LLM, alone: dict[Question, tuple[int, ...]], until: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.counts: Counter[str] = Counter()
        self._llm, self._alone, self._until = llm, alone, until
        self._random = random.Random(seed)

    def run(self) -> None:
        """One request after the other."""
        while time.monotonic() < self._until:
            try:
                self._ask()
            except Exception as error:
                self.counts["failed"] += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)

    def _ask(self) -> None:
        question = self._random.choice(list(self._alone))
        prompt, max_tokens = question
        kind = self._random.random()
        if kind < 0.05:
            self._nonsense(prompt)
            return
        stream = self._llm.stream(prompt, temperature=0, max_tokens=max_tokens)
        if kind < 0.15:
            for _ in range(self._random.randrange(3)):
                next(stream, None)
            stream.close()
            self.counts["dropped"] += 1
            return
        timer = threading.Timer(self._random.random(), stream.cancel) if kind < 0.25 else None
        if timer:
            timer.start()
        completion = list(stream)[-1].completion
        if timer:
            timer.cancel()
        assert completion is not None, "the last chunk carries the completion"
        expected = self._alone[question]
        cancelled = completion.finish_reason == "cancelled"
        right = completion.ids == (expected[: len(completion.ids)] if cancelled else expected)
        self.counts["cancelled" if cancelled else "answered"] += 1
        self.counts["wrong"] += not right
        self.counts["cached"] += completion.stats.cached_tokens > 0

    def _nonsense(self, prompt: str) -> None:
        try:
            self._llm.generate(prompt, **self._random.choice(BAD))  # type: ignore[arg-type]
        except LocalspecError:
            self.counts["refused"] += 1
        else:
            self.counts["wrong"] += 1


def watch_memory(until: float, every: float) -> list[int]:
    """Bytes of this process, from now to the deadline."""
    import psutil

    held = []
    while time.monotonic() < until:
        held.append(int(psutil.Process().memory_info().rss))
        time.sleep(every)
    return held


def growth(held: list[int]) -> float:
    """How much more the last quarter holds than the second one; the first is the warm-up."""
    quarter = max(len(held) // 4, 1)
    early, late = held[quarter : 2 * quarter] or held, held[-quarter:]
    return statistics.median(late) / statistics.median(early) - 1


def soak(llm: LLM, minutes: float, seed: int) -> dict[str, object]:
    """The result, ready for JSON."""
    alone = solo(llm, questions())
    llm.forget()
    until = time.monotonic() + 60 * minutes
    clients = [Client(llm, alone, until, seed + number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    held = watch_memory(until, every=min(5.0, minutes))
    for client in clients:
        client.join(600)
    counts = sum((client.counts for client in clients), Counter[str]())
    names = ("answered", "cached", "dropped", "cancelled", "refused", "failed", "wrong")
    grown, stuck = growth(held), sum(client.is_alive() for client in clients)
    ok = not counts["wrong"] and not counts["failed"] and not stuck and grown <= FLAT
    return {
        "ok": bool(ok and counts["answered"]),
        "minutes": minutes,
        **{name: counts[name] for name in names},
        "stuck": stuck,
        "memory_growth": round(grown, 4),
        "memory_bytes": held[-1],
        "kept_prefixes": llm.settings["kept_prefixes"],
    }


def main() -> int:
    """Run it and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("minutes", type=float)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("-c", "--ctx-size", type=int, default=2048)
    parser.add_argument("-s", "--seed", type=int, default=0)
    parser.add_argument("--loose", action="store_true", help="not in strict mode: close calls may differ")
    given = parser.parse_args()
    with LLM.from_files(
        given.target, given.draft, n_ctx=given.ctx_size, draft_tokens=3, strict=not given.loose
    ) as llm:
        result = soak(llm, given.minutes, given.seed)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
