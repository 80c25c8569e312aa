"""pull: models onto this disk, for applications."""

from __future__ import annotations

from localspec.checks import StrPath, check_listener
from localspec.errors import InvalidRequest
from localspec.hub.fetching import pull as pull_pair
from localspec.hub.hubmodels import pull_references
from localspec.hub.sources import store_in
from localspec.pairs.catalogue import pair
from localspec.pairs.reference import parse_reference, required_reference
from localspec.system.progress import ProgressCallback


def pull(
    name: str,
    draft: str | None = None,
    *,
    on_progress: ProgressCallback | None = None,
    offline: bool = False,
    update: bool = False,
    home: StrPath | None = None,
) -> None:
    """Fetch and verify what is missing of a pair, or of a hub's models (`org/repo:quant`), as `localspec pull` does.

    It blocks: call it in a thread. draft: a hub's model to draft with; `name` is then a hub's model too.
    on_progress: called in that thread with a `Progress` of the file at hand, some ten times a second. What it
    raises ends the pull and is passed on; the same call goes on from there.
    offline: open no connection. update: of a hub's models, take what the repository has now.
    home: localspec's folder, by default LOCALSPEC_HOME or the user's data folder.
    Raises `UnknownPair`, `InvalidRequest`, `DownloadError` and its kinds, `DiskFull`, `StoreError`.
    """
    if on_progress is not None:
        check_listener("on_progress", on_progress)
    store = store_in(home)
    if draft is None and parse_reference(name) is None:
        if update:
            raise InvalidRequest(
                f"{name} is no model of a hub.",
                "Leave out update: a pair is the same for ever.",
                name="update",
            )
        pull_pair(pair(name, store.home), store=store, offline=offline, progress=on_progress)
        return
    references = [required_reference(each) for each in (name, draft) if each is not None]
    pull_references(references, store=store, offline=offline, update=update, progress=on_progress)
