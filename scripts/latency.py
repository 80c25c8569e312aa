"""How soon a cancel returns, and how long other threads wait, on a real pair; run it on an idle machine.

    python scripts/latency.py TARGET.gguf [DRAFT.gguf]

A ticker thread wants to run every 20 ms, as a user interface does. Prints one line of JSON: seconds from a cancel to
the return of what it stopped (in a load, in a prefill, in decoding), the ticker's longest gap in each, how much
slower decoding is beside it, and how much more memory is held after loading and closing again and again. For a
server see latency_server.py.
"""

from __future__ import annotations

import gc
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from pair_arguments import pair_parser

from localspec import LLM
from localspec.engine.loading import Loading
from localspec.errors import LocalspecError

TICK = 0.02
LOAD_SHARES = (0.05, 0.2, 0.4, 0.6, 0.75, 0.85, 0.95)
PREFILL_SHARE, DECODE_SECONDS = 0.3, 1.0
"""When the cancel comes: after these shares of a whole load and prefill, and after so many seconds of decoding."""


class Ticker(threading.Thread):
    """Wakes every 20 ms. longest: seconds between two wakes, at most."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Tick until `end`."""
        last = time.perf_counter()
        while not self._stop_asked.wait(TICK):
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now

    def end(self) -> None:
        """Stop and wait for it."""
        self._stop_asked.set()
        self.join()


@contextmanager
def ticking() -> Iterator[Ticker]:
    """A ticker that runs beside the block."""
    ticker = Ticker()
    ticker.start()
    try:
        yield ticker
    finally:
        ticker.end()


def cancelled_after(delay: float, work: Callable[[], object], cancel: Callable[[], object]) -> float | None:
    """Seconds from a cancel to the end of `work`; None if that ended before the cancel came."""
    asked: list[float] = []

    def stop() -> None:
        asked.append(time.perf_counter())
        cancel()

    timer = threading.Timer(delay, stop)
    timer.start()
    with suppress(LocalspecError):
        work()
    ended = time.perf_counter()
    timer.cancel()
    timer.join()
    return ended - asked[0] if asked and asked[0] < ended else None


def measure_load(begin: Callable[[], Loading[LLM]]) -> dict[str, object]:
    """A load beside the ticker, and loads that are cancelled at several moments."""
    begin().result().close()  # the files are in memory from here on
    started = time.perf_counter()
    with ticking() as ticker:
        llm = begin().result()
    seconds = time.perf_counter() - started
    llm.close()
    freed = {}
    for share in LOAD_SHARES:
        loading = begin()
        back = cancelled_after(share * seconds, lambda loading=loading: loading.result(), loading.cancel)  # type: ignore[misc]
        if back is None:
            loading.result().close()
        freed[share] = back
    return {"seconds": seconds, "freed_after_cancel": freed, "longest_gap": ticker.longest}


def measure_loads(begin: Callable[[], Loading[LLM]], loads: int) -> dict[str, object]:
    """Load, answer and close `loads` times: bytes held by the process after the first fifth, and at the end."""
    held = []
    for _ in range(loads):
        with begin().result() as llm:
            llm.generate("Once upon a time", max_tokens=4, temperature=0)
        gc.collect()
        held.append(int(psutil.Process().memory_info().rss))
    return {"loads": loads, "early_bytes": held[loads // 5], "late_bytes": held[-1], "most_bytes": max(held)}


def measure_prefill(llm: LLM, num_tokens: int) -> dict[str, object]:
    """Reading a long prompt beside the ticker, and one that is cancelled."""
    ids = [100 + index % 97 for index in range(num_tokens)]

    def read() -> None:
        llm.generate(ids, max_tokens=1, temperature=0)

    llm.forget()
    started = time.perf_counter()
    with ticking() as ticker:
        read()
    seconds = time.perf_counter() - started
    llm.forget()
    back = cancelled_after(PREFILL_SHARE * seconds, read, llm.cancel)
    return {"tokens": num_tokens, "seconds": seconds, "cancel_seconds": back, "longest_gap": ticker.longest}


def measure_decode(llm: LLM, num_tokens: int, turns: int) -> dict[str, object]:
    """Decoding with and without the ticker, in turns, and one answer that is cancelled."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}
    speeds: dict[bool, list[float]] = {False: [], True: []}
    longest = 0.0
    for _ in range(turns):
        speeds[False].append(llm.generate("Once upon a time", **options).stats.tokens_per_second)
        with ticking() as ticker:
            speeds[True].append(llm.generate("Once upon a time", **options).stats.tokens_per_second)
        longest = max(longest, ticker.longest)
    back = cancelled_after(
        DECODE_SECONDS,
        lambda: llm.generate("Once upon a time", temperature=0, ignore_eos=True),
        llm.cancel,
    )
    alone, beside = statistics.median(speeds[False]), statistics.median(speeds[True])
    return {
        "tokens_per_second": alone,
        "slowdown": 1 - beside / alone if alone else None,
        "cancel_seconds": back,
        "longest_gap": longest,
    }


def main() -> int:
    """Measure and print."""
    parser = pair_parser(__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=3000)
    parser.add_argument("-n", "--max-tokens", type=int, default=150)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--loads", type=int, default=50, help="0: not that part")
    parser.add_argument("--draft-tokens", default="3", help="a number, off, or auto")
    given = parser.parse_args()
    draft_tokens = given.draft_tokens if given.draft_tokens in ("auto", "off") else int(given.draft_tokens)

    def begin() -> Loading[LLM]:
        return LLM.load_in_background(
            given.target, given.draft, n_ctx=given.ctx_size, draft_tokens=draft_tokens
        )

    result: dict[str, object] = {"load": measure_load(begin)}
    with begin().result() as llm:
        result["prefill"] = measure_prefill(llm, given.prompt_tokens)
        result["decode"] = measure_decode(llm, given.max_tokens, given.turns)
    if given.loads:
        result["loads"] = measure_loads(begin, given.loads)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
