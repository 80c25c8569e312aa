"""What passes between a target and a draft of different vocabularies, from what their files and tokenizers say."""

from __future__ import annotations

from localspec.compute.vocabulary import Vocabulary
from localspec.gguf.metadata import Metadata
from localspec.pairs.shared_vocabulary import SharedVocabulary
from localspec.text.spelling import Speller
from localspec.text.translation import Side, Translation


def translation_between(
    target: Metadata,
    target_vocab: Vocabulary,
    draft: Metadata,
    draft_vocab: Vocabulary,
    shared: SharedVocabulary,
) -> Translation:
    """Both vocabularies with what they share."""
    return Translation(_side(target, target_vocab), _side(draft, draft_vocab), shared.ids)


def _side(model: Metadata, vocab: Vocabulary) -> Side:
    known = model.token_texts
    assert known is not None, "a pair of which this is not known was refused"
    bos = -1 if model.bos_id is None else model.bos_id
    return Side(Speller(vocab, known.texts, known.control), known.texts, known.control, bos, model.add_bos)
