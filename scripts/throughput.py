"""Tokens per second of several clients at once: seats against the queue, with and without a draft.

    python scripts/throughput.py PAIR [--library NAME] [--clients 1,2,4,8] [--seats 4] [-n 128] [--runs 1] [--no-queue]

Each client asks one question of its own and reads the answer; decoding time only: from the first token of the last
client to begin until the first one ends, what all of them committed in that time. Of more clients than seats the whole
run counts, prompts included. Modes take turns in one run, and the one that begins changes. `auto over plain` is the
median of what seats that may draft gave over what they gave without in the same turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from operator import truediv
from pathlib import Path
from typing import NamedTuple

from localspec import LLM, AnswerOptions, LoadOptions

QUESTIONS = (
    "Write a Python function that reverses a linked list, with a docstring.",
    "Explain in a few sentences why the sky is blue.",
    "Write a SQL query that lists the ten customers who spent most this year.",
    "Tell a short story about a lighthouse keeper and a storm.",
    "Write a class in Java that counts words in a file.",
    "What are the main differences between TCP and UDP?",
    "Write a Python generator that yields prime numbers, with an example.",
    "Give five tips for a good night's sleep, with a reason for each.",
)


def options(draft_tokens: int | str, num_tokens: int, seed: int) -> AnswerOptions:
    """Of each client's answer."""
    return {"draft_tokens": draft_tokens, "max_tokens": num_tokens, "ignore_eos": True, "seed": seed}


class Rate(NamedTuple):
    """Tokens per second of all clients together: over the whole run, and while all of them decode (0 where never)."""

    whole: float
    decoding: float
    drafted: int
    """Tokens that were proposed, of all clients."""


def rate(llm: LLM, count: int, draft_tokens: int | str, num_tokens: int) -> Rate:
    """What so many clients at once get."""
    llm.forget()
    drafted = [0] * count
    marks: list[list[tuple[float, int]]] = [[] for _ in range(count)]

    def ask(index: int) -> None:
        messages = [{"role": "user", "content": QUESTIONS[index % len(QUESTIONS)]}]
        answer = llm.chat(messages, **options(draft_tokens, num_tokens, index))
        for chunk in answer:
            marks[index].append((time.perf_counter(), len(chunk.tokens)))
        if answer.completion is not None:
            drafted[index] = answer.completion.stats.drafted

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(count)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    total = sum(tokens for own in marks for _, tokens in own)
    begin, end = max(own[0][0] for own in marks), min(own[-1][0] for own in marks)
    within = sum(tokens for own in marks for moment, tokens in own if begin < moment <= end)
    return Rate(total / elapsed, within / (end - begin) if end > begin else 0.0, sum(drafted))


def queued(llm: LLM, count: int, draft_tokens: int | str, num_tokens: int) -> float:
    """Tokens per second of decoding where one answer follows the other."""
    tokens = seconds = 0.0
    for index in range(count):
        messages = [{"role": "user", "content": QUESTIONS[index % len(QUESTIONS)]}]
        stats = llm.generate(messages, **options(draft_tokens, num_tokens, index)).stats
        tokens += stats.tokens - stats.first_tokens
        seconds += stats.decode_seconds
    return tokens / seconds


def main() -> None:
    """Print a table on standard error and, as the last line, all of it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair")
    parser.add_argument("draft", nargs="?", type=Path)
    parser.add_argument("--library", default="auto")
    parser.add_argument("--clients", default="1,2,4,8")
    parser.add_argument("--seats", type=int, default=4)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("-c", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-queue", action="store_true", help="seats only")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.clients.split(",")]
    load: LoadOptions = {"n_ctx": arguments.c, "library": arguments.library, "threads": arguments.threads}
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        one = None
        if not arguments.no_queue:
            one = stack.enter_context(LLM.load(arguments.pair, arguments.draft, **load))
        many = stack.enter_context(
            LLM.load(arguments.pair, arguments.draft, **{**load, "parallel": arguments.seats})
        )
        library = many.settings["library"]
        for turn in range(arguments.runs):
            for count in counts:
                own = found.setdefault(str(count), {})
                modes = [("plain", "off"), ("drafted", "auto")]
                for name, draft_tokens in modes if turn % 2 == 0 else reversed(modes):
                    said = f"{count} clients, {name}:"
                    if one is not None:
                        queue = queued(one, min(count, 4), draft_tokens, arguments.n)
                        own.setdefault(f"queue {name}", []).append(queue)
                        said += f" queue {queue:.1f},"
                    seats = rate(many, count, draft_tokens, arguments.n)
                    together = seats.decoding if count <= arguments.seats else seats.whole
                    own.setdefault(f"seats {name}", []).append(together)
                    print(f"{said} seats {together:.1f}, {seats.drafted} proposed", file=sys.stderr)
    medians = {
        count: {name: statistics.median(rates) for name, rates in own.items()}
        | {"auto over plain": statistics.median(map(truediv, own["seats drafted"], own["seats plain"]))}
        for count, own in found.items()
    }
    print(json.dumps({"library": library, "tokens_per_second": medians}))


if __name__ == "__main__":
    main()
