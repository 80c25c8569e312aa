"""How long a token takes beside other programs, plain and drafted, in answers that take turns.

    python scripts/beside_others.py TARGET.gguf [DRAFT.gguf] [--seconds 60] [--library auto|llama|ik]

The others are processes that never rest: none, one, two, and two that come and go every 5 seconds. Prints a line of
JSON for each: seconds of a token in the median and at most, how many tokens took more than a second, drafted tokens per
second as a share of plain ones, and the fewest threads. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pair_arguments import pair_parser

from localspec import LLM

QUESTION = "Explain in detail how a mechanical watch measures time, part by part."
TURN = 48
"""Tokens of an answer, before the other way of decoding has its turn."""
PERIOD = 5.0
"""Seconds that others who come and go stay, and stay away."""
SPIN = "while True: pass"


class Others:
    """Processes that never rest. comes_and_goes: they are there for PERIOD seconds, then away for as many."""

    def __init__(self, count: int, *, comes_and_goes: bool) -> None:
        self._count, self._comes_and_goes = count, comes_and_goes
        self._running: list[subprocess.Popen[bytes]] = []
        self._since = time.monotonic()
        self.arrivals = 0
        self._come()

    def _come(self) -> None:
        self._running = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(self._count)]
        self.arrivals += bool(self._count)

    def look_at_the_clock(self) -> None:
        """Come or go, if it is time."""
        if self._comes_and_goes and time.monotonic() - self._since >= PERIOD:
            self._since = time.monotonic()
            if self._running:
                self.go()
            else:
                self._come()

    def go(self) -> None:
        """End them."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running = []


@contextmanager
def others(count: int, *, comes_and_goes: bool = False) -> Iterator[Others]:
    """So many for the block."""
    made = Others(count, comes_and_goes=comes_and_goes)
    try:
        yield made
    finally:
        made.go()


def measure(llm: LLM, beside: Others, seconds: float) -> dict[str, object]:
    """Plain and drafted answers in turn until the time is up."""
    times: dict[str, list[float]] = {"off": [], "auto": []}
    threads = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for mode, taken in times.items():
            last = 0.0
            for chunk in llm.chat(
                [{"role": "user", "content": QUESTION}],
                draft_tokens=mode,
                max_tokens=TURN,
                temperature=0,
                ignore_eos=True,
            ):
                now = time.monotonic()
                if last and chunk.tokens:
                    taken += [(now - last) / len(chunk.tokens)] * len(chunk.tokens)
                beside.look_at_the_clock()
                last = time.monotonic()
                if chunk.completion is not None:
                    threads.append(chunk.completion.stats.threads or 0)
    plain, drafted = times["off"], times["auto"]
    return {
        "arrivals": beside.arrivals,
        "plain_median": round(statistics.median(plain), 4),
        "drafted_median": round(statistics.median(drafted), 4),
        "plain_most": round(max(plain), 3),
        "drafted_most": round(max(drafted), 3),
        "over_a_second": sum(taken > 1 for taken in plain + drafted),
        "drafted_share": round(statistics.fmean(plain) / statistics.fmean(drafted), 3),
        "tokens": len(plain) + len(drafted),
        "fewest_threads": min(threads),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = pair_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--library", default="auto")
    given = parser.parse_args()
    with LLM.from_files(given.target, given.draft, n_ctx=given.ctx_size, library=given.library) as llm:
        llm.calibrate()
        for count, comes_and_goes in ((0, False), (1, False), (2, False), (2, True), (0, False)):
            with others(count, comes_and_goes=comes_and_goes) as beside:
                found = measure(llm, beside, given.seconds)
            name = f"{count} that come and go" if comes_and_goes else str(count)
            print(json.dumps({"others": name, **found}), flush=True)


if __name__ == "__main__":
    main()
