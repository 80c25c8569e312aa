"""Bit for bit on real weights: pure Q4_0 with the V cache in BF16 gives the same greedy ids with any draft."""

from __future__ import annotations

import pytest

from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable

pytestmark = pytest.mark.real

SHORT = [{"role": "user", "content": "Explain in a few sentences why the sky is blue."}]
LONG = [
    {
        "role": "user",
        "content": "Here are the minutes of a meeting.\n"
        + "\n".join(
            f"Point {i}: the members spoke about budget line {i * 7} and asked for figure {i * i} by week {i % 9}."
            for i in range(1, 30)
        )
        + "\nSummarize them in three sentences.",
    }
]
NUM_TOKENS = 64


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "past 600 tokens"])
def test_greedy_ids_do_not_depend_on_drafting(strict_llm, messages):
    settings = {"temperature": 0, "max_tokens": NUM_TOKENS}
    plain = strict_llm.generate(messages, draft_tokens="off", **settings)
    assert plain.stats.drafted == 0
    assert (plain.stats.prompt_tokens > 600) == (messages is LONG)
    for num_draft_tokens in (1, 3, 7):
        drafted = strict_llm.generate(messages, draft_tokens=num_draft_tokens, **settings)
        assert drafted.stats.accepted > 0
        assert drafted.ids == plain.ids


@pytest.mark.parametrize("messages", [SHORT, LONG], ids=["short", "past 600 tokens"])
def test_greedy_ids_do_not_depend_on_the_controller(strict_llm, messages, monkeypatch):
    """Costs that make every decision come up: model and n-gram drafts of changing length, padded passes."""
    settings = {"temperature": 0, "max_tokens": NUM_TOKENS}
    plain = strict_llm.generate(messages, draft_tokens="off", **settings)
    curve = {1: 1.0, 2: 1.9, 4: 1.2, 8: 1.4, 16: 1.8, 32: 2.6}
    step = 1.0  # far slower than any machine: what rounds really take then changes no decision
    target = CostTable({width: step * factor for width, factor in curve.items()})
    controller = AdaptiveController(target, CostTable({1: 0.05 * step, 32: 0.2 * step}))
    monkeypatch.setattr(controller, "rate", lambda _length: 1 / step)
    monkeypatch.setattr(strict_llm, "_adaptive", controller)
    monkeypatch.setattr(CostTable, "observe", lambda *_: None)
    monkeypatch.setattr(CostTable, "rescale", lambda *_: None)
    adaptive = strict_llm.generate(
        messages, draft_tokens="auto", prediction="The sky is blue because", **settings
    )
    assert adaptive.stats.accepted > NUM_TOKENS / 4
    assert adaptive.ids == plain.ids


def test_reused_cells_answer_like_a_cold_start(strict_llm):
    settings = {"temperature": 0, "max_tokens": 32}
    follow_up = [
        *SHORT,
        {"role": "assistant", "content": "Because of Rayleigh scattering."},
        {"role": "user", "content": "And at sunset?"},
    ]
    strict_llm.generate("Something else entirely.", max_tokens=1)
    cold = strict_llm.generate(follow_up, **settings)
    assert cold.stats.cached_tokens < 8
    strict_llm.generate(SHORT, **settings)
    warm = strict_llm.generate(follow_up, **settings)
    assert warm.stats.cached_tokens > 20
    assert warm.ids == cold.ids


def test_sampled_rows_repeat_with_a_seed_whatever_ran_before(strict_llm):
    first = strict_llm.generate(SHORT, max_tokens=40, seed=11)
    strict_llm.generate(LONG, max_tokens=3)
    assert strict_llm.generate(SHORT, max_tokens=40, seed=11).ids == first.ids
