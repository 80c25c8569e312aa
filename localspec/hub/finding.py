"""Which files a reference stands for.

The hub says which files these are, and their sha256. That is pinned on disk when the model is pulled, so that a
reference means the same bytes from then on, without a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import OfflineError
from localspec.hub import endpoint
from localspec.pairs.offer import offers
from localspec.pairs.pair import HubSource, ModelFile, Pair
from localspec.pairs.pins import Pins, hub_model, pinned_pair
from localspec.pairs.reference import Reference, choose

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

LIST_SECONDS = 15.0
"""A list of files takes longer than a probe: some repositories have thousands."""
BRANCH = "main"
_CHECK = "Check the name; a private one needs `hf auth login`."


def resolve(reference: Reference, *, offline: bool = False, home: Path | None = None) -> ModelFile:
    """The model it stands for, with size, sha256 and commit: as pinned, else as the hub has it now.

    offline: open no connection. home: the store's folder. Nothing is written.
    Raises what `find` raises.
    """
    return find(reference, offline=offline, home=home).target


def find(
    reference: Reference, *, offline: bool = False, home: Path | None = None, update: bool = False
) -> Pair:
    """Like `resolve`, as a pair without a draft. update: ask the hub even if it is pinned.

    Raises InvalidRequest (no quantization named, or several files have it; the message names those on offer),
    FileMissing (no such repository or quantization), AccessDenied, SourceUnreachable, OfflineError, StoreError.
    """
    pinned = None if update else Pins(home).get(str(reference))
    if pinned is not None:
        return pinned
    if offline:
        raise OfflineError(
            f"{reference} has not been pulled, and offline forbids the network.",
            f'Call `localspec.pull("{reference}")` without offline.',
            command=f"Run `localspec pull {reference}` without --offline.",
            file=str(reference),
            source="",
        )
    return _ask(reference)


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

    api = HfApi(endpoint=endpoint.endpoint(), **endpoint.NAMED)
    return api.model_info(repo, timeout=LIST_SECONDS, files_metadata=True)


def _licence(info: ModelInfo) -> str:
    named = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    return named[0] if named else "unknown"
