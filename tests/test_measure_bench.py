"""The bench: who answers what, when, how cold; and what becomes of its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from localspec import LLM
from localspec.answers.request import Completion
from localspec.decoding.costs import CostTable
from localspec.decoding.params import SamplingParams
from localspec.decoding.stats import Stats
from localspec.engine.measured_costs import Costs
from localspec.llama.library import LlamaCpp
from localspec.measure.bench import WARM_UP, Bench, BenchOptions, Measured
from localspec.measure.prompts import Prompt
from localspec.measure.report import report, scenario_figures, shares
from localspec.measure.timing import Tally, Timing, timed_answer

from .tinygguf import write_llama, write_pair

COSTS = Costs(CostTable({1: 1.0, 4: 1.2, 8: 1.5, 32: 5.0}), CostTable({1: 0.1}))
GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = [
    Prompt("talk", ("one the other", "then the next", "and on"), system="Be brief."),
    Prompt("code", ("a b c a b c",)),
    Prompt("code", ("the thing in the tin",)),
]
DESIGN_KEYS = {"pair", "machine", "versions", "scenarios", "mean_speedup", "min_speedup"}
SCENARIO_KEYS = {
    "plain_tps", "localspec_tps", "speedup", "oracle_speedup", "acceptance_rate", "mean_acceptance_length",
    "ttft_ms", "share", "runs",
}  # fmt: skip


class WatchedLLM(LLM):
    """Writes down what it is asked, and how much of each prompt it still knew."""

    log: list[Any]

    def chat(self, messages, *, params=None, draft_tokens=None, **rest):
        asked = {"mode": draft_tokens, "messages": list(messages), "params": params}
        self.log.append(asked)
        for chunk in super().chat(messages, params=params, draft_tokens=draft_tokens, **rest):
            if chunk.completion is not None:
                asked["completion"] = chunk.completion
            yield chunk

    def forget(self) -> None:
        self.log.append("forget")
        super().forget()


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedLLM]:
    pair = write_pair(tmp_path_factory.mktemp("tiny"))
    with WatchedLLM.from_files(*pair, n_ctx=512, cache_type_v="bf16", threads=1) as llm:
        yield llm


def bench(llm: WatchedLLM, options: BenchOptions, prompts: list[Prompt] = PROMPTS) -> dict[str, Measured]:
    llm.log = []
    return dict(Bench(llm, options, costs=COSTS).run(prompts))


def answers(log: list[Any]) -> list[dict[str, Any]]:
    return [entry for entry in log if entry != "forget"]


def test_the_modes_take_turns_and_every_run_begins_with_another() -> None:
    options = BenchOptions(GREEDY, runs=4, lengths=(3,))
    assert [options.order(run) for run in range(4)] == [
        ("off", "auto", 3),
        ("auto", 3, "off"),
        (3, "off", "auto"),
        ("off", "auto", 3),
    ]


def test_answers_alternate_in_the_order_promised(llm: WatchedLLM) -> None:
    bench(llm, BenchOptions(GREEDY, runs=2), [Prompt("code", ("a b c",)), Prompt("code", ("d e f",))])
    modes = [(entry["mode"], entry["messages"][-1]["content"]) for entry in answers(llm.log)]
    warm_up = [("off", "a b c"), ("auto", "a b c")]
    rehearsal = [("off", "a b c"), ("off", "d e f")]
    first = [("off", "a b c"), ("auto", "a b c"), ("off", "d e f"), ("auto", "d e f")]
    second = [("auto", "a b c"), ("off", "a b c"), ("auto", "d e f"), ("off", "d e f")]
    assert modes == warm_up + rehearsal + first + second


def test_every_mode_gets_the_same_requests_cold_at_first_and_warm_within_a_talk(llm: WatchedLLM) -> None:
    measured = bench(llm, BenchOptions(GREEDY, runs=2, lengths=(2,)))
    asked = answers(llm.log)[3:]  # after the warm-up
    by_mode = {mode: [e["messages"] for e in asked if e["mode"] == mode] for mode in ("off", "auto", 2)}
    rehearsed = by_mode["off"][:3]
    assert by_mode["auto"][:3] == by_mode[2][:3] == rehearsed
    assert [len(messages) for messages in rehearsed] == [2, 4, 6]
    assert rehearsed[2][2]["content"] == asked[0]["completion"].text.replace("\0", "")
    for entry in asked:
        first_turn = sum(message["role"] == "user" for message in entry["messages"]) == 1
        cached = entry["completion"].stats.cached_tokens
        assert cached == 0 if first_turn or entry in asked[:3] else cached > 0
    assert all(asked[i]["completion"].ids == asked[0]["completion"].ids for i in (3, 6))
    assert all(len(runs) == 2 for runs in measured["talk"].tallies.values())


def test_the_draft_forgets_too(llm: WatchedLLM) -> None:
    list(llm.chat([{"role": "user", "content": "abc"}], params=GREEDY, draft_tokens=3))
    assert llm.engine.draft is not None and llm.engine.draft.length() > 0
    llm.forget()
    assert llm.engine.draft.length() == llm.engine.target.length() == 0


def test_the_warm_up_is_not_counted(llm: WatchedLLM) -> None:
    measured = bench(llm, BenchOptions(GREEDY, runs=3))
    assert list(measured) == ["talk", "code"]
    for tally in measured["talk"].tallies["off"]:
        assert (tally.tokens, tally.committed, len(tally.ttfts)) == (3 * 11, 3 * 12, 3)
    assert answers(llm.log)[0]["params"].max_tokens == WARM_UP


def test_a_seed_differs_by_run_and_not_by_mode(llm: WatchedLLM) -> None:
    params = SamplingParams(seed=40, max_tokens=6)
    bench(llm, BenchOptions(params, runs=2), PROMPTS[1:2])
    seeds = [(entry["mode"], entry["params"].seed) for entry in answers(llm.log)[3:]]
    assert seeds == [("off", 40), ("auto", 40), ("auto", 41), ("off", 41)]


def test_progress_grows_to_the_last_answer(llm: WatchedLLM) -> None:
    seen: list[tuple[str, float]] = []
    llm.log = []
    options = BenchOptions(GREEDY, runs=2)
    list(Bench(llm, options, costs=COSTS, progress=lambda *news: seen.append(news)).run(PROMPTS))
    assert [share for _, share in seen[1:]] == pytest.approx([index / 25 for index in range(25)])
    labels = [label for label, _ in seen]
    assert (labels[0], labels[1], labels[-1]) == ("warm-up", "talk: rehearsal", "code: run 2 of 2")


def test_a_report_has_exactly_the_keys_of_the_design(llm: WatchedLLM) -> None:
    measured = bench(llm, BenchOptions(GREEDY, runs=2))
    result = report("tiny", llm, measured)
    assert set(result) == DESIGN_KEYS
    for figures in result["scenarios"].values():
        assert set(figures) == SCENARIO_KEYS
        assert set(figures["share"]) == {"target", "draft", "other"}
        assert sum(figures["share"].values()) == pytest.approx(1.0, abs=1e-3)
        assert min(figures["share"].values()) >= 0
        assert figures["oracle_speedup"] > 1  # this draft is nearly the target, at a tenth of its cost
        assert len(figures["runs"]) == 2
    assert result["machine"]["threads"] == 1
    assert (result["machine"]["library"], result["machine"]["build"]) == ("llama.cpp", LlamaCpp().build)
    every = {"localspec", "python", "llama-cpp-python", "ik-llama-cpp-python", "numpy"}
    assert every - {"ik-llama-cpp-python"} <= set(result["versions"]) <= every


def test_a_target_that_cannot_be_drafted_for_has_no_oracle(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target.gguf", seed=1)
    with WatchedLLM.from_files(target, no_draft=True, n_ctx=256, threads=1) as llm:
        (measured,) = bench(llm, BenchOptions(GREEDY, runs=1), PROMPTS[1:2]).values()
        assert measured.oracle_speedup == 1.0
        assert scenario_figures(measured)["acceptance_rate"] is None


# Figures from tallies


def tally(seconds: float, tokens: int = 100, **rest: Any) -> Tally:
    return Tally(tokens=tokens, seconds=seconds, committed=tokens, rounds=tokens, ttfts=[seconds], **rest)


def test_speeds_are_medians_over_runs() -> None:
    plain = [tally(2.0), tally(50.0), tally(4.0)]
    ours = [tally(1.0), tally(2.0), tally(90.0)]
    fixed = [tally(8.0), tally(8.0), tally(1.0)]
    figures = scenario_figures(Measured(1.75, {"off": plain, "auto": ours, 3: fixed}))
    assert figures["plain_tps"] == 25.0
    assert figures["localspec_tps"] == 50.0
    assert figures["speedup"] == 2.0
    assert figures["oracle_speedup"] == 1.75
    assert figures["ttft_ms"] == 1000 * median([1.0, 2.0, 90.0])
    assert figures["runs"][1] == {"plain_tps": 2.0, "localspec_tps": 50.0, "tokens": 100}
    assert figures["fixed"]["3"]["speedup"] == 0.5


def test_acceptance_is_over_all_runs() -> None:
    ours = [tally(1.0, drafted=10, accepted=9), tally(1.0, drafted=30, accepted=3)]
    figures = scenario_figures(Measured(1.0, {"off": [tally(1.0)] * 2, "auto": ours}))
    assert figures["acceptance_rate"] == pytest.approx(12 / 40)
    assert figures["mean_acceptance_length"] == 1.0


def test_shares_leave_the_rest_to_other() -> None:
    spent = tally(10.0, target_seconds=7.0, draft_seconds=2.5)
    assert shares(spent) == {"target": 0.7, "draft": 0.25, "other": 0.05}
    assert shares(Tally()) == {"target": 0.0, "draft": 0.0, "other": 0.0}


def test_answers_of_one_token_have_no_speed() -> None:
    nothing = [Tally(ttfts=[0.1], committed=1, rounds=1)]
    figures = scenario_figures(Measured(1.0, {"off": nothing, "auto": nothing}))
    assert (figures["plain_tps"], figures["speedup"]) == (0.0, 0.0)


def test_a_tally_counts_what_comes_after_the_first_round() -> None:
    stats = Stats(tokens=20, first_tokens=1, rounds=8, drafted=15, accepted=12, prefill_seconds=9.0)
    completion = Completion("", (), "stop", stats, None, "on")
    total = Tally()
    total.add(Timing(completion, ttft=0.5, seconds=2.0, target_seconds=1.5, draft_seconds=0.25))
    assert (total.tokens, total.seconds, total.tps) == (19, 2.0, 9.5)
    doubled = total + total
    assert (doubled.tokens, doubled.drafted, doubled.ttfts) == (38, 30, [0.5, 0.5])
    assert total.ttfts == [0.5]


def test_the_clock_is_read_at_the_request_the_first_chunk_and_the_end(llm: WatchedLLM) -> None:
    llm.log = []
    ticks = iter([10.0, 13.0, 20.0])
    messages = [{"role": "user", "content": "abc"}]
    before = llm.engine.target.decode_seconds
    timing = timed_answer(llm, messages, GREEDY, "off", lambda: next(ticks))
    assert (timing.ttft, timing.seconds, timing.draft_seconds) == (3.0, 7.0, 0.0)
    assert 0 < timing.target_seconds < llm.engine.target.decode_seconds - before
    assert timing.completion.stats.tokens == 12
