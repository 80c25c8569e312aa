"""Clients for so many minutes: every greedy answer must be the one that is given alone, and memory flat.

    python scripts/soak.py MINUTES [TARGET.gguf [DRAFT.gguf]] [--http] [--clients 4] [--parallel 1]

One request in ten is dropped after its first pieces, others are cancelled or make no sense. The engine is strict, so
that answers can be compared to the last bit. With --http it is `localspec serve` in a process of its own, asked by
the official client. Without files it is the default pair, pulled if need be. Prints one line of JSON; the exit code
is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from server_process import ServerProcess
from soak_clients import MODEL, Client, EngineClient, Question, ServerClient, Solo

from localspec import LLM, pull
from localspec.errors import PromptTooLong
from localspec.pairs.catalogue import DEFAULT_PAIR

FLAT = 0.02
SAMPLE_SECONDS = 5.0
END_SECONDS = 600.0
DRAFT_TOKENS = 3
TEXTS = (
    "Write a function that sorts a list. ",
    "Once upon a time there was a king. ",
    "def parse(line):\n    ",
)
LENGTHS = (8, 40, 160, 400)
COUNTED = ("answered", "cached", "dropped", "hung_up", "cancelled", "refused", "failed", "wrong")


def questions() -> list[Question]:
    """Prompts, each with the length of its answer in tokens."""
    return [
        (f"{number}: " + text * (length // 8), 8 + length % 48)
        for number, text in enumerate(TEXTS)
        for length in LENGTHS
    ]


def solo(llm: LLM) -> dict[Question, Solo]:
    """Each answer from an engine that has forgotten everything else; what the context cannot hold is left out."""
    answers = {}
    for prompt, max_tokens in questions():
        llm.forget()
        with suppress(PromptTooLong):
            completion = llm.generate(prompt, temperature=0, max_tokens=max_tokens)
            answers[prompt, max_tokens] = Solo(completion.ids, completion.text)
    llm.forget()
    return answers


class Watch:
    """Memory of a process, and how soon its server says that it is well.

    held: bytes, one for each sample. slowest_health: seconds, at most.
    """

    def __init__(self, process: psutil.Process, url: str | None) -> None:
        self.held: list[int] = []
        self.slowest_health = 0.0
        self._process, self._url = process, url

    def until(self, deadline: float, every: float) -> None:
        """Sample from now to the deadline."""
        while time.monotonic() < deadline:
            self.held.append(int(self._process.memory_info().rss))
            if self._url is not None:
                asked = time.perf_counter()
                urllib.request.urlopen(f"{self._url}/health", timeout=60).read()
                self.slowest_health = max(self.slowest_health, time.perf_counter() - asked)
            time.sleep(every)


def growth(held: list[int]) -> float:
    """How much more the last quarter holds than the second one; the first is the warm-up."""
    quarter = max(len(held) // 4, 1)
    early, late = held[quarter : 2 * quarter] or held, held[-quarter:]
    return statistics.median(late) / statistics.median(early) - 1


def soak(make: Callable[[float, int], Client], watch: Watch, options: argparse.Namespace) -> dict[str, Any]:
    """The result, ready for JSON. make: a client from its deadline and seed."""
    minutes: float = options.minutes
    until = time.monotonic() + 60 * minutes
    clients = [make(until, options.seed + number) for number in range(options.clients)]
    for client in clients:
        client.start()
    watch.until(until, every=min(SAMPLE_SECONDS, minutes))
    for client in clients:
        client.join(END_SECONDS)
    counts = sum((client.counts for client in clients), Counter[str]())
    grown, stuck = growth(watch.held), sum(client.is_alive() for client in clients)
    ok = not counts["wrong"] and not counts["failed"] and not stuck and grown <= FLAT
    return {
        "ok": bool(ok and counts["answered"]),
        "minutes": minutes,
        "clients": options.clients,
        "parallel": options.parallel,
        **{name: counts[name] for name in COUNTED},
        "stuck": stuck,
        "memory_growth": round(grown, 4),
        "memory_bytes": watch.held[-1],
        "slowest_health": round(watch.slowest_health, 3),
    }


def load(files: Sequence[Path], options: argparse.Namespace, parallel: int = 1) -> LLM:
    """The engine, loaded as the server loads it."""
    given: dict[str, Any] = {
        "n_ctx": options.ctx_size, "draft_tokens": DRAFT_TOKENS, "parallel": parallel,
        "strict": not options.loose, "threads": options.threads, "library": options.library,
    }  # fmt: skip
    return LLM.from_files(*files, **given) if files else LLM.from_pair(**given)


def server_options(files: Sequence[Path], options: argparse.Namespace) -> list[str]:
    """The options of `load` for `localspec serve`."""
    given = ["--alias", MODEL, "-c", str(options.ctx_size), "--draft-tokens", str(DRAFT_TOKENS)]
    given += ["--parallel", str(options.parallel), "--library", options.library]
    given += [] if options.loose else ["--strict"]
    given += [] if options.threads is None else ["-t", str(options.threads)]
    names = ("-m", "-md")[: len(files)]
    return [*given, *(part for name, file in zip(names, files, strict=True) for part in (name, str(file)))]


def parse() -> argparse.Namespace:
    """The options given on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("minutes", type=float)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("-c", "--ctx-size", type=int, default=2048)
    parser.add_argument("-s", "--seed", type=int, default=0)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--http", action="store_true", help="ask a server")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--parallel", type=int, default=1, help="answers at a time")
    parser.add_argument("--library", default="auto")
    parser.add_argument("--loose", action="store_true", help="not in strict mode: close calls may differ")
    return parser.parse_args()


def main() -> int:
    """Run the soak and print its result; 0 if all was well, else 1."""
    options = parse()
    files = [file for file in (options.target, options.draft) if file is not None]
    if not files:
        pull(DEFAULT_PAIR)
    with load(files, options) as llm:
        alone = solo(llm)
    if options.http:
        with ServerProcess(*server_options(files, options)) as server:
            result = soak(
                lambda until, seed: ServerClient(server.url, alone, until, seed),
                Watch(server.process, server.url), options,
            )  # fmt: skip
    else:
        with load(files, options, options.parallel) as llm:
            result = soak(
                lambda until, seed: EngineClient(llm, alone, until, seed),
                Watch(psutil.Process(), None), options,
            )  # fmt: skip
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
