"""Bit for bit on real weights: in strict mode the same ids with any draft, any length, any schedule, or none."""

from __future__ import annotations

import pytest

from localspec import LLM
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable

pytestmark = pytest.mark.real

SHORT = [{"role": "user", "content": "Explain in a few sentences why the sky is blue."}]


def minutes(points: int) -> list[dict[str, str]]:
    """A meeting's minutes to summarize, about 27 tokens a point."""
    lines = [
        f"Point {i}: the members spoke about budget line {i * 7} and asked for figure {i * i} by week {i % 9}."
        for i in range(1, points)
    ]
    request = "\nSummarize them in three sentences."
    return [{"role": "user", "content": "Here are the minutes of a meeting.\n" + "\n".join(lines) + request}]


LONG = minutes(30)
CONTEXTS = {
    "100 tokens": (minutes(4), 100),
    "1100 tokens": (minutes(41), 1100),
    "1700 tokens": (minutes(63), 1700),
}
LONGEST = {"llama": "1100 tokens", "ik": "1700 tokens"}
"""By the library; the other one's is left out to save time."""
NUM_TOKENS = 32


@pytest.fixture(scope="module", params=["100 tokens", "longest"])
def context(strict_llm, request) -> tuple[list[dict[str, str]], int]:
    """Messages, and about how many tokens they are."""
    return CONTEXTS[LONGEST[strict_llm.engine.library.key] if request.param == "longest" else request.param]


@pytest.fixture(scope="module")
def greedy(strict_llm, context):
    """The target alone."""
    messages, size = context
    plain = strict_llm.generate(messages, draft_tokens="off", temperature=0, max_tokens=NUM_TOKENS)
    assert plain.stats.drafted == 0
    assert abs(plain.stats.prompt_tokens - size) < 0.25 * size
    return plain


def test_greedy_ids_do_not_depend_on_drafting(strict_llm, context, greedy):
    messages, _ = context
    for num_draft_tokens in (1, 3, 7):
        drafted = strict_llm.generate(
            messages, draft_tokens=num_draft_tokens, temperature=0, max_tokens=NUM_TOKENS
        )
        assert drafted.stats.accepted > 0
        assert drafted.ids == greedy.ids


def test_ids_do_not_depend_on_the_controller(strict_llm, context, greedy, monkeypatch):
    """Costs that make every decision come up: model and n-gram drafts of changing length, padded passes."""
    messages, _ = context
    curve = {1: 1.0, 2: 1.9, 4: 1.2, 8: 1.4, 16: 1.8, 32: 2.6}
    step = (
        1000.0  # far slower than any machine, however busy: what rounds really take then changes no decision
    )
    target = CostTable({width: step * factor for width, factor in curve.items()})
    controller = AdaptiveController(target, CostTable({1: 0.05 * step, 32: 0.2 * step}))
    monkeypatch.setattr(controller, "rate", lambda *_: 1 / step)
    monkeypatch.setattr(strict_llm._keeper, "adaptive", controller)
    monkeypatch.setattr(CostTable, "observe", lambda *_: None)
    monkeypatch.setattr(CostTable, "rescale", lambda *_: None)
    sampled = strict_llm.generate(messages, draft_tokens="off", max_tokens=NUM_TOKENS, seed=3)
    for plain, settings in ((greedy, {"temperature": 0}), (sampled, {"seed": 3})):
        adaptive = strict_llm.generate(
            messages, draft_tokens="auto", prediction="The sky is blue", max_tokens=NUM_TOKENS, **settings
        )
        assert adaptive.stats.accepted > NUM_TOKENS / 4
        assert adaptive.ids == plain.ids


def same_with_and_without_a_draft(llm, messages, num_tokens, lengths):
    for settings in ({"temperature": 0}, {"seed": 5}):
        plain = llm.generate(messages, draft_tokens="off", max_tokens=num_tokens, **settings)
        for num_draft_tokens in lengths:
            drafted = llm.generate(messages, draft_tokens=num_draft_tokens, max_tokens=num_tokens, **settings)
            assert drafted.stats.drafted > 0
            assert drafted.ids == plain.ids


def test_the_strict_form_of_k_quants(real_paths):
    """Weights not rearranged and narrow passes: a class that is measured at the first load."""
    with LLM.from_files(*real_paths, n_ctx=1024, strict=True, draft_tokens=3, library="llama") as llm:
        settings = llm.settings["target"]
        assert settings["cache_type_v"] == "bf16" and not settings["repack"]
        assert any(warning.startswith("Strict mode with llama.cpp: passes of ") for warning in llm.warnings)
        same_with_and_without_a_draft(llm, SHORT, 16, lengths=(1, 3, 5))
        same_with_and_without_a_draft(llm, minutes(11), 12, lengths=(4,))


def test_the_strict_form_of_bf16(bf16_path, smollm_path):
    """Drafted for by the same weights in four bits."""
    with LLM.from_files(bf16_path, smollm_path, n_ctx=1024, strict=True, draft_tokens=3) as llm:
        same_with_and_without_a_draft(llm, SHORT, 24, lengths=(1, 3))
        same_with_and_without_a_draft(llm, minutes(17), 16, lengths=(7,))


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


def test_both_libraries_are_strict_in_forms_of_their_own(strict_llm):
    settings = strict_llm.settings["target"]
    assert settings["cache_type_v"] == {"llama": "bf16", "ik": "f16"}[strict_llm.engine.library.key]
    assert settings["repack"]


def test_sampled_rows_repeat_with_a_seed_whatever_ran_before(strict_llm):
    first = strict_llm.generate(SHORT, max_tokens=24, seed=11)
    strict_llm.generate(LONG, max_tokens=3)
    assert strict_llm.generate(SHORT, max_tokens=24, seed=11).ids == first.ids


def test_log_probabilities_do_not_depend_on_drafting(strict_llm):
    settings = {"seed": 8, "max_tokens": 24, "logprobs": 3}
    plain = strict_llm.generate(SHORT, draft_tokens="off", **settings)
    drafted = strict_llm.generate(SHORT, draft_tokens=3, **settings)
    assert any(drafted.drafted) and not any(plain.drafted)
    assert [entry.token for entry in plain.logprobs] == list(plain.ids)
    assert drafted.logprobs == plain.logprobs
