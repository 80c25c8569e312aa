"""`localspec audit`: whether drafting changes nothing, checked on this pair and this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from localspec.cli import opening
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import json_option, loading_options, offline_option, quiet_option, yes_option
from localspec.cli.progress import progress_of
from localspec.cli.tables import show_table
from localspec.cli.terminal import tell, write_json

PARTS = ("classes", "rollback", "greedy", "sampled", "seed")
SCENARIOS = ("code", "creative", "summary")
"""Audited unless others are asked for: easy to draft for, hard, and with a long prompt."""
Figures = Mapping[str, Any]


class Parts(click.ParamType):  # type: ignore[type-arg]
    """Names of parts with commas between them."""

    name = ",".join(PARTS)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names, checked."""
        if isinstance(value, tuple):
            return value
        names = tuple(str(value).replace(" ", "").lower().split(","))
        for name in names:
            if name not in PARTS:
                self.fail(f"{name!r} is none of {', '.join(PARTS)}.", param, ctx)
        return names


@click.command(short_help="Check that the answers are the target's own.")
@loading_options
@click.option("--only", type=Parts(), default=PARTS, help="Parts to check, with commas.  [default: all]")
@click.option(
    "-n", "--max-tokens", "num_tokens", type=click.IntRange(min=1), default=24, show_default=True,
    help="Longest answer, in tokens.",
)  # fmt: skip
@click.option(
    "--runs", type=click.IntRange(min=100), default=1000, show_default=True,
    help="Runs of each test of the sampled distribution: more see smaller faults.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(min=1), default=1, show_default=True, help="Prompts of a scenario."
)
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME",
              help="Kind of text (repeatable).  [default: code, creative, summary]")  # fmt: skip
@click.option(
    "--prompts", metavar="FILE", type=click.Path(path_type=Path),
    help="JSONL file with prompts of your own, as for `localspec bench`.",
)  # fmt: skip
@json_option
@quiet_option
@yes_option
@offline_option
def audit(
    options: ModelOptions,
    only: tuple[str, ...],
    num_tokens: int,
    runs: int,
    limit: int,
    scenarios: tuple[str, ...],
    prompts: Path | None,
    as_json: bool,
    quiet: bool,
    yes: bool,
    offline: bool,
) -> None:
    """Check that PAIR's answers are the target's own on this machine, and end with exit code 0 or 1.

    \b
    classes: which passes of the target compute the same bits, behind a short and a long context.
    rollback: drafted tokens that do not stand are taken back at every depth; what is computed behind them is compared
             with what is computed where they were never read.
    greedy:  texts with drafts against texts without, prompt in cache or not; every difference with its logits.
    sampled: the real loop, thousands of times on the target's real rows, against what those rows say;
             each accept rule and the target alone (chi-square, threshold 1e-6).
    seed:    texts of one seed at temperature 0.8 with every draft and none.

    A text may differ where two logits are closer than twice what passes of different widths differ by (rounding of the
    kernels); with --strict, nowhere. Takes some minutes; progress is shown on standard error.
    """
    options.check()
    from localspec.measure.prompts import builtin_prompts, choose, read_prompts

    if prompts is None and not scenarios:
        scenarios = SCENARIOS
    chosen = choose(builtin_prompts() if prompts is None else read_prompts(prompts), scenarios, limit)
    with opening.engine(options, opening.Consent(yes=yes, offline=offline, quiet=quiet)) as llm:
        from localspec.measure.audit import Audit, AuditOptions, audit_report

        audit_options = AuditOptions(only, num_tokens, runs)
        with progress_of(quiet, first="loading rows") as progress:
            parts = dict(Audit(llm, audit_options, progress).run(chosen))
        result = audit_report(opening.pair_title(options, llm), llm, parts)
    if as_json:
        write_json(result)
    else:
        _show(result)
    click.get_current_context().exit(0 if result["passed"] else 1)


def _show(result: Figures) -> None:
    for name, part in result["parts"].items():
        _TABLES[name](part)
        tell(f"{name}: {part['verdict']}\n")
    tell(result["verdict"])


def _show_classes(part: Figures) -> None:
    rows = [
        (str(context["length"]), ", ".join(map(str, group["widths"])), f"{group['distance']:.3g}")
        for context in part["contexts"]
        for group in context["classes"]
    ]
    headings = ("context", "tokens in a pass", "logits off by, at most")
    show_table(headings, rows, title="Passes that compute the same bits")


def _show_rollback(part: Figures) -> None:
    rows = [
        (
            test["scenario"],
            test["model"],
            test["way"],
            str(test["passes"]),
            f"{test['distance']:.3g}",
            f"{test['allowed']:.3g}",
            f"{test['moved']:.3g}",
        )
        for test in part["tests"]
    ]
    headings = ("", "model", "way back", "times", "off by, at most", "may be", "one token left behind")
    show_table(headings, rows, title=f"Logits behind up to {part['longest']} tokens taken back")


def _show_greedy(part: Figures) -> None:
    rows = [
        (
            entry["scenario"],
            str(entry["draft_tokens"]),
            str(entry["cached_tokens"]),
            str(entry["tokens"]),
            f"{entry['accepted']} of {entry['drafted']}",
            _difference(entry["difference"]),
        )
        for entry in part["answers"]
    ]
    headings = ("", "drafting", "cached", "tokens", "accepted", "against plain decoding")
    show_table(headings, rows, title="Greedy answers")


def _show_sampled(part: Figures) -> None:
    rows = [
        (
            test["scenario"],
            test["rule"],
            test["drafter"],
            f"{test['accepted']} of {test['drafted']}",
            f"{test['statistic']:.1f} / {test['degrees']}",
            f"{test['p_value']:.2g}",
            f"{test['detectable']:.2g}",
        )
        for test in part["tests"]
    ]
    headings = ("", "rule", "drafts", "accepted", "chi-square / df", "p", "would see")
    title = f"First {part['tokens']} tokens of {part['runs']} texts each, against the target's distribution"
    show_table(headings, rows, title=title)


def _show_seed(part: Figures) -> None:
    rows = [
        (
            entry["scenario"],
            str(entry["draft_tokens"]),
            str(entry["tokens"]),
            f"{entry['accepted']} of {entry['drafted']}",
            _difference(entry["difference"]),
        )
        for entry in part["answers"]
    ]
    title = f"Answers with seed {part['seed']} at temperature {part['temperature']}"
    show_table(("", "drafting", "tokens", "accepted", "against the text without a draft"), rows, title=title)


def _difference(found: Figures | None) -> str:
    if found is None:
        return "identical"
    texts = f"{found['expected']!r}, not {found['got']!r}"
    return f"from token {found['index']}: {texts}, gap {found['gap']:.3g}, {found['below_best']:.3g} below the best"


_TABLES: Mapping[str, Callable[[Figures], None]] = {
    "classes": _show_classes,
    "rollback": _show_rollback,
    "greedy": _show_greedy,
    "sampled": _show_sampled,
    "seed": _show_seed,
}
