"""Whether models can be fetched: one brief question to the model hub, and one to the package index."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.doctor.finding import Finding, Status, note, ok, problem
from localspec.errors import AccessDenied, DownloadError, SourceUnreachable
from localspec.hub.endpoint import endpoint
from localspec.hub.hubfile import HubFile
from localspec.hub.pipindex import index_versions
from localspec.hub.route import public
from localspec.pairs.catalogue import DEFAULT_PAIR, HubSource, ModelFile, WheelSource, pair

HUB, INDEX = "Hugging Face", "package index"


def check_network(offline: bool) -> Iterator[Finding]:
    """Both sources of the default pair. One is enough: only when neither can be used is that a problem."""
    file = pair(DEFAULT_PAIR).files[-1]
    if offline:
        yield ok(HUB, "not asked, because of --offline", asked=False)
        yield ok(INDEX, "not asked, because of --offline", asked=False)
        return
    hub, index = _hub(file), _index(file)
    unusable = all(found.data["reachable"] is False for found in (hub, index))
    for found in (hub, index):
        if unusable and found.status is Status.NOTE:
            found = problem(found.topic, found.fact, found.remedy, **found.data)
        yield found


def _hub(file: ModelFile) -> Finding:
    source = next(item for item in file.sources if isinstance(item, HubSource))
    has_token = _has_token()
    data: dict[str, object] = {
        "endpoint": public(endpoint()),
        "token": has_token,
        "asked": True,
        "reachable": True,
    }
    try:
        HubFile(file, source).probe()
    except SourceUnreachable as error:
        return note(HUB, error.message, error.command, **{**data, "reachable": False})
    except AccessDenied as error:
        return problem(HUB, error.message, error.command, **{**data, "token_accepted": False})
    except DownloadError as error:
        return note(HUB, error.message, error.command, **{**data, "reachable": False})
    token = "your token is accepted" if has_token else "no token is set, which only gated models need"
    return ok(HUB, f"{public(endpoint())} answers; {token}", **data, token_accepted=has_token or None)


def _index(file: ModelFile) -> Finding:
    source = next(item for item in file.sources if isinstance(item, WheelSource))
    package = source.packages.format(i=1)
    try:
        versions = index_versions(package)
    except DownloadError as error:
        return note(INDEX, error.message, error.command, asked=True, reachable=False)
    if source.version not in versions:
        fact = f"The package index has no {package} {source.version}: it is of no use as a second source."
        return note(
            INDEX, fact, "Check which index pip uses (`pip config list`).", asked=True, reachable=False
        )
    return ok(
        INDEX, "pip reaches it and it has the default pair, as a second source", asked=True, reachable=True
    )


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
