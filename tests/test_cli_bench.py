"""`localspec bench`, `estimate` and `calibrate` on models of a few kilobytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from localspec.cli import main
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import loading_options, model_options
from localspec.cli.progress import progress_of
from localspec.decoding.calibrate import Calibration
from localspec.decoding.costs import CostTable
from localspec.engine import measured_costs as calibration
from localspec.engine.measured_costs import Costs
from localspec.llama.context import Context
from localspec.llama.library import LlamaCpp
from localspec.measure.bench import _Scenario

from .fake_library import FakeLibrary
from .tinygguf import write_llama, write_mamba

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a tiny pair."""
    folder = tmp_path_factory.mktemp("tiny")
    target = write_llama(folder / "target.gguf", seed=1, n_ctx_train=2048)
    draft = write_llama(folder / "draft.gguf", seed=1, noise=0.05, n_ctx_train=2048)
    return ["-m", str(target), "-md", str(draft), "-t", "1", "-c", "1024"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    lines = [
        {"scenario": "code", "user": "a b c a b c"},
        {"scenario": "code", "user": "the other"},
        {"question_id": 1, "category": "writing", "turns": ["one", "two"]},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


# bench


def test_the_last_line_of_standard_output_is_the_result(models: list[str], prompts: Path) -> None:
    arguments = ("-n", "8", "--runs", "2", "--precision", "0.001", "--draft-tokens", "1,3")
    done = run("bench", *models, "--prompts", prompts, *arguments)
    assert done.exit_code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["pair"] == "target.gguf + draft.gguf"
    assert list(result["scenarios"]) == ["code", "writing"]
    assert list(result["scenarios"]["code"]["fixed"]) == ["1", "3"]
    assert [run["tokens"] for run in result["scenarios"]["code"]["runs"]] == [14, 14]
    for shown in ("target.gguf + draft.gguf, tokens/s", "writing: run 2 of at most 2", "1 drafted", "2, runs",
                  "speedup: mean", "of the oracle's"):  # fmt: skip
        assert shown in done.stderr
    low, high = result["scenarios"]["code"]["speedup_interval"]
    assert f"{result['scenarios']['code']['speedup']:.2f}x ({low:.2f}-{high:.2f})" in done.stderr


def test_bench_ends_at_the_time_given_or_where_it_is_precise(
    models: list[str], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("bench", *models, "--prompts", prompts, "-n", "40", "--scenario", "code", "--runs", "9")
    for half_width, further, ending in (
        (0.3, ("--max-time", "0"), "time"),
        (0.04, ("--precision", "0.05"), "precision"),
    ):
        monkeypatch.setattr(_Scenario, "half_width", half_width)
        done = run(*arguments, *further)
        assert done.exit_code == 0, done.stderr
        (figures,) = json.loads(done.stdout)["scenarios"].values()
        assert (len(figures["runs"]), figures["ended_by"]) == (1, ending)
        assert f"1, {ending}" in done.stderr


def test_plain_decoding_of_other_libraries_is_shown_where_there_are_some(
    models: list[str], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeLibrary(name="made-up.cpp")
    monkeypatch.setattr("localspec.measure.lanes.trusted_libraries", lambda *_: [LlamaCpp(), other])
    done = run("bench", *models, "--prompts", prompts, "-n", "8", "--runs", "1", "--scenario", "code")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["plain"]) == ["llama.cpp", "made-up.cpp"]
    shown = " ".join(done.stderr.split())
    for expected in ("Plain decoding: tokens/s", "against plain decoding by made-up.cpp: mean"):
        assert expected in shown
    assert other.all_closed
    monkeypatch.setattr("localspec.measure.lanes.trusted_libraries", lambda *_: [LlamaCpp()])
    done = run("bench", *models, "--prompts", prompts, "-n", "8", "--runs", "1", "--scenario", "code")
    assert "against plain decoding" not in done.stderr


def test_quiet_prints_the_result_alone(models: list[str]) -> None:
    done = run("bench", *models, "-q", "-n", "4", "--runs", "1", "--scenario", "math", "--limit", "1")
    assert done.exit_code == 0, done.stderr
    assert not any(word in done.stderr for word in ("tokens/s", "run 1 of", "speedup", "drafting"))
    result = json.loads(done.stdout)
    assert list(result["scenarios"]) == ["math"]
    assert "fixed" not in result["scenarios"]["math"]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with progress_of(quiet=False) as progress:
        progress("code: run 1 of 2", 0.5)
    assert "code: run 1 of 2" in terminal.getvalue()
    assert "50%" in terminal.getvalue()


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--draft-tokens", "1,x"], 2, "'1,x' is not auto or whole numbers"),
        (["--draft-tokens", "0"], 2, "'0' is not auto or whole numbers"),
        (["-n", "1"], 2, "-n"),
        (["--runs", "0"], 2, "--runs"),
        (["--precision", "0"], 2, "--precision"),
        (["--max-time", "-1"], 2, "--max-time"),
        (["--scenario", "poetry"], 1, "There is no scenario 'poetry'.\nThere are code, edit, technical"),
        (["--temp", "-1"], 2, "--temp is -1.0"),
        (["--prompts", "no-such-file.jsonl"], 1, "no-such-file.jsonl cannot be read"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(
    arguments: list[str], code: int, complaint: str
) -> None:
    done = run("bench", "no-such-pair", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert complaint in done.stderr


def test_a_fault_in_the_prompts_file_names_line_and_field(prompts: Path) -> None:
    prompts.write_text(prompts.read_text() + '\n{"scenario": "code"}')
    done = run("bench", "--prompts", prompts)
    assert done.exit_code == 1
    assert f"error: Line 4 of {prompts}: the field 'user' is missing." in done.stderr


def test_the_help_shows_the_benchs_own_defaults() -> None:
    text = " ".join(run("bench", "--help").stdout.split())
    assert "Longest answer, in tokens. [default: 128" in text
    assert "most likely token. [default: 0.0]" in text
    assert "--draft-tokens [auto|N,N,...]" in text


# estimate


def estimated(*arguments: str | Path) -> dict[str, Any]:
    done = run("estimate", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_an_estimate_from_numbers() -> None:
    arguments = ("--acceptance", "0.8", "--cost-ratio", "0.3", "--verify-cost", "1.6@4,3.0@8")
    result = estimated(*arguments, "--draft-tokens", "3")
    (entry,) = result["estimates"]
    assert (entry["best_draft_tokens"], result["draft_tokens"]) == (2, 3)
    assert entry["speedup_at_draft_tokens"] == pytest.approx(2.952 / 2.5, abs=1e-3)
    shown = run("estimate", *arguments, "--draft-tokens", "3").stdout
    assert "Acceptance 0.8: draft 2: 1.22x; with 3: 1.18x, which pays above" in shown
    assert "Drafting pays above an acceptance of 0.50." in shown
    assert result["known_draft_tokens"] == 7, "a pass over 8 tokens is the widest whose cost was given"
    assert (
        "Beyond 7 drafted tokens a pass over more than 8 tokens is needed, whose cost is not known" in shown
    )
    for told in ((), ("--verify-cost", "1.6@4,3.0@17")):
        whole = ("--cost-ratio", "0.3", *told)
        assert estimated(*whole)["known_draft_tokens"] is None
        assert "Beyond" not in run("estimate", *whole).stdout


def test_an_estimate_without_an_acceptance_looks_at_several() -> None:
    result = estimated("--cost-ratio", "0.9")
    assert [entry["acceptance"] for entry in result["estimates"]] == [0.5, 0.6, 0.7, 0.8, 0.9]
    shown = run("estimate", "--cost-ratio", "0.95", "--acceptance", "0.5").stdout
    assert "Acceptance 0.5: do not draft" in shown
    assert "acceptance of 1 (never)" in run("estimate", "--cost-ratio", "2").stdout


def test_a_long_draft_lengthens_the_curve() -> None:
    (entry,) = estimated("--cost-ratio", "0.1", "--acceptance", "0.9", "--draft-tokens", "20")["estimates"]
    assert entry["curve"][-1]["draft_tokens"] == 20


def test_an_estimate_from_a_pair_uses_its_measured_costs(
    models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Costs(CostTable({1: 0.02, 4: 0.03}), CostTable({1: 0.005}))
    monkeypatch.setattr("localspec.LLM.calibrate", lambda _llm, **_options: known)
    result = estimated(*models, "-q")
    assert result["cost_ratio"] == 0.25
    assert result["verify_cost"] == {"1": 1.0, "4": 1.5}


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--cost-ratio", "0.3", "--acceptance", "1.2"], 2, "--acceptance is 1.2."),
        (["--cost-ratio", "-1"], 2, "--cost-ratio is -1.0."),
        (["--cost-ratio", "0.3", "--verify-cost", "1.6@4,3"], 2, "'3' is not COST@WIDTH"),
        (["--cost-ratio", "0.3", "--verify-cost", "0@4"], 2, "--verify-cost is 0.0@4."),
        (["--cost-ratio", "0.3", "smollm2-135m"], 2, "exclude each other"),
        (["--verify-cost", "1.6@4"], 2, "--verify-cost goes with --cost-ratio"),
        (["--cost-ratio", "0.3", "--draft-tokens", "0"], 2, "--draft-tokens"),
    ],
)
def test_a_bad_estimate_is_refused(arguments: list[str], code: int, complaint: str) -> None:
    done = run("estimate", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert complaint in done.stderr


def test_a_plot_is_a_picture(tmp_path: Path) -> None:
    arguments = ["estimate", "--cost-ratio", "0.3", "--plot", str(tmp_path / "speedup.png"), "--json"]
    done = subprocess.run(  # in a process of its own: what matplotlib warns about is not ours
        [sys.executable, "-m", "localspec", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "speedup.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(done.stdout)["cost_ratio"] == 0.3


def test_a_plot_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("estimate", "--cost-ratio", "0.3", "--plot", tmp_path / "speedup.png")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: matplotlib is not installed.\nInstall it: pip install matplotlib.\n"


# calibrate


def test_calibrate_shows_both_models_and_measures_once(
    models: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []

    def calibrate(context: Context, *, verifies: bool, min_width: int, skip: object) -> Calibration:
        assert min_width == 1
        measured.append(context.weights.path.name)
        step = 0.01 * len(measured)
        return Calibration(CostTable({1: step, 4: 1.5 * step}, slope=1e-6), steady=True)

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    monkeypatch.setattr(calibration, "default_home", lambda: tmp_path)
    first = run("calibrate", *models, "--json")
    assert first.exit_code == 0, first.stderr
    costs = json.loads(first.stdout)
    assert measured == ["target.gguf", "draft.gguf"]
    assert [Path(costs[role]["file"]).name for role in ("target", "draft")] == measured
    assert [costs[role]["seconds"]["1"] for role in ("target", "draft")] == [0.01, 0.02]
    shown = run("calibrate", *models).stdout
    assert "target: target.gguf, 1 threads, llama.cpp" in shown
    assert costs["target"]["build"] == costs["draft"]["build"] == LlamaCpp().build
    assert ["4", "15.00", "1.50"] in [line.split() for line in shown.splitlines()]
    assert "Each 1000 tokens of context add 1.00 ms" in shown
    assert len(measured) == 2
    again = run("calibrate", *models, "--json", "--redo")
    assert measured[2:] == measured[:2]
    assert "Measuring what a pass of target.gguf costs" in again.stderr
    assert json.loads(again.stdout)["target"]["seconds"]["1"] == 0.03


@pytest.mark.parametrize("command", ["calibrate", "estimate"])
def test_ctrl_c_skips_what_is_not_measured_yet(
    models: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    """The command goes on with what is known; and keeps it, with how certain it is."""
    seen: list[str] = []

    def calibrate(context: Context, *, skip: Callable[[], bool], **_options: object) -> Calibration:
        seen.append(context.weights.path.name)
        assert not skip()
        signal.raise_signal(signal.SIGINT)
        assert skip()
        return Calibration(
            CostTable({1: 0.5}, certainty={1: 0.3}), steady=False, slopes=False, complete=False
        )

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    monkeypatch.setattr(calibration, "default_home", lambda: tmp_path)
    done = run(command, *models, "--json")
    assert (done.exit_code, seen) == (0, ["target.gguf"]), done.stderr
    assert "Skipping what is not measured yet." in done.stderr
    (kept,) = (tmp_path / "calibration").glob("*.json")
    table = CostTable.from_dict(json.loads(kept.read_text()))
    assert table.seconds[1] == 0.5 and table.certainty[1] == 0.3 and not table.measured
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_model_with_a_running_state_is_calibrated(tmp_path: Path) -> None:
    done = run("calibrate", "-m", write_mamba(tmp_path / "mamba.gguf"), "-t", "1", "-q")
    assert done.exit_code == 0, done.stderr
    assert "tokens in a pass" in done.stdout


# The shared options


def test_commands_that_only_load_keep_the_defaults_of_the_rest() -> None:
    import click

    seen: list[ModelOptions] = []
    full = click.command()(model_options(lambda options: seen.append(options)))
    loads = click.command()(loading_options(lambda options: seen.append(options)))
    arguments = ["pair", "-c", "512", "--no-mmap"]
    for command in (full, loads):
        assert CliRunner().invoke(command, arguments).exit_code == 0
    assert seen[0] == seen[1]
    names = [{option.name for option in command.params} for command in (full, loads)]
    assert names[0] - names[1] >= {"temp", "seed", "max_tokens", "draft_tokens", "stop"}
    assert {"pair", "target", "draft", "ctx_size", "threads"} <= names[1] <= names[0]


@pytest.mark.parametrize(
    ("command", "arguments", "complaint"),
    [
        ("estimate", ["--acceptance", "1.5"], "--acceptance is 1.5."),
        ("estimate", ["--acceptance", "nan"], "--acceptance is nan."),
        ("estimate", ["--plot", "nowhere/speedup.png"], "its folder is not there"),
        ("estimate", ["--plot", "speedup.gguf"], "there is no format .gguf"),
        ("estimate", ["--draft-tokens", "32"], "32"),
        ("bench", ["--draft-tokens", "3,32"], "from 1 to 31"),
        ("bench", ["-s", "-1"], "-s/--seed is -1."),
        ("audit", ["-c", "0"], "-c/--ctx-size is 0."),
        ("acceptance", ["-t", "0"], "-t/--threads is 0."),
        ("calibrate", ["-ctk", "q3"], "-ctk/--cache-type-k is 'q3'."),
        ("chat", ["-p", "x", "-c", "-5"], "-c/--ctx-size is -5."),
        ("chat", ["-p", "x", "--temp", "nan"], "--temp is nan."),
        ("serve", ["-t", "999999"], "-t/--threads is 999999."),
        ("bench", ["--library", "gpu"], "'gpu' is not one of 'auto', 'llama', 'ik'."),
        ("show", ["-c", "0"], "0"),
    ],
)
def test_what_no_model_is_needed_for_is_refused_before_one_is_looked_for(
    command: str, arguments: list[str], complaint: str
) -> None:
    """The pair is known and not on this disk: it would be the next complaint, or a download."""
    done = run(command, "qwen3-32b", *arguments)
    assert complaint in done.stderr, done.stderr
    assert done.exit_code == (1 if "--plot" in arguments else 2)
    assert "not complete on this disk" not in done.stderr
