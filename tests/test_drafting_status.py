"""What would let drafting pay more: the sentence under an answer, by what is known of engine, costs and text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec import LLM
from localspec.decoding.adaptive import AdaptiveController
from localspec.decoding.costs import CostTable
from localspec.decoding.stats import Stats
from localspec.engine import drafting_status
from localspec.engine.drafting_status import drafting_hint
from localspec.engine.measured_costs import Costs

from .fake_library import FakeLibrary
from .tinygguf import write_pair

TROUBLE = (Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CHEAP, COSTLY = {1: 1.0, 4: 1.2, 32: 2.0}, {1: 1.0, 2: 1.9, 4: 3.6, 32: 30.0}
ASSUMED = dict.fromkeys(COSTLY, 0.0)
COST_MUCH = "Passes over several tokens cost much with this file here"
SLOW = Stats(tokens=60, decode_seconds=10.0, plain_seconds=10.0)


class Absent(FakeLibrary):
    """A library that is not installed and could be."""

    package = "ik-llama-cpp-python"
    requirement = "'ik-llama-cpp-python==0.1.5'"
    offer = "with it all is well"


def hint(
    target: dict[int, float] = CHEAP,
    *,
    missing: bool = False,
    draft: bool = True,
    gpu_layers: int = 0,
    busy: float = 1.0,
    certainty: dict[int, float] | None = None,
    stats: Stats = SLOW,
    reason: str = "",
    temperature: float = 0.0,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    libraries = [FakeLibrary(), *([Absent()] if missing else [])]
    monkeypatch.setattr(drafting_status, "libraries", lambda: libraries)
    engine: Any = SimpleNamespace(
        no_draft_reason=reason,
        drafts_itself=False,
        draft=SimpleNamespace() if draft else None,
        target=SimpleNamespace(weights=SimpleNamespace(gpu_layers=gpu_layers)),
    )
    costs = CostTable(target, scale=busy, certainty=certainty or {})
    controller = AdaptiveController(costs, CostTable({1: 0.2}) if draft else None)
    return drafting_hint(engine, controller, stats, temperature)


@pytest.mark.parametrize(
    ("case", "begins"),
    [
        ({"target": COSTLY, "missing": True}, "ik-llama-cpp-python is not installed"),
        ({"draft": False, "missing": True}, "ik-llama-cpp-python is not installed"),
        ({"busy": 1.8, "missing": True}, "The machine is busy"),
        ({"target": COSTLY, "missing": True, "gpu_layers": 9}, COST_MUCH),
        ({"target": COSTLY}, COST_MUCH),
        ({"target": COSTLY, "certainty": ASSUMED}, "What passes cost is measured while nobody asks anything"),
        ({"draft": False}, "Without a draft model only repeated text is drafted from"),
        ({"missing": True}, "This text was hard to guess"),
        ({}, "This text was hard to guess"),
    ],
)
def test_each_cause_has_its_sentence_which_the_pages_explain(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any], begins: str
) -> None:
    told = hint(**case, monkeypatch=monkeypatch)
    assert told.startswith(begins)
    assert told.endswith(".")
    assert f"- `{begins}`" in TROUBLE


def test_what_is_to_be_done_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = hint(COSTLY, missing=True, monkeypatch=monkeypatch)
    assert offered.endswith("all is well. Install it: pip install 'ik-llama-cpp-python==0.1.5'.")
    assert "take 1.8 times as long" in hint(busy=1.8, monkeypatch=monkeypatch)
    assert "temperature" not in hint(monkeypatch=monkeypatch)
    assert "a lower temperature" in hint(temperature=0.8, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    "case",
    [
        {"stats": Stats(tokens=60, decode_seconds=10.0, plain_seconds=14.0)},
        {"stats": Stats(tokens=60, decode_seconds=10.0)},
        {"stats": Stats(tokens=9, decode_seconds=10.0, plain_seconds=10.0)},
        {
            "target": CHEAP,  # it can pay, and the text was easy
            "stats": Stats(tokens=60, decode_seconds=10.0, plain_seconds=10.0, drafted=20, accepted=18),
        },
        {"reason": "llama.cpp cannot forget single tokens of mamba.gguf here"},
    ],
)
def test_where_it_pays_or_nothing_can_be_told_there_is_none(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    assert hint(**{"target": COSTLY, **case}, monkeypatch=monkeypatch) == ""


def test_answers_bring_the_estimate_and_the_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adaptive drafting knows what plain decoding costs; a fixed length and no draft make no claim."""
    known = Costs(CostTable(CHEAP), CostTable({1: 0.01, 32: 0.02}))
    monkeypatch.setattr("localspec.engine.costs_in_use.known_costs", lambda *_, **__: known)
    options = {"n_ctx": 256, "threads": 1, "home": tmp_path}
    with LLM.from_files(*write_pair(tmp_path), **options) as llm:
        answer = llm.generate("ab", temperature=0, max_tokens=40, ignore_eos=True)
        assert answer.stats.tokens == 40
        assert answer.stats.plain_seconds and answer.stats.speedup_estimate
        slow = answer.stats.speedup_estimate < drafting_status.PAYS
        easy = (answer.stats.acceptance_rate or 0.0) >= drafting_status.EASY
        assert bool(answer.hint) == (slow and not easy)
        for draft_tokens in ("off", 3):
            other = llm.generate("ab", temperature=0, max_tokens=40, draft_tokens=draft_tokens)
            assert (other.stats.plain_seconds, other.hint) == (None, "")
        assert (llm.hint, llm.warnings) == ("", ())
    costly = Costs(CostTable(COSTLY), CostTable({1: 0.2, 32: 0.4}))
    monkeypatch.setattr("localspec.engine.costs_in_use.known_costs", lambda *_, **__: costly)
    monkeypatch.setattr(drafting_status, "libraries", lambda: [Absent()])
    pair = write_pair(tmp_path)
    remedy = "Install it: pip install 'ik-llama-cpp-python==0.1.5'."
    offer = f"ik-llama-cpp-python is not installed: with it all is well. {remedy}"
    for files, further, hint in ((pair, {}, offer), (pair, {"draft_tokens": 2}, ""), (pair[:1], {}, "")):
        with LLM.from_files(*files, **options, **further) as llm:
            assert llm.hint == hint
            llm.unload()
            assert llm.hint == ""
    assumed = CostTable(CHEAP, certainty=dict.fromkeys(CHEAP, 0.0))
    monkeypatch.setattr(
        "localspec.engine.costs_in_use.known_costs", lambda *_, **__: Costs(assumed, known.draft)
    )
    with LLM.from_files(*write_pair(tmp_path), **options) as llm:
        assert llm.generate("ab", temperature=0, max_tokens=5).stats.plain_seconds is None
