"""The curves of an estimate as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import InvalidRequest, MissingPackage
from localspec.system.packages import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_plot(path: Path) -> None:
    """Raise before anything is measured what `plot_curves` raises: without matplotlib, a folder, or a known ending."""
    known = _figure().canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known and path.suffix:
        raise _unwritable(path, f"there is no format {path.suffix}")
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise _unwritable(path, "it is a folder" if path.is_dir() else "its folder is not there")


def plot_curves(result: Mapping[str, Any], path: Path) -> None:
    """Draw speedup by draft length, a line for each acceptance, into `path` (PNG, SVG or PDF by its ending).

    Raises `MissingPackage` without matplotlib, `InvalidRequest` when the file cannot be written.
    """
    figure = _figure()
    axes = figure.add_subplot(xlabel="drafted tokens a round", ylabel="speedup over plain decoding")
    for entry in result["estimates"]:
        lengths = [point["draft_tokens"] for point in entry["curve"]]
        speedups = [point["speedup"] for point in entry["curve"]]
        axes.plot(lengths, speedups, marker=".", label=f"acceptance {entry['acceptance']:g}")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_title(f"draft pass / target pass = {result['cost_ratio']:g}")
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise _unwritable(path, str(error)) from error


def _figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage(
            "matplotlib is not installed.", install("matplotlib"), package="matplotlib"
        ) from error
    return Figure(figsize=(7, 4.5), layout="constrained")


def _unwritable(path: Path, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"The plot cannot be written to {path}: {reason}.", "Give another file, such as speedup.png."
    )
