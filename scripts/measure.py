"""Measure a pair on a JSONL file of prompts (`scenario`, `system`, `user`): acceptance, speed, overhead, memory.

    python scripts/measure.py --prompts FILE [--pair NAME] [-n 120] [-k 3] [--temp 0] [--runs 3]

Plain decoding and drafting alternate within one run; the figures are medians. The last line is the result as JSON.
Measure on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import llama_cpp

from localspec import LLM, Completion


def read_prompts(path: Path) -> list[dict[str, str]]:
    """One dict per line with `scenario`, `system` and `user`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def messages_of(prompt: dict[str, str]) -> list[dict[str, str]]:
    """The chat messages of one prompt."""
    return [{"role": role, "content": prompt[role]} for role in ("system", "user") if prompt.get(role)]


class DecodeClock:
    """Time spent inside llama_decode, of both models."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._decode = llama_cpp.llama_decode
        llama_cpp.llama_decode = self._timed

    def _timed(self, context: object, batch: object) -> int:
        started = time.perf_counter()
        try:
            return int(self._decode(context, batch))
        finally:
            self.seconds += time.perf_counter() - started


def timed(
    llm: LLM, clock: DecodeClock, messages: list[dict[str, str]], **settings: object
) -> tuple[Completion, float]:
    """One answer, and the share of its wall time spent outside llama_decode."""
    started, before = time.perf_counter(), clock.seconds
    answer = llm.generate(messages, **settings)
    total = time.perf_counter() - started
    return answer, 1 - (clock.seconds - before) / total


def memory() -> dict[str, int]:
    """Resident bytes of this process, in all and anonymous (Linux only)."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    values = dict(line.split(":", 1) for line in lines)
    names = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
    return {name: int(values[name].split()[0]) * 1024 for name in names if name in values}


def measure(
    llm: LLM, clock: DecodeClock, prompt: dict[str, str], arguments: argparse.Namespace
) -> dict[str, object]:
    """Medians of one prompt, plain and drafted in turn."""
    messages = messages_of(prompt)
    settings = {"temperature": arguments.temp, "max_tokens": arguments.n, "seed": 1}
    runs = [
        (
            timed(llm, clock, messages, draft_tokens="off", **settings),
            timed(llm, clock, messages, draft_tokens=arguments.k, **settings),
        )
        for _ in range(arguments.runs)
    ]
    plain, drafted = ([run[side][0] for run in runs] for side in (0, 1))
    outside = [round(statistics.median(run[side][1] for run in runs), 4) for side in (0, 1)]
    plain_tps = statistics.median(answer.stats.tokens_per_second for answer in plain)
    drafted_tps = statistics.median(answer.stats.tokens_per_second for answer in drafted)
    return {
        "plain_tps": round(plain_tps, 2),
        "localspec_tps": round(drafted_tps, 2),
        "speedup": round(drafted_tps / plain_tps, 3),
        "acceptance_rate": drafted[0].stats.acceptance_rate,
        "mean_acceptance_length": drafted[0].stats.mean_acceptance_length,
        "same_ids": plain[0].ids == drafted[0].ids,
        "outside_decode": {"plain": outside[0], "drafted": outside[1]},
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--pair", default="qwen2.5-coder-1.5b")
    parser.add_argument("-m", "--target", help="a GGUF file instead of a pair")
    parser.add_argument("-md", "--draft")
    parser.add_argument("-n", type=int, default=120)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    source = (
        LLM.from_files(arguments.target, arguments.draft)
        if arguments.target
        else LLM.from_pair(arguments.pair)
    )
    clock = DecodeClock()
    with source as llm:
        llm.generate("warm up", max_tokens=8)
        scenarios = {}
        for prompt in read_prompts(arguments.prompts):
            scenarios[prompt["scenario"]] = figures = measure(llm, clock, prompt, arguments)
            print(f"{prompt['scenario']:10} {figures}", flush=True)
        print(json.dumps({"settings": llm.settings, "memory": memory(), "scenarios": scenarios}))


if __name__ == "__main__":
    main()
