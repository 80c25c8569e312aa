"""From options to a loaded engine; offers to pull a pair that is not on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.model_options import ModelOptions
from localspec.cli.options import in_flags
from localspec.cli.terminal import ask, busy, can_ask, say
from localspec.errors import NotDownloaded

if TYPE_CHECKING:
    from localspec.llm import LLM
    from localspec.pairs.reference import Reference


@dataclass(frozen=True)
class Consent:
    """What may be done unasked. yes: everything. offline: nothing on the network. quiet: only errors and notices."""

    yes: bool
    offline: bool
    quiet: bool


def open_engine(options: ModelOptions, notify: Callable[[str], None], **further: Any) -> LLM:
    """Load what the options name. Raises `NotDownloaded` for a pair, or a hub's model, that is not on disk.

    notify: told in a sentence when something takes long. further: keyword arguments of `LLM.from_files`.
    """
    from localspec import LLM

    arguments = options.engine() | further
    name = options.pair_name()
    if name is None:
        return LLM.from_files(*_paths(options), notify=notify, **arguments)
    return LLM.from_pair(name or _default_pair(), notify=notify, **arguments)


def _paths(options: ModelOptions) -> tuple[Path, Path | None]:
    """Paths of target and draft where the options name models, not a pair. Raises `NotDownloaded`."""
    from localspec.hub.hubmodels import paths_on_disk
    from localspec.pairs.reference import Reference
    from localspec.store.store import Store

    target, draft = options.files()
    models = [target] if draft is None or options.no_draft else [target, draft]
    references = [model for model in models if isinstance(model, Reference)]
    here = iter(paths_on_disk(references, Store()) if references else ())
    paths = [next(here) if isinstance(model, Reference) else model for model in models]
    return paths[0], paths[1] if len(paths) > 1 else None


def _tell(sentence: str) -> None:
    say(sentence, dim=True)


def _keep_quiet(sentence: str) -> None:
    pass


def fetch(options: ModelOptions, consent: Consent) -> None:
    """Pull what is not on disk, where that is wanted. Raises `NotDownloaded` otherwise."""
    try:
        _find(options)
    except NotDownloaded as missing:
        _pull(missing, consent)


def _find(options: ModelOptions) -> None:
    name = options.pair_name()
    if name is None:
        _paths(options)
        return
    from localspec.pairs.catalogue import pair
    from localspec.store.store import Store

    store = Store()
    store.pair_paths(pair(name or _default_pair(), store.home), with_draft=options.wants_draft)


def check_name(options: ModelOptions) -> None:
    """Raise `UnknownPair` where the options name a pair that there is not."""
    if name := options.pair_name():
        from localspec.pairs.catalogue import pair

        pair(name)


def open_quietly(options: ModelOptions, consent: Consent, **further: Any) -> LLM:
    """Like `open_engine`, for any thread: no spinner, and warnings as lines. further: arguments for `open_engine`."""
    llm = open_engine(options, _keep_quiet if consent.quiet else _tell, **further)
    for warning in llm.warnings:
        say(f"warning: {in_flags(warning)}")
    if not consent.quiet:
        say(introduction(options, llm), dim=True)
    return llm


def names(options: ModelOptions) -> tuple[str, ...]:
    """What the model may be called before it is loaded, the usual name first."""
    name = options.pair_name()
    if name is not None:
        return (name or _default_pair(),)
    target, _ = options.files()
    return (target.stem, target.name) if isinstance(target, Path) else (str(target),)


@contextlib.contextmanager
def engine(
    options: ModelOptions,
    consent: Consent,
    *,
    loading: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    loaded: Callable[[], None] = lambda: None,
) -> Iterator[LLM]:
    """The loaded engine; pulls the pair first where that is wanted. Closed at the end of the block.

    loading: what a load happens in. loaded: called after it, before anything is said.
    """
    try:
        with loading():
            llm = load(options, consent)
    except NotDownloaded as missing:
        _pull(missing, consent)
        with loading():
            llm = load(options, consent)
    with contextlib.closing(llm):
        loaded()
        for warning in llm.warnings:
            say(f"warning: {in_flags(warning)}")
        if not consent.quiet:
            say(introduction(options, llm), dim=True)
        yield llm


def load(options: ModelOptions, consent: Consent) -> LLM:
    from localspec.system.load_watch import LoadWatch, watching

    if consent.quiet:
        return open_engine(options, _keep_quiet)
    with busy("loading the model") as show, watching(LoadWatch(lambda progress: show(progress.sentence))):
        return open_engine(options, _tell)


def _pull(missing: NotDownloaded, consent: Consent) -> None:
    if not _may_pull(missing, consent):
        raise missing
    from localspec.cli.download_progress import pull_hub_models, pull_pair

    references = _references(missing)
    if references:
        pull_hub_models(references, quiet=consent.quiet)
    else:
        pull_pair(str(missing.data["name"]), quiet=consent.quiet)


def _may_pull(missing: NotDownloaded, consent: Consent) -> bool:
    if consent.offline or not (consent.yes or can_ask()):
        return False
    return consent.yes or ask(f"{_what(missing)}\nDownload it now?", default=True)


def _what(missing: NotDownloaded) -> str:
    """What is missing and how large it is; for hub models that are not pinned yet, the hub is asked."""
    references = _references(missing)
    if not references:
        return missing.message
    from localspec.hub.finding import find
    from localspec.hub.hubmodels import as_pair
    from localspec.system.progress import readable

    pair = as_pair(references, [find(reference) for reference in references])
    files = " and ".join(f"{file.file} ({readable(file.bytes)})" for file in pair.files)
    return f"{missing.message}\nIt stands for {files}."


def _references(missing: NotDownloaded) -> tuple[Reference, ...]:
    """The references of the hub models asked for, of which one at least is missing; () for a pair."""
    references = missing.data.get("references", ())
    assert isinstance(references, tuple)
    return references


def pair_title(options: ModelOptions, llm: LLM) -> str:
    """The pair's name, or the names of the files."""
    name = options.pair_name()
    if name is not None:
        return name or _default_pair()
    contexts = (llm.engine.target, llm.engine.draft)
    paths = dict.fromkeys(context.weights.path for context in contexts if context)
    return " + ".join(path.name for path in paths)


def introduction(options: ModelOptions, llm: LLM) -> str:
    """A line: pair, files, what computes, drafting on or off and why; a second one where something would help."""
    name = options.pair_name()
    models = (llm.settings.get("target"), llm.settings.get("draft"))
    paths = dict.fromkeys(str(model["file"]) for model in models if isinstance(model, dict))
    files = " + ".join(Path(path).name for path in paths)
    title = "" if name is None else f"{name or _default_pair()}: "
    library = llm.settings.get("library")
    by = f"computed by {library['name']}, " if isinstance(library, dict) else ""
    return f"{title}{files}, {by}drafting {llm.drafting}\n{llm.hint}".rstrip()


def _default_pair() -> str:
    from localspec.pairs.catalogue import DEFAULT_PAIR

    return DEFAULT_PAIR
