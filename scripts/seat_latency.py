"""How long answers wait for each other in seats: a short question beside a long prompt, and pauses of a running answer.

    python scripts/seat_latency.py PAIR [--library NAME] [--tokens 3000] [--runs 3]

One client reads a prompt of so many tokens. Meanwhile an answer that began before goes on, and a short question comes.
The last line is JSON: seconds, medians over the runs, and the longest pause of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from itertools import pairwise

from localspec import LLM

SHORT = [{"role": "user", "content": "Name a river."}]
RUNNING = [{"role": "user", "content": "Tell a long story about a lighthouse keeper."}]


def long_prompt(llm: LLM, num_tokens: int, run: int) -> list[int]:
    """Ids of a text that no run before had."""
    text = (
        f"Minutes number {run}. "
        + "The members spoke about the budget and asked for figures by next week. " * 400
    )
    return llm.tokenize(text)[:num_tokens]


def first_token(llm: LLM, run: int) -> float:
    """Seconds to the first token of the short question."""
    started = time.perf_counter()
    stream = llm.chat(
        [{"role": "user", "content": f"{SHORT[0]['content']} ({run})"}], max_tokens=4, draft_tokens="off"
    )
    next(stream)
    elapsed = time.perf_counter() - started
    list(stream)
    return elapsed


def measured(llm: LLM, num_tokens: int, run: int) -> tuple[float, float, float]:
    """First token of the short question alone; beside the long prompt; longest pause of the running answer."""
    llm.forget()
    alone = first_token(llm, 2 * run)
    moments: list[float] = []
    reading = llm.stream(long_prompt(llm, num_tokens, run), max_tokens=1, draft_tokens="off")
    running = llm.chat(RUNNING, max_tokens=400, ignore_eos=True)

    def read_on() -> None:
        for _ in running:
            moments.append(time.perf_counter())

    answering = threading.Thread(target=read_on)
    answering.start()
    while len(moments) < 5:
        time.sleep(0.01)
    prompting = threading.Thread(target=lambda: list(reading))
    prompting.start()
    time.sleep(1.0)
    beside = first_token(llm, 2 * run + 1)
    reading.cancel()
    prompting.join()
    running.cancel()
    answering.join()
    pauses = [after - before for before, after in pairwise(moments)]
    return alone, beside, max(pauses)


def main() -> None:
    """Print each run on standard error and, as the last line, JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair")
    parser.add_argument("--library", default="auto")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with LLM.load(arguments.pair, parallel=4, n_ctx=4096, library=arguments.library) as llm:
        found = []
        for run in range(arguments.runs):
            found.append(measured(llm, arguments.tokens, run))
            print(
                "alone {:.2f} s, beside {:.2f} s, longest pause {:.2f} s".format(*found[-1]), file=sys.stderr
            )
        alone, beside, pauses = zip(*found, strict=True)
        library = llm.settings["library"]
    result = {
        "library": library,
        "first_token_alone": statistics.median(alone),
        "first_token_beside": statistics.median(beside),
        "longest_pause": max(pauses),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
