"""What passes may cost where nothing was measured yet: a guess by size and format, good enough to begin with."""

from __future__ import annotations

from localspec.compute.library import Context, HeadContext
from localspec.decoding.costs import CostTable
from localspec.errors import ModelFileError
from localspec.gguf.formats import bytes_of_pass
from localspec.gguf.heads import layers_in
from localspec.gguf.metadata import Metadata

CPU_BANDWIDTH, GPU_BANDWIDTH = 15e9, 300e9
"""Bytes of weights that a pass of one token reads in a second: measured on two cores, and that of a small GPU. A few
passes put this right; what counts at first is how a draft compares with its target, which their sizes say."""
OVERHEAD = 5e-5
"""Seconds of a pass of no weights."""
GROWTH = 1.5e-4
"""Share of a one-token pass that a cell of context adds: 8 to 25 % for a thousand cells were measured."""
TAKEN_OVER = 0.2
"""Certainty, at most, of costs that are taken over from another number of threads: two passes outweigh it."""
TIMED = 0.3
"""Certainty of costs of which a few passes were timed in another process."""

WIDE = {1: 1.0, 2: 1.25, 3: 1.45, 4: 1.6, 6: 1.75, 8: 2.0, 12: 2.35, 16: 2.6, 32: 4.1}
"""Passes by width against one token's, where reading the weights is what costs: measured with BF16."""
Q4_0 = {1: 1.0, 2: 1.8, 3: 2.5, 4: 1.6, 6: 3.2, 8: 3.0, 12: 4.3, 16: 4.3, 32: 8.7}
Q8_0 = {1: 1.0, 2: 2.7, 3: 3.3, 4: 3.6, 6: 5.5, 8: 3.8, 12: 4.9, 16: 5.9, 32: 10.0}
QUANTIZED = {1: 1.0, 2: 1.65, 3: 2.2, 4: 2.2, 6: 3.4, 8: 4.3, 12: 5.5, 16: 5.5, 32: 9.0}
"""Measured with Q4_K_M, and taken for every other quantized format, on a CPU with AVX2 that unpacks them."""
GPU = {1: 1.0, 4: 1.1, 8: 1.3, 16: 1.6, 32: 2.2}
CURVES = {"F32": WIDE, "F16": WIDE, "BF16": WIDE, "Q4_0": Q4_0, "Q8_0": Q8_0}


def assumed_costs(context: Context, *, min_width: int = 1) -> CostTable:
    """Costs of the context's passes, all of them assumed. min_width: narrower passes are padded to this."""
    weights = context.weights
    on_gpu = weights.gpu_layers > 0
    curve = GPU if on_gpu else CURVES.get(weights.metadata.file_type, QUANTIZED)
    bandwidth = GPU_BANDWIDTH if on_gpu else CPU_BANDWIDTH
    is_head = isinstance(context, HeadContext)
    read = layers_in(weights.metadata).num_bytes if is_head else _bytes_of_pass(weights.metadata)
    step = OVERHEAD + read / bandwidth
    padded = CostTable(curve).time(min_width)
    seconds = {width: step * max(share, padded) for width, share in curve.items()}
    growth = GROWTH * step
    return CostTable(seconds, growth, growth, certainty=dict.fromkeys(seconds, 0.0))


def _bytes_of_pass(metadata: Metadata) -> int:
    try:
        return bytes_of_pass(metadata.path)
    except ModelFileError:  # it was there when it was loaded
        return metadata.size_bytes


def going_on_from(timed: CostTable, assumed: CostTable) -> CostTable:
    """Costs where a few passes were timed, of one token and up to some width: wider ones, and what cells add, are
    assumed to go on from there as the assumed ones do.

    A few passes are easily disturbed, so wider ones are believed to be cheaper than is assumed, and never dearer: that
    they are would only show where they are made, and the ledger bounds what it costs to find out.
    """
    one, pace, widest = timed.time(1), timed.time(1) / assumed.time(1), max(timed.seconds)
    seconds = {width: min(found, pace * assumed.time(width)) for width, found in timed.seconds.items()}
    seconds[1] = one
    wide_pace = seconds[widest] / assumed.time(widest)
    wider = {width: wide_pace * assumed.time(width) for width in assumed.seconds if width > widest}
    certainty = {**dict.fromkeys(seconds, TIMED), **dict.fromkeys(wider, 0.0)}
    return CostTable(
        {**seconds, **wider}, pace * assumed.slope, pace * assumed.row_slope, certainty=certainty
    )


def with_fewer_threads(table: CostTable, times: float) -> CostTable:
    """What passes may cost with so many times fewer threads than those of `table`: at worst, as many times what they
    cost there. How passes of different widths compare is taken over; a few passes show the rest.
    """
    pace = times * table.scale
    return CostTable(
        {width: times * table.time(width) for width in table.seconds},
        pace * table.slope,
        pace * table.row_slope,
        certainty={width: min(sure, TAKEN_OVER) for width, sure in table.certainty.items()},
    )
