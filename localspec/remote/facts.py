"""Facts: what of the models that another process computes is known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localspec.engine.keeper import EngineKeeper


@dataclass(frozen=True)
class Facts:
    """Of a keeper in a child. build: the target's. has_draft: whether a draft model, or layers that draft, are loaded.

    The rest as in `EngineKeeper` and `Engine`.
    """

    n_ctx: int
    n_vocab: int
    build: str
    has_draft: bool
    most_draft_tokens: int
    no_draft_reason: str
    warnings: tuple[str, ...]
    settings: dict[str, Any]
    drafting: str
    hint: str


def facts_of(keeper: EngineKeeper) -> Facts:
    """What there is to say of it now."""
    engine = keeper.engine
    return Facts(
        n_ctx=engine.target.n_ctx,
        n_vocab=engine.target.n_vocab,
        build=engine.target.weights.build,
        has_draft=engine.draft is not None,
        most_draft_tokens=engine.most_draft_tokens,
        no_draft_reason=engine.no_draft_reason,
        warnings=tuple(keeper.warnings),
        settings=keeper.settings,
        drafting=keeper.drafting,
        hint=keeper.hint,
    )
