"""Whether a draft can draft for a target, judged from metadata alone.

Ids, never texts, pass between the two models, and the target judges each of them. So the one thing that
matters is that an id means the same to both. What follows from that:

- The vocabularies must spell the same tokens under the same ids, under the same kind of tokenizer. A few
  differing entries (renamed control tokens, placeholders) cost acceptance and never correctness, so up to 1 %
  of the target's ids may mean something else to the draft, or be unknown to it. Padding is not counted.
- Ids that only the draft has are masked before drawing; they do not count.
- Pre-tokenizers, BOS, EOS, end-of-generation sets and chat templates are not compared: only the target's are
  used. A pre-tokenizer that differs is named as a hint when the ids differ too.
- Rollback is by truncation, so neither model may hold a running state.
"""

from __future__ import annotations

import re

from localspec.errors import PairingError
from localspec.llama.metadata import Metadata

TOLERATED_SHARE = 0.01
_PADDING = re.compile(
    rb"(?i)^[<\[|]*(pad|dummy|empty|extra|extra_id|extra_token|unused|unused_token|reserved"
    rb"|reserved_special_token|reserved_token|placeholder|special)[-_: ]*\d*[>\]|]*$"
)
_REMEDY = "--no-draft goes on without a draft."


def why_no_draft(target: Metadata) -> str | None:
    """Why no draft at all can serve this target, as a clause, or None where one can."""
    return _running_state(target, "the target")


def check_pair(target: Metadata, draft: Metadata) -> None:
    """Raises PairingError (`target`, `draft`, `reason`) when `draft` cannot draft for `target`."""
    reason = (
        why_no_draft(target)
        or _running_state(draft, "the draft")
        or _other_tokenizer(target, draft)
        or _other_ids(target, draft)
    )
    if reason:
        sentence = f"{draft.path.name} cannot draft for {target.path.name}: {reason}."
        raise PairingError(sentence, _REMEDY, target=target.path, draft=draft.path, reason=reason)


def _running_state(model: Metadata, role: str) -> str | None:
    if not (model.is_recurrent or model.is_hybrid):
        return None
    kind = "recurrent" if model.is_recurrent else "hybrid"
    return f"{role} is a {kind} model ({model.architecture}), whose state cannot be rolled back"


def _other_tokenizer(target: Metadata, draft: Metadata) -> str | None:
    if target.tokenizer_model == draft.tokenizer_model:
        return None
    kinds = f"{target.tokenizer_model!r} and {draft.tokenizer_model!r}"
    return f"their tokenizers are of different kinds, {kinds}"


def _other_ids(target: Metadata, draft: Metadata) -> str | None:
    common = min(target.n_vocab, draft.n_vocab)
    ours, theirs = target.tokens[:common], draft.tokens[:common]
    differing = [] if ours == theirs else _differing_ids(ours, theirs)
    unknown = sum(1 for token in target.tokens[common:] if not _is_padding(token))
    share = (len(differing) + unknown) / target.n_vocab
    if share <= TOLERATED_SHARE:
        return None
    if not differing:
        return f"the target has {target.n_vocab} tokens and the draft knows only the first {common}"
    first = differing[0]
    hint = ""
    if target.tokenizer_pre != draft.tokenizer_pre:
        hint = f" (pre-tokenizers {target.tokenizer_pre!r} and {draft.tokenizer_pre!r})"
    return (
        f"their vocabularies differ in {share:.0%} of the ids{hint}, the first being {first}, "
        f"{_spelled(ours[first])} to the target and {_spelled(theirs[first])} to the draft"
    )


def _differing_ids(ours: tuple[bytes, ...], theirs: tuple[bytes, ...]) -> list[int]:
    pairs = enumerate(zip(ours, theirs, strict=True))
    differing = [(token, a, b) for token, (a, b) in pairs if a != b]
    return [token for token, a, b in differing if not (_is_padding(a) or _is_padding(b))]


def _is_padding(token: bytes) -> bool:
    return not token or _PADDING.match(token) is not None


def _spelled(token: bytes) -> str:
    return repr(token.decode("utf-8", errors="replace"))
