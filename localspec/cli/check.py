"""`localspec check`: whether two models belong together, why, and what they will take and gain here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from localspec.cli.completion import names_or_files
from localspec.cli.options import context_option, json_option, offline_option
from localspec.cli.terminal import tell, write_json

if TYPE_CHECKING:
    from localspec.measure.prospect import Memory, Prospect
    from localspec.pairs.judgement import Judgement

_NOT_MEASURED = "Expected speedup: not measured yet: localspec calibrate."


@click.command(short_help="Judge whether a draft can draft for a target.")
@click.argument("target", shell_complete=names_or_files)
@click.argument("draft", required=False, shell_complete=names_or_files)
@context_option
@click.option("--load", "with_load", is_flag=True, help="Load them too, in a process of its own.")
@json_option
@offline_option
@click.pass_context
def check(
    ctx: click.Context,
    target: str,
    draft: str | None,
    ctx_size: int,
    with_load: bool,
    as_json: bool,
    offline: bool,
) -> None:
    """Judge whether DRAFT can draft for TARGET, from what their files say: nothing is downloaded.

    Each is a GGUF file, the name of a pair, or org/repo:quant on a hub. A pair's name alone stands for both of its
    files. Nothing is loaded without --load, which computes a few tokens in a process of its own: a file on which the
    library ends the process is told in a sentence. Ends with exit code 0 where they fit, 1 where not.
    """
    judgement, outlook = _judged(target, draft, ctx_size, offline, raising=not as_json)
    failure = _loaded(judgement, ctx_size) if with_load and judgement.fits else None
    if as_json:
        load = {"load_error": failure} if with_load else {}
        write_json({**judgement.to_dict(), **_described(outlook), **load})
    else:
        assert outlook is not None, "a file that cannot be read has raised"
        _show(judgement, outlook)
        if with_load and judgement.fits:
            tell(f"Load: {failure or 'it works in a process of its own.'}")
    ctx.exit(0 if judgement.fits and failure is None else 1)


def _loaded(judgement: Judgement, n_ctx: int) -> str | None:
    """What a load in a child process says against the files, or None."""
    from localspec.engine.options import EngineOptions
    from localspec.engine.trial import try_load
    from localspec.errors import LocalspecError

    absent = [path for path in (judgement.target, judgement.draft) if path and not path.is_file()]
    if absent:
        return f"{absent[0].name} is not on this disk: localspec pull fetches it."
    try:
        try_load(judgement.target, judgement.draft, EngineOptions(n_ctx=n_ctx))
    except LocalspecError as error:
        return f"{error.message} {error.command}".strip()
    return None


def _judged(
    target: str, draft: str | None, n_ctx: int, offline: bool, *, raising: bool
) -> tuple[Judgement, Prospect | None]:
    """The judgement and what the models will take; a program is told as one too what nobody could read.

    raising: such a file is an error, for nothing was judged. Raises ModelFileError then.
    """
    from pathlib import Path

    from localspec.errors import ModelFileError
    from localspec.hub.named_models import models_named
    from localspec.pairs.judgement import judge, unusable

    try:
        ours, theirs = models_named(target, draft, offline=offline)
    except ModelFileError as error:
        if raising:
            raise
        return unusable(Path(target), None if draft is None else Path(draft), error), None
    from localspec.engine.options import EngineOptions
    from localspec.measure.prospect import prospect

    return judge(ours, theirs, n_ctx=n_ctx), prospect(ours, theirs, EngineOptions(n_ctx=n_ctx))


def _described(outlook: Prospect | None) -> dict[str, object]:
    if outlook is None:
        return {"memory": None, "expected_speedup": None, "library": None, "head": None}
    memory = {
        role: None if part is None else asdict(part)
        for role, part in (("target", outlook.target), ("draft", outlook.draft))
    }
    return {
        "memory": {**memory, "total": outlook.total},
        "expected_speedup": outlook.gain,
        "library": outlook.choice.described,
        "head": outlook.head or None,
    }


def _show(judgement: Judgement, outlook: Prospect) -> None:
    lines = [judgement.sentence, *([judgement.command] if judgement.command else [])]
    lines += [f"Verdict: {judgement.verdict}.", ""]
    lines += [f"  {reason.severity:<17} {reason.sentence}" for reason in judgement.reasons]
    choice = outlook.choice
    lines += [f"  {'harmless':<17} {outlook.head}"] if outlook.head and judgement.fits else []
    lines += [*_differences(judgement), "", f"Library: {choice.library.name}: {choice.reason}."]
    lines += [_memory(outlook)]
    lines += [_gain(outlook)] if judgement.fits else []
    for line in "\n".join(lines).rstrip().split("\n"):
        tell(line, hang=20 if line.startswith("  ") else 0)


def _differences(judgement: Judgement) -> list[str]:
    rows = [f"  {one.id:>17} {one.target!r} and {one.draft!r}" for one in judgement.differing]
    return ["", "The first ids that differ, in the target and in the draft:", *rows] if rows else []


def _memory(outlook: Prospect) -> str:
    from localspec.system.progress import readable

    def line(role: str, part: Memory) -> str:
        return f"{role} {readable(part.weights)}, {readable(part.cache)} and {readable(part.passes)}"

    parts = [line("target", outlook.target)]
    if outlook.draft is not None:
        parts.append(line("draft", outlook.draft))
    return (
        f"Memory for {outlook.target.n_ctx} tokens of context, weights, cache and passes: {'; '.join(parts)}; "
        f"{readable(outlook.total)} together."
    )


def _gain(outlook: Prospect) -> str:
    if outlook.gain is None:
        return _NOT_MEASURED
    alone = outlook.draft is None  # then only what stood before in the text is drafted
    parts = [
        f"{entry['speedup']:.2f}x at {entry['acceptance']:.0%} "
        + (
            f"({entry['best_draft_tokens']} tokens a round)"
            if entry["best_draft_tokens"]
            else f"(none {'copied' if alone else 'drafted'})"
        )
        for entry in outlook.gain["estimates"]
    ]
    even = outlook.gain["break_even_acceptance"]
    pays = (
        f"{'copying' if alone else 'a draft'} never pays here"
        if even is None
        else f"it pays above {even:.0%}"
    )
    share = (
        "where text repeats itself, by the share of tokens copied from it that stand"
        if alone
        else "by the share of drafted tokens that stand"
    )
    comma = "" if alone else ","
    return f"Expected speedup{comma} {share} (assumed): {', '.join(parts)}; {pays}."
