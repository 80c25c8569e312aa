"""The next turn of a conversation as ids, without tokenizing again what was said before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from localspec.text.messages import checked_messages
from localspec.text.prompt import Hidden, Template, Vocabulary, literals_of, prompt_ids, tokenize_parts


class SpellingVocabulary(Vocabulary, Protocol):
    """A tokenizer that also gives the bytes of an id."""

    def piece(self, token: int, *, special: bool = False) -> bytes: ...


@dataclass(frozen=True)
class Prompt:
    """ids: what the model reads, from the start. digest: of their text, to see later whether that is unchanged.

    reread: why the history was rendered and tokenized again, or "".
    """

    ids: tuple[int, ...]
    digest: str
    reread: str = ""


@dataclass(frozen=True)
class Said:
    """The last answer and the prompt before it: the ids that the model read and wrote."""

    prompt: tuple[int, ...]
    digest: str
    ids: tuple[int, ...]
    text: str


def next_prompt(
    vocab: SpellingVocabulary,
    template: Template,
    messages: Sequence[Mapping[str, object]],
    said: Said | None,
) -> Prompt:
    """The prompt for `messages`, which end with the answer `said` and a new question; None: nothing was said yet.

    The ids said are kept and only what the template writes behind the answer is added. That is not possible where
    the template changes what came before, or the ids do not spell the answer's text: then all of it is rendered
    again. Raises what `render_prompt` raises.
    """
    hidden = Hidden(literals_of(vocab.control_literals))
    shielded = [hidden.hide_in(message) for message in checked_messages(messages)]
    whole = template.render(shielded)
    digest = _digest(hidden.restore(whole))
    if said is None:
        return Prompt(tuple(prompt_ids(vocab, hidden.split(whole))), digest)
    added = _added(vocab, template, shielded, whole, hidden, said)
    if isinstance(added, str):
        return Prompt(tuple(prompt_ids(vocab, hidden.split(whole))), digest, added)
    return Prompt((*said.prompt, *said.ids, *added), digest)


def _added(
    vocab: SpellingVocabulary,
    template: Template,
    shielded: list[dict[str, str]],
    whole: str,
    hidden: Hidden,
    said: Said,
) -> list[int] | str:
    """Ids of what stands behind the last answer; or why they cannot simply be added."""
    if _spelled(vocab, said.ids, special=False) != said.text:
        return "The last answer was cut at a stop string, so it is read again without it."
    answer = shielded[-2]["content"]
    marked = [*shielded[:-2], {**shielded[-2], "content": hidden.mark}, shielded[-1]]
    before, *behind = template.render(marked).split(hidden.mark)
    if len(behind) != 1 or whole not in {before + text + behind[0] for text in (answer, answer.strip())}:
        return "The chat template changes the last answer, so it is read again as the template writes it."
    if _digest(hidden.restore(before)) != said.digest:
        return "The chat template writes the earlier turns differently now, so they are read again."
    ids = tokenize_parts(vocab, hidden.split(behind[0]))
    if _spelled(vocab, ids, special=True) != hidden.restore(behind[0]):
        return "The tokenizer reads text in pieces differently, so the whole is read again."
    return ids


def _spelled(vocab: SpellingVocabulary, ids: Sequence[int], *, special: bool) -> str:
    return b"".join(vocab.piece(token, special=special) for token in ids).decode("utf-8", "replace")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
