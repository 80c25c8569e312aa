"""What idle seats cost: milliseconds of a token in one seat, while the others hold nothing and then conversations.

    python scripts/idle_seats.py PAIR [--library NAME] [--seats 4] [-c 4096] [-n 64] [--tokens 2300]

Medians between tokens of answers without a draft. Prints a line for each number of idle conversations.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

from localspec import LLM, AnswerOptions

RUNS = 3
WORDS = "some words and more of them, {} by {}; "


def token_milliseconds(llm: LLM, num_tokens: int) -> float:
    """The median between the tokens of one answer."""
    options: AnswerOptions = {"draft_tokens": 0, "max_tokens": num_tokens, "ignore_eos": True, "seed": 1}
    moments = [time.perf_counter() for _ in llm.stream("Write a poem about the sea.", **options)]
    return 1000 * statistics.median(later - earlier for earlier, later in pairwise(moments))


def main() -> None:
    """Fill one seat after the other, and time an answer beside them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair")
    parser.add_argument("--library", default="auto")
    parser.add_argument("--seats", type=int, default=4)
    parser.add_argument("-c", type=int, default=4096)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2300, help="of each conversation, about")
    arguments = parser.parse_args()
    with LLM.load(
        arguments.pair, library=arguments.library, parallel=arguments.seats, n_ctx=arguments.c
    ) as llm:
        for number in range(arguments.seats):
            if number:
                text = "".join(WORDS.format(number, place) for place in range(arguments.tokens))
                ids = llm.tokenize(text)[: arguments.tokens]
                llm.generate(ids, draft_tokens=0, max_tokens=1)
            took = [token_milliseconds(llm, arguments.n) for _ in range(RUNS)]
            print(f"{number} idle conversations: {statistics.median(took):.0f} ms a token", flush=True)


if __name__ == "__main__":
    main()
