"""Which passes of the target compute the same bits."""

from __future__ import annotations

from localspec.engine.engine import Engine
from localspec.engine.strict import describe_classes
from localspec.measure.audit_part import Part
from localspec.measure.difference import MARGIN, Rounding


def audit_classes(engine: Engine, rounding: Rounding) -> Part:
    """The width classes behind a short and a long context; passed unless strict mode mixes two classes."""
    used = (engine.session.min_width, engine.target.n_batch) if engine.options.strict else None
    figures = {
        "used": used,
        "tolerance": rounding.tolerance,
        "contexts": [
            {
                "length": length,
                "classes": [{"widths": list(group.widths), "distance": group.distance} for group in groups],
            }
            for length, groups in rounding.classes.items()
        ],
    }
    if not rounding.classes:
        return Part(True, f"Passes have one width only: {engine.no_draft_reason}.", figures)
    tables = "; ".join(
        f"behind {length} tokens {describe_classes(groups)}" for length, groups in rounding.classes.items()
    )
    if used is None:
        apart = rounding.tolerance / MARGIN
        verdict = (
            f"Passes of different widths differ by up to {apart:.3g} in a logit ({tables})."
            if apart
            else f"Passes of every width measured compute the same bits ({tables})."
        )
        return Part(True, verdict, figures)
    low, high = used
    mixed = [
        length
        for length, groups in rounding.classes.items()
        if sum(any(low <= width <= high for width in group.widths) for group in groups) > 1
    ]
    if mixed:
        where = " and ".join(map(str, mixed))
        return Part(
            False,
            f"FAIL: passes of {low} to {high} tokens differ in bits behind {where} tokens ({tables}).",
            figures,
        )
    return Part(
        True,
        f"Passes of {low} to {high} tokens, all that are used, compute the same bits ({tables}).",
        figures,
    )
