"""`localspec audit` on models of a few kilobytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from localspec.cli import audit as cli_audit
from localspec.cli import main
from localspec.measure import audit as measure_audit

from .mutation import planted
from .tinygguf import write_llama


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a tiny pair."""
    folder = tmp_path_factory.mktemp("tiny")
    target = write_llama(folder / "target.gguf", seed=1, n_ctx_train=2048)
    draft = write_llama(folder / "draft.gguf", seed=1, noise=0.1, n_ctx_train=2048)
    return ["-m", str(target), "-md", str(draft), "-t", "1", "-c", "2048"]


SHORT = ("--scenario", "math", "--runs", "200", "-n", "16")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


@pytest.mark.parametrize(("library", "name"), [("llama", "llama.cpp"), ("ik", "ik_llama.cpp")])
def test_tables_and_verdicts_on_standard_output_progress_on_standard_error(
    models: list[str], library: str, name: str
) -> None:
    done = run(*models, *SHORT, "--library", library)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert f", computed by {name}, drafting " in done.stderr
    assert done.stdout.splitlines()[-1] == "PASS: classes, rollback, greedy, sampled, seed."
    for shown in (
        "Passes that compute the same bits", "identical to plain decoding", "chi-square / df", "coupled",
        "the same text with every draft and without", "seen with probability .99",
    ):  # fmt: skip
        assert shown in done.stdout
    for shown in ("greedy: math, auto drafted, the prompt in cache", "sampled: math, block, draft model"):
        assert shown in done.stderr


def test_the_parts_that_can_be_asked_for_are_all_there_are() -> None:
    assert cli_audit.PARTS == measure_audit.PARTS


def test_json_is_one_line_with_every_part(models: list[str]) -> None:
    done = run(*models, *SHORT, "--json", "-q", "--only", "classes, sampled")
    assert done.exit_code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["pair"], result["passed"]) == ("target.gguf + draft.gguf", True)
    assert list(result["parts"]) == ["classes", "sampled"]
    sampled = result["parts"]["sampled"]
    assert (sampled["threshold"], sampled["runs"], sampled["power"]) == (1e-6, 200, 0.99)
    assert all(0 < test["detectable"] < 0.5 for test in sampled["tests"])
    assert "%" not in done.stderr


def test_a_fault_ends_with_exit_code_one_and_a_sentence(models: list[str]) -> None:
    fault = ("localspec.decoding.verify", "_CoupledRound.verify", "self.position + index", "self.position")
    with planted(*fault):
        done = run(*models, *SHORT, "-q", "--only", "seed")
    assert done.exit_code == 1
    assert "seed: FAIL: 5 answers with seed 20" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAIL: seed."
    assert "error" not in done.stderr


def test_strict_is_loaded_strict(models: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    done = run(*models, *SHORT, "--strict", "--json", "-q", "--only", "greedy,classes")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["strict"] is True
    assert result["parts"]["classes"]["tolerance"] == 0


def test_a_difference_is_shown_with_its_place_and_gap(models: list[str]) -> None:
    fault = (
        "localspec.decoding.verify",
        "block",
        "return Verdict(count, _after_block(",
        "return Verdict(count, 7 + 0 * _after_block(",
    )
    with planted(*fault):
        done = run(*models, *SHORT, "-q", "--only", "greedy")
    assert done.exit_code == 1
    assert "from token" in done.stdout and "below the best" in done.stdout
    assert "below the best logit: more than" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--only", "greedy,speed"], 2, "'speed' is none of classes, rollback, greedy, sampled, seed"),
        (["--runs", "10"], 2, "--runs"),
        (["-n", "0"], 2, "-n"),
        (["--scenario", "poetry"], 1, "There is no scenario 'poetry'."),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(
    arguments: list[str], code: int, complaint: str
) -> None:
    done = run("no-such-pair", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert complaint in done.stderr
