"""The context that each model gets, and what is said about a shorter one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec import LLM
from localspec.answers.request import Completion
from localspec.engine.engine import Engine
from localspec.engine.options import EngineOptions

from .tinygguf import N_VOCAB, write_llama


def opened(folder: Path, target: int, draft: int, n_ctx: int = 256) -> tuple[list[str], int, int]:
    """Warnings and contexts of both models, trained for so many tokens."""
    files = [
        write_llama(folder / f"{name}.gguf", n_ctx_train=trained)
        for name, trained in (("target", target), ("draft", draft))
    ]
    engine = Engine(*files, EngineOptions(n_ctx=n_ctx))
    try:
        assert engine.draft is not None
        return engine.warnings, engine.target.n_ctx, engine.draft.n_ctx
    finally:
        engine.close()


DRAFT = "The draft proposes only within the first 64 tokens: it was trained for no more."
TARGET = "The context is 128 tokens: target.gguf was trained for no more."


@pytest.mark.parametrize(
    ("trained", "warnings", "contexts"),
    [
        ((512, 512), [], (256, 256)),
        ((512, 64), [DRAFT], (256, 64)),
        ((128, 512), [TARGET], (128, 128)),
        ((128, 64), [TARGET, DRAFT], (128, 64)),
        ((128, 128), [TARGET], (128, 128)),
        ((128, 200), [TARGET], (128, 128)),
        ((256, 256), [], (256, 256)),  # just what they were trained for
        ((512, 256), [], (256, 256)),
    ],
)
def test_a_shorter_training_length_is_said_of_the_model_that_has_it(
    tmp_path: Path, trained: tuple[int, int], warnings: list[str], contexts: tuple[int, int]
) -> None:
    assert opened(tmp_path, *trained) == (warnings, *contexts)


# When the draft model ends


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, a draft whose context is shorter, and a target with tokens that the draft lacks."""
    folder = tmp_path_factory.mktemp("unlike")
    return {
        "target": write_llama(folder / "target.gguf", seed=1),
        "short": write_llama(folder / "short.gguf", seed=1, noise=0.05, n_ctx_train=48),
        "draft": write_llama(folder / "draft.gguf", seed=1, noise=0.05),
        "larger": write_llama(folder / "larger.gguf", seed=1, n_vocab=N_VOCAB + 1),
    }


def answered(target: Path, draft: Path, prompt: list[int], **options: Any) -> Completion:
    with LLM.from_files(target, draft, n_ctx=256, threads=1, cache_type_v="bf16", **options) as llm:
        llm.generate(prompt[:3], max_tokens=4)  # of which nothing is left in what is said of the next
        return llm.generate(prompt, temperature=0, max_tokens=40)


def test_it_is_said_when_and_why_the_draft_model_ended_in_an_answer(unlike: dict[str, Path]) -> None:
    answer = answered(unlike["target"], unlike["short"], list(range(65, 85)), draft_tokens=4)
    assert answer.stats.drafted > 0 and answer.stats.draft_ended_at == 48
    assert answer.stats.to_dict()["draft_ended_at"] == 48
    assert answer.drafting == (
        "on, 4 tokens a round from the draft model; the draft model ended at token 48: its context holds 48 tokens"
    )


@pytest.mark.parametrize("draft_tokens", [4, "auto"])
def test_a_conversation_that_is_longer_from_the_start_is_not_drafted_for(
    unlike: dict[str, Path], monkeypatch: pytest.MonkeyPatch, draft_tokens: int | str
) -> None:
    monkeypatch.setattr("localspec.decoding.adaptive_plan.AdaptivePlan.take", lambda *_arguments: False)
    answer = answered(unlike["target"], unlike["short"], list(range(65, 125)), draft_tokens=draft_tokens)
    assert answer.stats.drafted == 0 and answer.stats.draft_ended_at == 48
    assert answer.drafting == "off: the draft model ended at token 48: its context holds 48 tokens"


def test_a_token_that_the_draft_lacks_ends_it_too(unlike: dict[str, Path]) -> None:
    answer = answered(unlike["larger"], unlike["draft"], [65, 66, N_VOCAB, 67], draft_tokens=4)
    assert answer.drafting == "off: the draft model ended at token 5: it does not know a token of the text"


def test_nothing_is_said_where_it_did_not_end(unlike: dict[str, Path]) -> None:
    answer = answered(unlike["target"], unlike["draft"], list(range(65, 125)), draft_tokens=4)
    assert answer.drafting == "on, 4 tokens a round from the draft model"
    assert answer.stats.draft_ended_at is None
