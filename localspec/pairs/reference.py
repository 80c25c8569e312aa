"""References: `org/repo:quant` names a model of any repository of a model hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localspec.errors import FileMissing, InvalidRequest
from localspec.pairs.offer import Offer
from localspec.pairs.pair import HubSource

_REFERENCE = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w+=@,()\[\] ./-]+))?", re.ASCII)


@dataclass(frozen=True)
class Reference:
    """A model in a repository. choice: a quantization in capitals, a file's path, or "" for none."""

    repo: str
    choice: str

    @property
    def is_file(self) -> bool:
        """Whether a file is named, not a quantization."""
        return self.choice.lower().endswith(".gguf")

    def __str__(self) -> str:
        return f"{self.repo}:{self.choice}" if self.choice else self.repo


def parse_reference(text: str) -> Reference | None:
    """`org/repo:quant`, `org/repo:FILE.gguf` or `org/repo`; None for any other text, such as a path."""
    match = _REFERENCE.fullmatch(text)
    if match is None or (match[2] is None and text.lower().endswith(".gguf")):
        return None
    choice = match[2] or ""
    return Reference(match[1], choice if choice.lower().endswith(".gguf") else choice.upper())


def required_reference(text: str) -> Reference:
    """The reference that `text` is. Raises InvalidRequest."""
    reference = parse_reference(text) if isinstance(text, str) else None
    if reference is None:
        raise InvalidRequest(
            f"{text!r:.100} does not name a model of a hub.",
            "Write org/repo:quant, such as Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M.",
            name="reference",
            value=text,
        )
    return reference


def choose(reference: Reference, offered: list[Offer]) -> Offer:
    """The one model among `offered` that the reference names. Raises InvalidRequest, FileMissing."""
    fitting = [offer for offer in offered if _fits(reference, offer)]
    # Some repositories have a model twice, in one file and split.
    names_found = {offer.name for offer in fitting}
    found = [offer for offer in fitting if offer.parts_of not in names_found]
    if len(found) == 1 and not found[0].missing:
        return found[0]
    if len(found) > 1:
        names = [offer.name for offer in found]
        raise InvalidRequest(
            f"{reference} may be any of {len(names)} files: {', '.join(names)}.",
            f"Name the file, such as {reference.repo}:{names[0]}.",
            name="reference",
            value=str(reference),
            offered=names,
        )
    if found:
        raise _missing(reference, f"{reference} lacks the part {found[0].missing[0]}", "")
    if reference.choice:
        what = "file" if reference.is_file else "quantization"
        sentence = f"The repository {reference.repo} has no {what} {reference.choice}"
        raise _missing(reference, sentence, _on_offer(offered, files=reference.is_file))
    raise InvalidRequest(
        f"{reference} names a repository, and none of its models.",
        f"{_on_offer(offered)} Write {reference.repo}:QUANTIZATION.",
        name="reference",
        value=str(reference),
    )


def _fits(reference: Reference, offer: Offer) -> bool:
    if reference.is_file:
        named = (*offer.paths, *(path.rpartition("/")[2] for path in offer.paths))
        return reference.choice in named
    return bool(reference.choice) and offer.quantization == reference.choice


def _on_offer(offered: list[Offer], *, files: bool = False) -> str:
    quantizations = sorted({offer.quantization for offer in offered} - {""})
    names = [offer.name for offer in offered] if files or not quantizations else quantizations
    if not names:
        return "It has no GGUF files: the repository that has them is often named -GGUF."
    return f"On offer: {', '.join(names)}."


def _missing(reference: Reference, fault: str, remedy: str) -> FileMissing:
    remedy = remedy or "Tell its owner, or choose another quantization."
    return FileMissing(f"{fault}.", remedy, file=str(reference), source=HubSource.kind)
