"""A draft of another family on real weights: SmolLM2-135M for Qwen2.5-Coder-1.5B."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest

from localspec.decoding.cross_drafter import CrossDrafter
from localspec.decoding.manners import RETOLD, SHARED, Manners
from localspec.decoding.session import Session
from localspec.engine.cross_vocabulary import translation_between
from localspec.engine.libraries import reference
from localspec.gguf.metadata import read_metadata
from localspec.pairs.check import check_pair

pytestmark = pytest.mark.real

PROMPTS = (
    "Write a Python function that reverses a linked list, with a docstring.",
    "Erkläre in drei Sätzen, warum der Himmel blau ist. 日本語 🙂?",
)


@pytest.fixture(scope="module")
def crossed_llm(strict_llm, smollm_path):
    """The strict target, loaded for other tests too, with the other draft in the place of its own."""
    engine, draft = strict_llm.engine, read_metadata(smollm_path)
    target = engine.target.weights.metadata
    judgement = check_pair(target, draft)
    assert judgement.shared is not None and 0.75 < judgement.shared.share_of_draft < 0.85
    with ExitStack() as opened:
        weights = engine.library.open_weights(draft)
        opened.callback(weights.close)
        context = weights.open_context(engine.asked.context(2048, 1), engine.cancel)
        opened.callback(context.close)
        vocabulary = weights.vocabulary or reference().open_vocabulary(draft)
        opened.callback(vocabulary.close)
        translation = translation_between(target, engine.vocab, draft, vocabulary, judgement.shared)
        own = engine._model_drafter
        engine._model_drafter = CrossDrafter(
            Session(context), translation, engine.target.n_vocab, engine.vocab.eog_tokens
        )
        yield strict_llm
        engine._model_drafter = own


@pytest.mark.parametrize("strict_llm", ["llama"], indirect=True)
@pytest.mark.parametrize(("prompt", "options"), [(PROMPTS[0], {"temperature": 0}), (PROMPTS[1], {"seed": 3})])
def test_ids_are_the_targets_own_and_a_fair_part_of_the_drafts_stands(
    crossed_llm, prompt, options, monkeypatch
):
    messages, given = [{"role": "user", "content": prompt}], {"max_tokens": 32, **options}
    plain = crossed_llm.generate(messages, draft_tokens="off", **given)
    for manner in (SHARED, RETOLD):
        with monkeypatch.context() as patch:
            patch.setattr(Manners, "next", lambda self, only=manner: only)
            answer = crossed_llm.generate(messages, draft_tokens=3, **given)
        assert answer.ids == plain.ids
        rate = answer.stats.acceptance_rate
        print(f"\n  {prompt[:20]} {options} {manner}: {rate:.2f} accepted", file=sys.__stderr__)
        assert rate > 0.05
    assert crossed_llm.engine.sessions["draft"].tokens, "what it reads are ids of its own"
