"""What two different vocabularies share: tokens that stand for the same bytes, whatever their ids and spelling.

A draft of another vocabulary drafts with these, or its text is spelled anew by the target's tokenizer. Ids never pass
between the two without being translated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from localspec.gguf.metadata import Metadata
from localspec.gguf.token_texts import NORMAL, TokenTexts
from localspec.pairs.reason import Reason


@dataclass(frozen=True)
class SharedVocabulary:
    """ids: id of the draft -> id of the target, one to one. share, share_of_draft: of the ids of either (0 to 1) that
    stand for something.
    """

    ids: Mapping[int, int] = field(repr=False)
    share: float
    share_of_draft: float

    def to_dict(self) -> dict[str, float]:
        """Ready for JSON."""
        return {"tokens": len(self.ids), "share_of_target": self.share, "share_of_draft": self.share_of_draft}


def shared_vocabulary(target: Metadata, draft: Metadata) -> SharedVocabulary | None:
    """Tokens of the same bytes; control tokens only where both call them the same. None where bytes are not known."""
    ours, theirs = target.token_texts, draft.token_texts
    if ours is None or theirs is None:
        return None
    of_target, of_draft = _by_bytes(ours, target.token_types), _by_bytes(theirs, draft.token_types)
    ids = {of_draft[key]: of_target[key] for key in sorted(of_draft.keys() & of_target.keys())}
    counts = (sum(map(bool, side.texts)) for side in (ours, theirs))
    share, share_of_draft = (len(ids) / max(count, 1) for count in counts)
    return SharedVocabulary(ids, share, share_of_draft)


def cross_reasons(target: Metadata, draft: Metadata, shared: SharedVocabulary | None) -> list[Reason]:
    """What is said of the vocabularies where texts pass between them: the topics of `VocabularyGap.reasons`."""
    kinds = f"{target.tokenizer_model!r} and {draft.tokenizer_model!r}"
    if target.tokenizer_model == draft.tokenizer_model:
        kinds = f"both of the kind {target.tokenizer_model!r}"
    tokenizer = Reason("tokenizer", "harmless", f"each reads text with a tokenizer of its own, {kinds}")
    if shared is None:
        unknown = (target if target.token_texts is None else draft).tokenizer_model
        clause = f"their vocabularies differ, and what bytes a token of the kind {unknown!r} stands for is not known"
        tokenizer = Reason("tokenizer", "refuses", clause)
    pre = f"each splits text by its own pre-tokenizer, {target.tokenizer_pre!r} and {draft.tokenizer_pre!r}"
    sizes = f"the target has {target.n_vocab} tokens and the draft {draft.n_vocab}"
    return [
        tokenizer,
        Reason("pre-tokenizer", "harmless", pre),
        _ids(target, shared),
        Reason("vocabulary size", "harmless", sizes),
    ]


def _ids(target: Metadata, shared: SharedVocabulary | None) -> Reason:
    topic, count = "token ids", 0 if shared is None else len(shared.ids)
    if shared is None or not count:
        return Reason(topic, "refuses", "their vocabularies differ, and no token of one is one of the other")
    clause = (
        f"their vocabularies differ, and {count} of the target's {target.n_vocab} ids ({shared.share:.0%}) stand for "
        f"the same bytes as one of the draft's ({shared.share_of_draft:.0%} of these): fewer drafted tokens stand than "
        "of a draft with the target's vocabulary"
    )
    return Reason(topic, "costs acceptance", clause)


def _by_bytes(side: TokenTexts, types: bytes) -> dict[tuple[int, bytes], int]:
    """The id of what each token stands for, a usual token before any other and then the lowest."""
    found: dict[tuple[int, bytes], int] = {}
    for usual in (True, False):
        for token, text in enumerate(side.texts):
            if text and usual == (not types or types[token] == NORMAL):
                found.setdefault((side.control[token], text), token)
    return found
