"""The context that each model gets, and what is said about a shorter one."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.engine.engine import Engine
from localspec.engine.options import EngineOptions

from .tinygguf import write_llama


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
    ],
)
def test_a_shorter_training_length_is_said_of_the_model_that_has_it(
    tmp_path: Path, trained: tuple[int, int], warnings: list[str], contexts: tuple[int, int]
) -> None:
    assert opened(tmp_path, *trained) == (warnings, *contexts)
