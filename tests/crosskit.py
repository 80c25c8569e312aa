"""Two vocabularies of a few letters, and what passes between them."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.cross_drafter import CrossDrafter
from localspec.decoding.manners import RETOLD, SHARED
from localspec.decoding.session import Session
from localspec.text.spelling import Speller
from localspec.text.translation import Side, Translation

from .fakes import FakeContext, LogitModel


class LetterVocabulary:
    """A tokenizer that takes the longest piece at every place. control: ids of control tokens."""

    control_literals: frozenset[str] = frozenset()
    bos_text, add_bos = "", False

    def __init__(self, texts: Sequence[bytes], control: Sequence[int] = ()) -> None:
        self.texts = list(texts)
        self.control = bytes(token in control for token in range(len(texts)))
        self.asked: list[str] = []

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        self.asked.append(text)
        data, ids = text.encode(), []
        pieces = {text: token for token, text in enumerate(self.texts) if not self.control[token]}
        while data:
            size = next((size for size in range(len(data), 0, -1) if data[:size] in pieces), 0)
            if not size:
                return []
            ids.append(pieces[data[:size]])
            data = data[size:]
        return ids

    def side(self, bos: int = -1, *, add_bos: bool = False) -> Side:
        return Side(Speller(self, self.texts, self.control), self.texts, self.control, bos, add_bos)

    def text(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.texts[token] for token in ids)


def between(target: LetterVocabulary, draft: LetterVocabulary, *sides: Side) -> Translation:
    """sides: of the target and the draft, where they are not the plain ones."""
    keys = {(target.control[token], text): token for token, text in enumerate(target.texts)}
    shared = {
        token: keys[draft.control[token], text]
        for token, text in enumerate(draft.texts)
        if (draft.control[token], text) in keys
    }
    return Translation(*(sides or (target.side(), draft.side())), shared)


def cross_drafter(
    model: LogitModel,
    translation: Translation,
    n_vocab: int,
    *,
    manner: str | None = None,
    eog: frozenset[int] = frozenset(),
    **sizes: int,
) -> CrossDrafter:
    """manner: the only one; None: what it chooses by itself."""
    n_own = len(translation.draft.texts)
    drafter = CrossDrafter(Session(FakeContext(model, n_own, **sizes)), translation, n_vocab, eog)
    if manner is not None:
        assert manner in (SHARED, RETOLD)
        drafter._manners.next = lambda: manner  # type: ignore[method-assign]
    return drafter


def check_cells(drafter: CrossDrafter, sequence: Sequence[int]) -> None:
    """Between rounds the draft's cells hold what the session says: ids that stand for a beginning of the text."""
    between, context = drafter._between, drafter.session.context
    assert isinstance(context, FakeContext) and isinstance(between, Translation)
    held = drafter.session.tokens
    assert held == context.cells.get(drafter.session.sequence_id, [])
    head = 1 if between.draft.add_bos and held[:1] == [between.draft.bos] else 0
    skip = 1 if sequence and sequence[0] == between.target.bos and sequence[0] not in between.to_draft else 0
    text = b"".join(between.target.texts[token] for token in sequence[skip:-1])
    assert text.startswith(b"".join(between.draft.texts[token] for token in held[head:]))
