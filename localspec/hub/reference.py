"""References: `org/repo:quant` names a model of any repository of a model hub.

The hub says which files these are, and their sha256. That is pinned on disk when the model is pulled, so that a
reference means the same bytes from then on, without a network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import FileMissing, InvalidRequest, OfflineError
from localspec.hub import endpoint
from localspec.hub.offer import Offer, offers
from localspec.hub.pair import HubSource, ModelFile, Pair
from localspec.hub.pins import Pins, hub_model, pinned_pair

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

LIST_SECONDS = 15.0
"""A list of files takes longer than a probe: some repositories have thousands."""
BRANCH = "main"
_REFERENCE = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w+=@,()\[\] ./-]+))?", re.ASCII)
_CHECK = "Check the name; a private one needs `hf auth login`."


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


def references(home: Path | None = None) -> list[Pair]:
    """Every pinned reference as a pair without a draft, named by it; its files need not be on disk."""
    return Pins(home).all()


def resolve(reference: Reference, *, offline: bool = False, home: Path | None = None) -> ModelFile:
    """The model it stands for, with size, sha256 and commit: as pinned, else as the hub has it now.

    offline: open no connection. home: the store's folder. Nothing is written.
    Raises what `find` raises.
    """
    return find(reference, offline=offline, home=home).target


def find(
    reference: Reference, *, offline: bool = False, home: Path | None = None, update: bool = False
) -> Pair:
    """Like `resolve`, as a pair without a draft. update: ask the hub also where it is pinned.

    Raises InvalidRequest (no quantization named, or several files have it; the message names those on offer),
    FileMissing (no such repository or quantization), AccessDenied, SourceUnreachable, OfflineError, StoreError.
    """
    pinned = None if update else Pins(home).get(str(reference))
    if pinned is not None:
        return pinned
    if offline:
        raise OfflineError(
            f"{reference} has not been pulled, and --offline forbids the network.",
            f"Run `localspec pull {reference}` without --offline.",
            file=str(reference),
            source="",
        )
    return _ask(reference)


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


def _ask(reference: Reference) -> Pair:
    """What the hub has under the reference now."""
    faults = endpoint.faults_of(str(reference), HubSource(reference.repo, BRANCH), _CHECK)
    info = endpoint.ask(faults, lambda: _repository(reference.repo), LIST_SECONDS)
    if not isinstance(info.sha, str) or info.siblings is None:
        raise faults.no_hub()
    by_path = {file.rfilename: file for file in info.siblings}
    chosen = choose(reference, offers(by_path))
    files = [by_path[path] for path in chosen.paths]
    without = next((file.rfilename for file in files if file.lfs is None), None)
    if without is not None:
        # What git itself keeps has a SHA-1 only, and that can be forged.
        raise faults.wrong(f"gives no sha256 for {without}, so what it sends could not be verified")
    try:
        model = hub_model(reference.repo, info.sha, [_facts(file) for file in files])
    except ValueError as error:
        raise faults.wrong(f"says what cannot be about {reference}: {error}") from error
    return pinned_pair(str(reference), _licence(info), model)


def _facts(file: RepoSibling) -> tuple[str, int, str]:
    assert file.lfs is not None
    return file.rfilename, file.lfs.size, str(file.lfs.sha256)


def _repository(repo: str) -> ModelInfo:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint.endpoint())
    return api.model_info(repo, timeout=LIST_SECONDS, files_metadata=True)


def _licence(info: ModelInfo) -> str:
    named = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    return named[0] if named else "unknown"
