"""One round on trees of exact distributions: any way to draft, judged by the real rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from localspec.decoding.sampling import Distribution
from localspec.decoding.verify import Draft, Round, _BlockRound, _RejectionRound, coupled

from .enumeration import Path, Tokens, Tree, Uniform, exact_point, outcomes

Propose = Callable[[Round], Draft]
Stop = Callable[[Tokens, Distribution], bool]
"""Asked before a draw, with the tokens drafted so far and the distribution of the next."""


@dataclass
class SharedRound:
    """The coupled rule with one number for each position, which draft and target share; both invert their own
    cumulative distribution. Unlike Gumbel noise that can be enumerated."""

    path: Path
    numbers: dict[int, Uniform] = field(default_factory=dict)

    def draw(self, probs: Distribution, position: int) -> int:
        number = self.numbers.setdefault(position, self.path.random())
        return probs.sample(number)  # type: ignore[arg-type]

    def verify(self, target_probs: Any, draft: Draft) -> Any:
        return coupled(target_probs, draft, self.draw)


ROUNDS: dict[str, Callable[[Any], Any]] = {
    "rejection": _RejectionRound,
    "block": _BlockRound,
    "coupled": SharedRound,
}


def emitted(rule: str, target: Tree, propose: Propose) -> dict[Tokens, Any]:
    """Probability of everything that one round may commit."""

    def run(path: Path) -> Tokens:
        round_ = ROUNDS[rule](path)
        draft = propose(round_)
        rows = [target[draft.tokens[:index]] for index in range(len(draft.tokens) + 1)]
        verdict = round_.verify(rows, draft)
        return (*draft.tokens[: verdict.num_accepted], verdict.next_token)

    return outcomes(run)


def expected_tokens(rule: str, target: Tree, propose: Propose) -> Any:
    """Mean of the tokens that a round commits."""
    return sum(len(tokens) * chance for tokens, chance in emitted(rule, target, propose).items())


def never(_tokens: Tokens, _probs: Distribution) -> bool:
    return False


def drawn(tree: Tree, num_draft_tokens: int, stop: Stop = never) -> Propose:
    """Draws every token from the tree, until the stop rule says no."""

    def propose(round_: Round) -> Draft:
        tokens: Tokens = ()
        while len(tokens) < num_draft_tokens and not stop(tokens, tree[tokens]):
            tokens = (*tokens, round_.draw(tree[tokens], len(tokens)))
        return Draft(tokens, tuple(tree[tokens[:index]] for index in range(len(tokens))))

    return propose


def copied_then_drawn(copied: Tokens, tree: Tree, num_draft_tokens: int, stop: Stop = never) -> Propose:
    """Some tokens that nobody drew, then tokens of the tree."""

    def propose(round_: Round) -> Draft:
        tokens = copied
        while len(tokens) < num_draft_tokens and not stop(tokens, tree[tokens]):
            tokens = (*tokens, round_.draw(tree[tokens], len(tokens)))
        points = tuple(map(exact_point, copied))
        return Draft(tokens, points + tuple(tree[tokens[:i]] for i in range(len(copied), len(tokens))))

    return propose


def dropping(tree: Tree, num_draft_tokens: int, least: Any) -> Propose:
    """The fault: draws, and takes a token back where the draft found it unlikely."""

    def propose(round_: Round) -> Draft:
        tokens: Tokens = ()
        while len(tokens) < num_draft_tokens:
            token = round_.draw(tree[tokens], len(tokens))
            if tree[tokens].prob(token) < least:
                break
            tokens = (*tokens, token)
        return Draft(tokens, tuple(tree[tokens[:index]] for index in range(len(tokens))))

    return propose
