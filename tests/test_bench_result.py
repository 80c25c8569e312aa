"""`localspec.bench`: the same measurement as the command's, from Python; and how its result looks."""

from __future__ import annotations

import json

import pytest

from localspec import LLM, BenchResult, Progress, SamplingParams, Stage, bench
from localspec.errors import DecodeCancelled, InvalidRequest
from localspec.measure.bench_table import tables, with_interval

from .tinygguf import write_pair

SHORT = {
    "scenarios": ["chat", "code"],
    "limit": 1,
    "runs": 1,
    "params": SamplingParams(temperature=0, max_tokens=8),
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    target, draft = write_pair(tmp_path_factory.mktemp("bench"), n_ctx_train=2048)
    with LLM.from_files(target, draft, n_ctx=1024, draft_tokens=3, library="llama") as llm:
        yield llm


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def result(llm, told):
    return bench(llm, lengths=[2], on_progress=told.append, **SHORT)


def test_it_is_what_the_command_prints_as_json(result):
    figures = json.loads(json.dumps(result.figures))
    assert list(figures["scenarios"]) == ["chat", "code"] and figures["pair"] == "target.gguf + draft.gguf"
    for scenario in figures["scenarios"].values():
        assert scenario["speedup"] > 0 and "speedup_interval" in scenario and list(scenario["fixed"]) == ["2"]


def test_progress_is_told_in_the_words_of_every_other(result, told):
    assert all(type(one) is Progress and one.stage == Stage.MEASURE for one in told)
    fractions = [one.fraction for one in told]
    assert (
        fractions == sorted(fractions) and fractions[-1] > 0.5 and told[-1].sentence.startswith("code: run 1")
    )


def test_as_text_its_columns_stand_under_their_headings(result):
    lines = repr(result).splitlines()
    title, headings, *rows = lines[: lines.index("")]
    assert title == "target.gguf + draft.gguf, tokens/s" and [row.split()[0] for row in rows] == [
        "chat",
        "code",
    ]
    ends = {
        headings.index(name) + len(name) for name in ("plain", "localspec", "speedup", "oracle", "accepted")
    }
    assert all(end == len(row) or (row[end - 1] != " " and row[end] == " ") for row in rows for end in ends)
    assert lines[-1].startswith("speedup: mean ") and str(result) == repr(result)


def test_each_library_and_each_length_has_its_column(result):
    two = {
        **result.figures,
        "plain": dict.fromkeys(("llama.cpp", "ik_llama.cpp"), next(iter(result.figures["plain"].values()))),
    }
    assert [len(table.rows) for table in tables(two)] == [2, 2, 2]
    assert "against plain decoding by ik_llama.cpp: mean" in repr(BenchResult(two))


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ({"tps": 14.22, "tps_interval": [13.94, 14.51]}, "14.2 (13.9-14.5)"),
        ({"tps": 14.22, "tps_interval": None}, "14.2 (?)"),
    ],
)
def test_a_figure_has_its_interval_beside_it(figures, shown):
    assert with_interval(figures, "tps") == shown


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"runs": 0}, "runs"),
        ({"runs": "many"}, "runs"),
        ({"limit": -1}, "limit"),
        ({"lengths": [32]}, "lengths"),
        ({"precision": 0}, "precision"),
        ({"precision": float("nan")}, "precision"),
        ({"max_seconds": "long"}, "max_seconds"),
        ({"scenarios": ["poem"]}, "poem"),
        ({"on_progress": 3}, "on_progress"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(llm, told, wrong, named):
    with pytest.raises(InvalidRequest, match=named):
        bench(llm, **{**SHORT, **wrong})


def test_cancel_ends_it_and_the_engine_goes_on(llm):
    with pytest.raises(DecodeCancelled):
        bench(llm, on_progress=lambda progress: llm.cancel() if "run" in progress.sentence else None, **SHORT)
    assert llm.generate("abc", max_tokens=2).finish_reason == "length"
