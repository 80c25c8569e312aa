"""What `localspec suggest` found, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from localspec.cli.tables import show_table
from localspec.cli.terminal import tell


def show_drafts(result: Mapping[str, Any]) -> None:
    """Drafts for a target, best first, and what to run."""
    from localspec.measure.suggest import ASSUMED
    from localspec.system.progress import readable

    drafts = result["drafts"]
    if drafts:
        rows = [
            (
                one["draft"],
                readable(one["bytes"]),
                one["origin"],
                _gain(one["expected_speedup"]),
                one["verdict"],
            )
            for one in drafts
        ]
        title = f"Drafts for {result['target']} ({readable(result['bytes'])}), best first"
        show_table(("draft", "size", "where", "expected here", "verdict"), rows, title=title)
        tell(
            f"Expected: the speedup if {ASSUMED:.0%} of drafted tokens stand. What is not measured stands by size, "
            "family and format; `localspec calibrate` measures."
        )
        for one in drafts:
            if one["verdict"] != "fits":
                tell(one["sentence"])
    else:
        tell(f"No draft for {result['target']} was found; text that repeats itself is drafted without one.")
    click.echo(f"Run: {result['run']}")
    _show_left_out(result, "draft")


def _gain(speedup: float | None) -> str:
    if speedup is None:
        return "not measured"
    return f"{speedup:.2f}x" if speedup > 1 else "does not pay"


def show_pairs(result: Mapping[str, Any]) -> None:
    """Pairs that fit this machine, and what to run."""
    from localspec.system.progress import readable

    found = result["pairs"]
    memory = f"{readable(result['free_bytes'])} of {readable(result['memory_bytes'])} are free"
    marks = _marks(found)
    if found:
        rows = [
            (
                one["pair"],
                ("" if one["memory_is_exact"] else "about ") + readable(one["memory_bytes"]),
                one["room"],
                _pace(one["expected_tokens_per_second"], marks.get(one["expected_from"], "")),
                "yes" if one["on_disk"] else f"no ({readable(one['bytes'])})",
            )
            for one in found
        ]
        title = f"Pairs for {result['context']} tokens of context, best first; {memory}"
        show_table(("pair", "memory", "room", "tokens/s", "on disk"), rows, title=title)
        for sentence in (*_about_room(found), *_about_speed(result, marks)):
            tell(sentence)
        click.echo(f"Run: {found[0]['run']}")
    else:
        tell(
            f"No pair fits: {memory}, and a tenth of all is for the system and other programs. "
            "A smaller -c/--ctx-size needs less."
        )
    _show_left_out(result, "pair")


def _pace(tokens_per_second: float | None, mark: str) -> str:
    if tokens_per_second is None:
        return "not known"
    shown = float(f"{tokens_per_second:.2g}")
    return f"about {shown:g}{mark}"


_FROM = {
    "this model": "this model was measured here",
    "another model": "what another model took here, by bytes read",
    "memory": "how fast this machine reads memory, now",
}


def _marks(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A mark for each of several grounds that rows stand on; none is needed where all have the same."""
    bases = list(dict.fromkeys(one["expected_from"] for one in found if one["expected_from"]))
    return {basis: f" ({'abc'[index]})" for index, basis in enumerate(bases)} if len(bases) > 1 else {}


def _about_room(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the rooms say, of those that are shown."""
    rooms = {one["room"] for one in found}
    if "fits" in rooms:
        yield "fits: it takes no more than is free now, so that a load is accepted."
    if "fits when memory is freed" in rooms:
        yield (
            "fits when memory is freed: more than is free now, and no more than this machine has less a tenth, which "
            "the system and other programs keep."
        )


def _about_speed(result: Mapping[str, Any], marks: Mapping[str, str]) -> Iterator[str]:
    """What the figures are, and what is recommended by them."""
    found, least = result["pairs"], result["least_tokens_per_second"]
    bases = dict.fromkeys(one["expected_from"] for one in found if one["expected_from"])
    if bases:
        grounds = "; ".join(f"{marks.get(basis, '')} {_FROM[basis]}".strip() for basis in bases)
        yield f"tokens/s: an estimate for the target alone ({grounds}). `localspec bench PAIR` measures."
    slow = [one["pair"] for one in found if one["too_slow"]]
    if len(slow) == len(found):
        yield f"None should reach the {least:g} tokens/s of reading aloud; the fastest stands first."
    elif slow:
        yield (
            f"Too slow here to be recommended, under the {least:g} tokens/s of reading aloud: {', '.join(slow)}."
        )
    yield "A larger target answers better and slower."


def _show_left_out(result: Mapping[str, Any], key: str) -> None:
    if "left_out" in result:
        for one in result["left_out"]:
            tell(f"Left out: {one[key]}: {one['reason']}.")
    elif result["left_out_count"]:
        tell(f"{result['left_out_count']} left out; --all says why.")
