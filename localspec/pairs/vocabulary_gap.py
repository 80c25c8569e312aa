"""How the draft's vocabulary differs from the target's.

Ids, never texts, pass between the two models, and the target judges each of them. So the one thing that
matters is that an id means the same to both. What follows from that:

- The vocabularies must spell the same tokens under the same ids, under the same kind of tokenizer. A few
  differing entries (renamed control tokens, placeholders) cost acceptance and never correctness, so up to 1 %
  of the target's ids may mean something else to the draft, or be unknown to it. Padding is not counted.
- Ids that only the draft has are masked before drawing; they do not count.
- Only the target's pre-tokenizer splits text. Another one in the draft is named, and never refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from localspec.gguf.metadata import Metadata
from localspec.pairs.reason import Reason, Severity

TOLERATED_SHARE = 0.01
SHOWN = 5
_PADDING = re.compile(
    rb"(?i)^[<\[|]*(pad|dummy|empty|extra|extra_id|extra_token|unused|unused_token|reserved"
    rb"|reserved_special_token|reserved_token|placeholder|special)[-_: ]*\d*[>\]|]*$"
)
_PADDING_STARTS = frozenset(b"<[|pdeursPDEURS")


@dataclass(frozen=True)
class Difference:
    """One id, and what it spells to each model."""

    id: int
    target: str
    draft: str


class VocabularyGap:
    """What separates two vocabularies. common: how many ids both have."""

    def __init__(self, target: Metadata, draft: Metadata) -> None:
        self._target, self._draft = target, draft
        self.common = min(target.n_vocab, draft.n_vocab)

    @cached_property
    def differing(self) -> list[int]:
        """The ids that both spell, and spell differently."""
        ours, theirs = self._target.tokens[: self.common], self._draft.tokens[: self.common]
        if ours == theirs:
            return []
        pairs = enumerate(zip(ours, theirs, strict=True))
        differing = [(token, a, b) for token, (a, b) in pairs if a != b]
        return [token for token, a, b in differing if not (_is_padding(a) or _is_padding(b))]

    @cached_property
    def unknown(self) -> int:
        """How many of the target's ids the draft does not have."""
        return sum(1 for token in self._target.tokens[self.common :] if not _is_padding(token))

    @property
    def share(self) -> float:
        """The share (0 to 1) of the target's ids that mean nothing, or something else, to the draft."""
        return (len(self.differing) + self.unknown) / self._target.n_vocab

    @property
    def first(self) -> tuple[Difference, ...]:
        """The first ids that differ, with both texts."""
        return tuple(self._difference(token) for token in self.differing[:SHOWN])

    def reasons(self) -> list[Reason]:
        """One reason each for kind of tokenizer, pre-tokenizer, ids and sizes."""
        return [self._kind(), self._pre_tokenizer(), self._ids(), self._sizes()]

    def _difference(self, token: int) -> Difference:
        return Difference(token, spelled(self._target.tokens[token]), spelled(self._draft.tokens[token]))

    def _kind(self) -> Reason:
        ours, theirs = self._target.tokenizer_model, self._draft.tokenizer_model
        if ours != theirs:
            clause = f"their tokenizers are of different kinds, {ours!r} and {theirs!r}"
            return Reason("tokenizer", "refuses", clause)
        return Reason("tokenizer", "harmless", f"both tokenizers are of the kind {ours!r}")

    def _pre_tokenizer(self) -> Reason:
        ours, theirs = _pre(self._target), _pre(self._draft)
        if ours == theirs:
            return Reason("pre-tokenizer", "harmless", f"both have the pre-tokenizer {ours!r}")
        clause = f"their pre-tokenizers are {ours!r} and {theirs!r}"
        kinds = {self._target.tokenizer_model, self._draft.tokenizer_model}
        if kinds != {"gpt2"}:  # the one kind that splits text before it merges
            return Reason("pre-tokenizer", "harmless", clause)
        clause += ", so the draft may know text in other pieces than the target's"
        return Reason("pre-tokenizer", "costs acceptance", clause)

    def _ids(self) -> Reason:
        if not self.differing:
            return Reason("token ids", "harmless", f"{self._all_ids()} mean the same to both")
        first = self.first[0]
        example = (
            f"the first being {first.id}, {first.target!r} to the target and {first.draft!r} to the draft"
        )
        if self.share <= TOLERATED_SHARE:
            count = f"{len(self.differing)} of {self._target.n_vocab} ids"
            return Reason(
                "token ids", "costs acceptance", f"{count} mean something else to the draft, {example}"
            )
        hint = ""
        if _pre(self._target) != _pre(self._draft):
            hint = f" (pre-tokenizers {_pre(self._target)!r} and {_pre(self._draft)!r})"
        clause = f"their vocabularies differ in {self.share:.0%} of the ids{hint}, {example}"
        return Reason("token ids", "refuses", clause)

    def _all_ids(self) -> str:
        same_size = self._target.n_vocab == self._draft.n_vocab
        return f"all {self.common} ids" if same_size else f"the {self.common} ids that both have"

    def _sizes(self) -> Reason:
        ours, theirs = self._target.n_vocab, self._draft.n_vocab
        if ours == theirs:
            return Reason("vocabulary size", "harmless", f"both vocabularies have {ours} tokens")
        if ours < theirs:
            clause = (
                f"the target has {ours} tokens and the draft {theirs}, of which it never proposes the last"
            )
            return Reason("vocabulary size", "harmless", f"{clause} {theirs - ours}")
        clause = f"the target has {ours} tokens and the draft knows only the first {theirs}"
        if not self.unknown:
            return Reason("vocabulary size", "harmless", f"{clause}; the others are padding")
        severity: Severity = "costs acceptance"
        if self.share > TOLERATED_SHARE and not self.differing:
            severity = "refuses"
        return Reason("vocabulary size", severity, clause)


def spelled(token: bytes) -> str:
    """A token as it is shown in messages."""
    return token.decode("utf-8", errors="replace")


def _pre(model: Metadata) -> str:
    return model.tokenizer_pre or "default"


def _is_padding(token: bytes) -> bool:
    if not token:
        return True
    return token[0] in _PADDING_STARTS and _PADDING.match(token) is not None
