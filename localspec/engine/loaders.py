"""Loaders: every way to load what computes answers, each for what names the models in another way."""

from __future__ import annotations

from typing import Any, Self, Unpack

from localspec.checks import StrPath, check_draft_tokens, check_listener, checked_seconds, checked_switch
from localspec.engine.keeper import EngineKeeper
from localspec.engine.kept import Keeper, Order
from localspec.engine.loading import Loading, watched
from localspec.engine.options import LoadOptions, Notify, engine_options, within_machine
from localspec.hub.sources import Found, find, find_files, find_folder, find_on_hub, find_pair
from localspec.pairs.catalogue import DEFAULT_PAIR
from localspec.store.last_use import record_use
from localspec.system.progress import ProgressCallback


def _ignore(sentence: str) -> None:
    pass


def _both(first: Notify, second: Notify) -> Notify:
    def notify(sentence: str) -> None:
        first(sentence)
        second(sentence)

    return notify


def _wants_draft(options: LoadOptions) -> bool:
    """Whether the draft that belongs to the target is loaded too."""
    return not options.get("no_draft") and options.get("head") != "on"


def _checked_progress(on_progress: ProgressCallback | None) -> ProgressCallback | None:
    """`on_progress`, or None where nobody listens. Raises `InvalidRequest`."""
    return None if on_progress is None else check_listener("on_progress", on_progress)


class Loaders:
    """Class methods of what holds a loaded engine, `LLM`. Errors are those of the method that fits what was named."""

    def __init__(self, keeper: Keeper, unload_after: float | None = None) -> None:
        """Called by the loaders alone. unload_after: idle seconds until the weights are freed; None: never."""
        self._keeper = keeper

    def close(self) -> None:
        """Free everything."""
        self._keeper.close()

    @classmethod
    def load(
        cls, name_or_target: StrPath, draft: StrPath | None = None, **options: Unpack[LoadOptions]
    ) -> Self:
        """Load a pair by its name, `org/repo:quant`, a folder, or GGUF files; whatever `name_or_target` is.

        options: those of `LoadOptions`. Errors are those of `from_pair`, `from_hub`, `from_folder` and `from_files`.
        """
        found = find(name_or_target, draft, options.get("home"), with_draft=_wants_draft(options))
        return cls._from(found, options, asked=draft is not None)

    @classmethod
    def load_in_background(
        cls,
        name_or_target: StrPath,
        draft: StrPath | None = None,
        **options: Unpack[LoadOptions],
    ) -> Loading[Self]:
        """Begin what `load` does and return at once; `Loading.result()` is the LLM or raises what `load` raises."""
        own = check_listener("notify", options.get("notify", _ignore))
        on_progress = _checked_progress(options.get("on_progress"))

        def told(tell: Notify) -> LoadOptions:
            return {**options, "notify": _both(tell, own), "on_progress": None}  # the `Loading` tells of it

        return Loading(lambda tell: cls.load(name_or_target, draft, **told(tell)), on_progress)

    @classmethod
    def from_pair(cls, name: str = DEFAULT_PAIR, **options: Unpack[LoadOptions]) -> Self:
        """Load a pair that `localspec pull` fetched. options: those of `LoadOptions`.

        Raises `UnknownPair`, `NotDownloaded` and what `from_files` raises.
        """
        return cls._from(find_pair(name, options.get("home"), with_draft=_wants_draft(options)), options)

    @classmethod
    def from_folder(cls, folder: StrPath, **options: Unpack[LoadOptions]) -> Self:
        """Load a folder that `localspec export` made: it is only read. options: those of `LoadOptions`.

        Raises `CatalogueError` for a folder that is not whole, and what `from_files` raises.
        """
        return cls._from(find_folder(folder, options.get("home")), options)

    @classmethod
    def from_hub(cls, target: str, draft: str | None = None, **options: Unpack[LoadOptions]) -> Self:
        """Load models of a hub's repositories, `org/repo:quant`, that `localspec pull` fetched and pinned.

        The network is not used. options: those of `LoadOptions`; raises `NotDownloaded` and what `from_files` raises.
        """
        return cls._from(
            find_on_hub(target, draft, options.get("home"), with_draft=not options.get("no_draft")),
            options,
            asked=draft is not None,
        )

    @classmethod
    def from_files(
        cls, target: StrPath, draft: StrPath | None = None, **options: Unpack[LoadOptions]
    ) -> Self:
        """Load GGUF files. Without a draft, the target's own prediction layers draft, where it has some, and repeated
        text is drafted from the conversation itself (n-grams).

        options: those of `LoadOptions`. With draft_tokens "auto", where a draft model can pay, a copy of it is
        requantized in `home` and used if it drafts faster, unless `prepare_draft=False`.
        Raises `InvalidRequest`, `ModelFileError`, `PairingError`, `ModelLoadError`, `MemoryShort`, `BackendError` or,
        with servers (`rpc`), `RpcError`.
        """
        own: dict[str, Any] = dict(options)
        home = own.pop("home", None)
        draft_tokens = check_draft_tokens(own.pop("draft_tokens", "auto"))
        seconds = checked_seconds(own.pop("unload_after", None))
        notify = check_listener("notify", own.pop("notify", _ignore))
        on_progress = _checked_progress(own.pop("on_progress", None))
        found = find_files(target, draft, home)
        calibrate = checked_switch("calibrate", own.pop("calibrate", False))
        engine, cut = within_machine(engine_options(own))
        order = Order(found.target, found.draft, engine, draft_tokens, found.home, calibrate)
        keeper = watched(lambda say: cls._kept(order, _both(say, notify)), on_progress)
        keeper.warnings += cut
        record_use(found.target, found.draft if keeper.engine.draft else None, home=found.home)
        return cls(keeper, seconds)

    @classmethod
    def _kept(cls, order: Order, notify: Notify) -> Keeper:
        """What is loaded, and by whom it is kept."""
        return EngineKeeper(order, notify)

    @classmethod
    def _from(cls, found: Found, options: LoadOptions, *, asked: bool = False) -> Self:
        """asked: whether the draft was, and does not just belong to the target."""
        resolved: LoadOptions = {**options, "home": found.home}
        draft = found.draft if asked or _wants_draft(options) else None
        llm = cls.from_files(found.target, draft, **resolved)
        llm._keeper.warnings += found.warnings
        return llm
