"""Strict mode: every pass of the target in one width class, so that the same tokens give the same bits.

What is drafted, how far, and how much of a prompt was cached then changes no bit of a row (exactness beyond the
distribution). Which widths share their bits is measured here, once for a model, its settings and this machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from localspec.compute.context_options import ContextOptions
from localspec.compute.library import CancelFlag, Context, Weights
from localspec.decoding.classes import WidthClass, same_in_company, threads_alike, width_classes
from localspec.decoding.threads import ThreadControl
from localspec.engine.contexts import govern
from localspec.errors import ModelLoadError
from localspec.store.measurements import Measurements, this_machine
from localspec.system.cores import physical_cores
from localspec.system.home import default_home
from localspec.system.load_watch import stage
from localspec.system.progress import Stage

FORMAT = 1
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32, 33, 64)
"""Around the steps of known kernels, and left-over rows behind them."""
LENGTH = 300
"""Cells before the rows compared: past 256 a one-token pass of a 16-bit V cache takes another path."""
LEAST_HIGH = 4
"""A class that ends below this leaves no room to draft."""


@dataclass(frozen=True)
class Widths:
    """Passes of the target have `low` to `high` tokens, narrower ones being padded.

    threads: numbers of them with which these passes compute the same bits, the most first.
    """

    low: int
    high: int
    threads: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


def strict_widths(
    weights: Weights,
    options: ContextOptions,
    cancel: CancelFlag | None = None,
    home: Path | None = None,
    notify: Callable[[str], None] = lambda sentence: None,
    room: Callable[[int], int] = lambda most: most,
) -> Widths:
    """Widths that share their bits, from disk or measured now (some seconds, a minute on a slow machine).

    room: of so many threads those for which there is room now, beside what others compute.
    Raises `ModelLoadError` with the classes found where they leave no room to draft.
    """
    facts = _facts(weights, options)
    kept = Measurements((home or default_home()) / "strict", FORMAT)
    with suppress(KeyError, TypeError, ValueError):
        if (found := kept.find(facts)) is not None:
            return Widths(int(found["low"]), int(found["high"]), tuple(map(int, found["threads"])))
    # A load that is under way stays where it is: its share never falls.
    stage(Stage.MEASURE, f"measuring {weights.path.name}", 0.0, 0.0)
    notify(f"Measuring which passes of {weights.path.name} give the same bits here, once (up to a minute).")
    most = options.threads or physical_cores()
    fixed = options.threads is not None or bool(weights.gpu_layers)
    some = most if fixed else room(most)
    alike: tuple[int, ...] = ()
    # With few threads beside others: many that wait for each other would take ten times as long.
    for threads in dict.fromkeys((some, most)):
        classes = measured_classes(weights, replace(options, threads=threads), cancel=cancel)
        widths = usable_widths(classes)
        if widths is not None:
            asked = replace(options, threads=threads)
            alike = (most,) if fixed else _threads_alike(weights, asked, widths, most, cancel)
        if threads in alike:
            break  # else the most have bits of their own, which are those to go by
    if widths is None:
        raise ModelLoadError(
            f"{weights.path.name} cannot be strict here: passes of different widths give different bits "
            f"({describe_classes(classes)}).",
            "Use a Q4_0 or Q8_0 file of this model, or leave strict out.",
            path=str(weights.path),
        )
    metadata = weights.metadata
    if widths.low > 1 and (metadata.is_recurrent or metadata.is_hybrid):
        raise ModelLoadError(
            f"{weights.path.name} cannot be strict here: passes of one token compute other bits "
            f"({describe_classes(classes)}), and no padding is taken back from its running state.",
            "Use a Q4_0 or Q8_0 file of this model, or leave strict out.",
            path=str(weights.path),
        )
    widths = replace(widths, threads=alike)
    kept.keep(facts, asdict(widths))
    return widths


def _threads_alike(
    weights: Weights, options: ContextOptions, widths: Widths, most: int, cancel: CancelFlag | None
) -> tuple[int, ...]:
    """Numbers of threads that give these passes the same bits: of the most there are, half of it, and one."""
    counts = sorted({most, -(-most // 2), 1}, reverse=True)
    inside = [width for width in WIDTHS if widths.low <= width <= widths.high]
    with _opened(weights, options, LENGTH, cancel) as context:
        return threads_alike(context, counts, [*inside[::4], inside[-1]], LENGTH)


def check_seats(
    weights: Weights,
    options: ContextOptions,
    widths: Widths,
    cancel: CancelFlag | None = None,
    home: Path | None = None,
    notify: Callable[[str], None] = lambda sentence: None,
    threads: ThreadControl | None = None,
) -> None:
    """Compare what a context of several sequences computes with one of a single one, bit for bit, once for a machine:
    in contexts of their own. options: of the first; threads: decides how many they have, among those that are alike.

    Raises `ModelLoadError` where they differ.
    """
    facts = {**_facts(weights, options), "sequences": options.n_sequences}
    kept = Measurements((home or default_home()) / "strict", FORMAT)
    found = kept.find(facts)
    same = found.get("same") if found is not None else None
    if not isinstance(same, bool):
        stage(Stage.MEASURE, f"measuring {weights.path.name}", 0.0, 0.0)
        notify(
            f"Measuring whether answers beside others have the bits of {weights.path.name} alone here, once "
            "(up to a minute)."
        )
        inside = [width for width in WIDTHS if widths.low <= width <= widths.high]
        tried = (*inside[:4], inside[-1])
        length = LENGTH + 2 * sum(tried)
        with (
            _opened(weights, options, length, cancel, threads=threads) as alone,
            _opened(weights, options, length, cancel, options.n_sequences, threads) as shared,
        ):
            decide = threads.decide if threads is not None else lambda: 0
            same = same_in_company(alone, shared, options.n_sequences, tried, LENGTH, decide)
        kept.keep(facts, {"same": same})
    if not same:
        raise ModelLoadError(
            f"{weights.path.name} computes an answer here with other bits beside others than alone.",
            "Load it with parallel=1, or leave strict out.",
            path=str(weights.path),
        )


def measured_classes(
    weights: Weights, options: ContextOptions, length: int = LENGTH, cancel: CancelFlag | None = None
) -> list[WidthClass]:
    """Width classes of a model behind `length` cells, in a context of its own. cancel: ends the measuring."""
    with _opened(weights, options, length, cancel) as context:
        return width_classes(context, WIDTHS, length)


@contextmanager
def _opened(
    weights: Weights,
    options: ContextOptions,
    length: int,
    cancel: CancelFlag | None,
    n_sequences: int = 1,
    threads: ThreadControl | None = None,
) -> Iterator[Context]:
    """A context with room for passes up to the widest behind `length` cells; of several sequences each has its own."""
    widest = max(WIDTHS)
    context = weights.open_context(
        ContextOptions(
            n_ctx=n_sequences * (length + 2 * widest),
            n_batch=widest,
            n_outputs=widest,
            n_sequences=n_sequences,
            separate=n_sequences > 1,
            threads=options.threads,
            cache_type_k=options.cache_type_k,
            cache_type_v=options.cache_type_v,
            hidden_states=options.hidden_states,
        ),
        cancel,
    )
    with ExitStack() as opened:
        opened.enter_context(closing(context))
        govern(threads, [context], opened)
        yield context


def usable_widths(classes: Sequence[WidthClass]) -> Widths | None:
    """The widths from 1 or else from 2 on that share their bits; None if they end too soon to draft.

    Where all measured widths from there on agree, those between them do. Where some do not, a width that was not
    measured may be computed in pieces of either kind: the run then ends before the first of these.
    """
    for low in (1, 2):
        members = next((set(group.widths) for group in classes if low in group.widths), set())
        measured = {width for group in classes for width in group.widths if width >= low}
        high = max(members, default=low)
        if measured != {width for width in members if width >= low}:
            high = next(width for width in itertools.count(low) if width + 1 not in members)
        if high >= LEAST_HIGH:
            return Widths(low, high)
    return None


def describe_classes(classes: Sequence[WidthClass]) -> str:
    """For a sentence: {1, 2, 3} {4, 5} apart by 0.5."""
    return " ".join(
        "{"
        + ", ".join(map(str, group.widths))
        + "}"
        + (f" off by {group.distance:.2g}" if group.distance else "")
        for group in classes
    )


def _facts(weights: Weights, options: ContextOptions) -> dict[str, object]:
    stat = weights.path.stat()
    return {
        "file": weights.path.name,
        "bytes": stat.st_size,
        "gpu_layers": weights.gpu_layers,
        "repack": weights.repack,
        "threads": options.threads,
        "cache": [options.cache_type_k, options.cache_type_v],
        "build": weights.build,
        "machine": this_machine(),
        **({"hidden_states": True} if options.hidden_states else {}),
    }
