"""`localspec acceptance` on models of a few kilobytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from localspec.cli import main

from .tinygguf import write_llama


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a tiny pair."""
    folder = tmp_path_factory.mktemp("tiny")
    target = write_llama(folder / "target.gguf", seed=1, n_ctx_train=2048)
    draft = write_llama(folder / "draft.gguf", seed=1, noise=0.3, n_ctx_train=2048)
    return ["-m", str(target), "-md", str(draft), "-t", "1", "-c", "2048"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["acceptance", *map(str, arguments)])


SHORT = ("--scenario", "creative", "--scenario", "math", "--limit", "1", "-n", "12")


def test_a_table_by_scenario_and_rule(models: list[str]) -> None:
    done = run(*models, *SHORT, "--draft-tokens", "2")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (
        lines[0]
        == "target.gguf + draft.gguf at temperature 1; a round drafts 2 tokens, ± is the standard error"
    )
    assert [line.split() for line in lines if "places" in line] == [
        ["one", "token", "places", "rejection", "coupled", "argmax"],
        ["per", "round", "places", "block", "rejection", "coupled", "argmax"],
    ]
    assert [line.split()[:2] for line in lines[1:] if "±" in line] == 2 * [
        ["creative", "4"], ["math", "4"], ["all", "8"]
    ]  # fmt: skip
    for shown in ("creative: prompt 1 of 2", "math: prompt 2 of 2"):
        assert shown in done.stderr


def test_json_is_one_line_and_repeats(models: list[str]) -> None:
    done = run(*models, *SHORT, "--json", "-q", "-s", "7")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert (result["draft_tokens"], result["temperature"], result["seed"]) == (4, 1.0, 7)
    assert list(result["scenarios"]) == ["creative", "math"]
    assert [len(result["all"]["by_position"][rule]) for rule in ("rejection", "coupled", "argmax")] == [
        4,
        4,
        4,
    ]
    rounds = {rule: figure["mean"] for rule, figure in result["all"]["tokens_per_round"].items()}
    assert 5 >= rounds["block"] >= rounds["rejection"] >= rounds["coupled"] >= 1
    assert json.loads(run(*models, *SHORT, "--json", "-q", "-s", "7").stdout) == result
    assert json.loads(run(*models, *SHORT, "--json", "-q", "-s", "8").stdout)["all"] != result["all"]


def test_a_model_without_a_draft_is_refused(models: list[str]) -> None:
    done = run(*models[:2], *SHORT)
    assert done.exit_code == 1
    assert "There is no draft model to record: none was given.\nName a pair" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--draft-tokens", "0"], 2, "'--draft-tokens': 0 is not in the range"),
        (["--draft-tokens", "32"], 2, "'--draft-tokens': 32 is not in the range"),
        (["-n", "1"], 2, "'--max-tokens'"),
        (["--no-draft"], 2, "--no-draft"),
        (["--scenario", "poetry"], 1, "There is no scenario 'poetry'."),
        (["--temp", "-1"], 2, "--temp is -1.0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(
    arguments: list[str], code: int, complaint: str
) -> None:
    done = run("no-such-pair", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert complaint in done.stderr


def test_help_says_what_each_column_is() -> None:
    shown = run("--help").stdout
    assert "sum of min(p, q)" in shown and "standard error" in shown
    assert "--draft-tokens" in shown and "--verify auto" not in shown
