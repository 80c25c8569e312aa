"""`localspec list` and `show`: what is known of pairs and what of them is here."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest

from localspec import LLM, memory_needed
from localspec.cli import listing
from localspec.cli.draft import trial_lines
from localspec.cli.listing import HEADINGS
from localspec.cli.tables import table
from localspec.engine import measured_costs as calibration
from localspec.errors import PairingError
from localspec.pairs.catalogue import own_folder
from localspec.store import last_use as usage
from localspec.store.holding import format_in_name, holding
from localspec.store.last_use import last_use, record_use
from localspec.store.measurements import this_machine
from localspec.store.prepared import PreparedDrafts, Source, Trial
from localspec.system.home import default_home
from tests.storekit import Shelf, model_file, run
from tests.storekit import listing as everything
from tests.tinygguf import write_llama, write_mamba


def row(shelf: Shelf, name: str = "tiny") -> dict[str, str]:
    """Cells of the pair's row by heading."""
    heading, *rows = run("list").stdout.splitlines()
    (line,) = [line for line in rows if line.startswith(f"{name} ")]
    starts = [heading.index(title) for title in HEADINGS]
    ends = [*starts[1:], None]
    return {title: line[a:b].strip() for title, a, b in zip(HEADINGS, starts, ends, strict=True)}


def entry(shelf: Shelf, name: str = "tiny") -> dict[str, object]:
    (found,) = [item for item in json.loads(run("list", "--json").stdout) if item["name"] == name]
    return found


def calibrate(shelf: Shelf, machine: object = None) -> None:
    """Lays down what measuring both models leaves."""
    (shelf.home / "calibration").mkdir(parents=True)
    for path in shelf.originals:
        facts = {
            "file": path.name,
            "bytes": path.stat().st_size,
            "machine": machine or this_machine(),
        }
        text = json.dumps({"format": calibration.FORMAT, "facts": facts})
        (shelf.home / "calibration" / f"{path.name}.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("files", "presence"), [(0, "no"), (1, "part"), (2, "yes")])
def test_list_says_what_is_on_disk(shelf: Shelf, files: int, presence: str) -> None:
    if files:
        shelf.fill(draft=files == 2)
    cells = row(shelf)
    assert cells["ON DISK"] == presence
    assert (cells["LICENCE"], cells["TAGS"], cells["WHAT IT IS"]) == ("MIT", "test", "A tiny pair")
    described = entry(shelf)
    assert (described["on_disk"], described["bytes"]) == (presence, shelf.pair.bytes)
    assert [file["role"] for file in described["files"]] == ["target", "draft"]  # type: ignore[attr-defined]
    assert described["pair_file"] == str(shelf.org / "tiny.toml")


def test_a_download_that_has_begun_is_a_part(shelf: Shelf) -> None:
    shelf.store.prepare()
    shelf.store.partial(shelf.pair.target).path.write_bytes(b"begun")
    assert row(shelf)["ON DISK"] == "part"


def test_formats_come_from_the_name_or_from_the_file(shelf: Shelf) -> None:
    assert row(shelf)["FORMAT"] == "? + ?"
    shelf.fill()
    assert row(shelf)["FORMAT"] == "F32 + F32"
    named = replace(shelf.pair.target, file="some-model-Q4_K_M.gguf")
    shelf.know(replace(shelf.pair, name="named", target=named, draft=None))
    assert row(shelf, "named")["FORMAT"] == "Q4_K_M"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "Q4_K_M"), ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("m-BF16.gguf", "BF16"), ("m-iq4_xs-00001-of-00003.gguf", "IQ4_XS"), ("q4_0-model.gguf", ""),
        ("m-q4_k.gguf", ""), ("m-xq4_0.gguf", ""), ("q8_0.gguf", "Q8_0"),
    ],
)  # fmt: skip
def test_a_quantization_is_read_whole_from_the_end_of_a_name(name: str, form: str) -> None:
    assert format_in_name(name) == form


def test_prepared_drafts_and_their_size(shelf: Shelf) -> None:
    shelf.fill()
    assert row(shelf)["PREPARED"] == ""
    shelf.prepare_draft(bytes(123_000))
    assert row(shelf)["PREPARED"] == "123 kB"
    assert entry(shelf)["prepared_bytes"] == 123_000
    assert entry(shelf)["prepared_shared_with"] == []


def test_a_prepared_copy_that_serves_several_pairs_is_shared(shelf: Shelf) -> None:
    """Its bytes are on the disk once: whoever adds the rows up would count it for each."""
    shelf.fill()
    shelf.prepare_draft(bytes(123_000))
    other = replace(shelf.pair, name="other", target=replace(shelf.pair.target, sha256="1" * 64))
    shelf.know(other)
    assert [row(shelf, name)["PREPARED"] for name in ("tiny", "other")] == ["123 kB shared"] * 2
    assert entry(shelf)["prepared_shared_with"] == ["other"]
    assert "shared" not in run("list", "--installed").stdout.replace("123 kB shared", "", 1)


def test_trials_of_a_prepared_draft_say_what_tells_them_apart(shelf: Shelf) -> None:
    shelf.fill()
    shelf.prepare_draft(bytes(2000))
    draft = shelf.store.pair_paths(shelf.pair)[1]
    assert draft is not None
    drafts, source = PreparedDrafts(shelf.home), Source.of(draft)
    first = {"threads": 2, "build": "0.3.35", "machine": ["vm", 2], "repack": True}
    for facts in (first, {**first, "build": "0.3.36"}, {**first, "build": "0.3.36", "repack": False}):
        with drafts.lock(source):
            drafts.path(source, "q4_0").write_bytes(bytes(2000))
            drafts.keep(source, Trial(facts, {"original": 0.015, "q4_0": 0.009}, "q4_0"))
    for told in (run("show", "tiny").stdout, run("draft", "show", "tiny").stdout):
        lines = [line.split(": drafts")[0].strip() for line in told.splitlines() if ": drafts" in line]
        assert lines[1:] == [
            "with -t 2, library 0.3.35, machine vm (2 processors), weights rearranged",
            "with -t 2, library 0.3.36, machine vm (2 processors), weights rearranged",
            "with -t 2, library 0.3.36, machine vm (2 processors), weights as in the file",
        ]
        assert lines[0] == "with -t 2, library unknown, machine unknown, weights as in the file"
    record = drafts.record(source)
    assert record is not None
    assert [line.split(": drafts")[0] for line in trial_lines(record.trials[1:3])] == [
        "with -t 2, library 0.3.35", "with -t 2, library 0.3.36",
    ]  # fmt: skip


def test_calibrated_on_this_machine_or_not(shelf: Shelf) -> None:
    shelf.fill()
    assert row(shelf)["CALIBRATED"] == "no"
    calibrate(shelf)
    assert (row(shelf)["CALIBRATED"], entry(shelf)["calibrated"]) == ("yes", True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "facts": {"machine": 1}}'])
def test_another_machines_calibration_and_a_damaged_one_do_not_count(shelf: Shelf, text: str) -> None:
    shelf.fill()
    calibrate(shelf, machine=["another"])
    (shelf.home / "calibration" / "x.json").write_text(text, encoding="utf-8")
    assert (row(shelf)["CALIBRATED"], entry(shelf)["calibrated"]) == ("no", False)


# Last used


def test_loading_notes_when(shelf: Shelf) -> None:
    shelf.fill()
    assert (row(shelf)["LAST USED"], entry(shelf)["last_used"]) == ("never", None)
    before = datetime.now(UTC).replace(microsecond=0)
    with LLM.from_pair("tiny", home=shelf.home, draft_tokens=2, n_ctx=128):
        pass
    when = datetime.fromisoformat(str(entry(shelf)["last_used"]))
    assert before <= when <= datetime.now(UTC)
    assert row(shelf)["LAST USED"] == when.astimezone().date().isoformat()
    draft = shelf.store.pair_paths(shelf.pair)[1]
    assert draft is not None and last_use(draft, shelf.home) == when


def test_a_file_that_failed_to_load_was_not_used(shelf: Shelf) -> None:
    other = write_llama(
        shelf.elsewhere / "other.gguf", changed_tokens={token: f"w{token}" for token in range(200)}
    )
    with pytest.raises(PairingError):
        LLM.from_files(shelf.originals[0], other, home=shelf.home, draft_tokens=2, no_cross_vocabulary=True)
    assert last_use(shelf.originals[0], shelf.home) is None


def test_a_home_that_cannot_be_written_stops_nobody(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.fill()
    (shelf.home / "used").write_text("in the way", encoding="utf-8")
    with LLM.from_pair("tiny", home=shelf.home, draft_tokens=2, n_ctx=128) as llm:
        assert llm.generate("a", max_tokens=2).finish_reason == "length"
    assert row(shelf)["LAST USED"] == "never"
    monkeypatch.setenv("LOCALSPEC_HOME", "~nosuchuser/x")
    monkeypatch.setattr(usage, "default_home", default_home)
    record_use(shelf.originals[0])
    monkeypatch.setenv("LOCALSPEC_HOME", str(shelf.home.parent / "nowhere"))
    record_use(shelf.originals[0])
    assert not (shelf.home.parent / "nowhere").exists()
    record_use(None, shelf.home / "no-such.gguf", home=shelf.home)


@pytest.mark.parametrize("text", ["", "yesterday", "\ud800"])
def test_a_damaged_note_is_no_note(shelf: Shelf, text: str) -> None:
    shelf.store.prepare()
    record_use(shelf.originals[0], home=shelf.home)
    (note,) = (shelf.home / "used").iterdir()
    note.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert last_use(shelf.originals[0], shelf.home) is None
    record_use(shelf.originals[0], home=shelf.home)
    assert last_use(shelf.originals[0], shelf.home) is not None
    assert [path.name for path in (shelf.home / "used").iterdir()] == [note.name]


# How it is shown


def test_a_narrow_terminal_gets_a_block_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [HEADINGS, ("tiny", "1 MB", "yes", "F32", "", "no", "never", "MIT", "test", "A tiny pair " * 9)]
    assert table(rows, None)[0].split()[:2] == ["NAME", "SIZE"]
    assert table(rows, 400) == table(rows, None)
    lines = table(rows, 40)
    assert lines[0] == "tiny"
    assert all(len(line) <= 40 for line in lines)
    joined = " ".join(line.strip() for line in lines)
    assert (
        "size 1 MB, on disk yes, format F32, calibrated no, last used never, licence MIT, tags test" in joined
    )
    assert joined.endswith("A tiny pair")


def test_the_width_is_the_terminals(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert listing.list_pairs.callback is not None
    listing.list_pairs.callback(installed=False, as_json=False)
    lines = terminal.getvalue().splitlines()
    assert "tiny" in lines
    assert all(len(line) <= 60 for line in lines)


def test_a_broken_pair_file_is_a_warning(shelf: Shelf) -> None:
    (shelf.org / "broken.toml").write_text("name = 3\n", encoding="utf-8")
    result = run("list")
    assert result.exit_code == 0
    path = shelf.org / "broken.toml"
    assert result.stderr.startswith(f"warning: The pair file {path}, line 1, cannot be used: ")
    assert row(shelf)["ON DISK"] == "no"


def test_a_hidden_pair_file_is_a_warning_where_it_is_used(shelf: Shelf) -> None:
    shelf.fill()
    own_folder().mkdir()
    shelf.know(shelf.pair).rename(own_folder() / "tiny.toml")
    other = shelf.know(replace(shelf.pair, summary="Another"))
    with LLM.from_pair("tiny", home=shelf.home, draft_tokens=2, n_ctx=128) as llm:
        assert [str(other) in warning for warning in llm.warnings] == [True]
    assert str(other) in run("show", "tiny").stderr


def test_looking_changes_nothing(shelf: Shelf) -> None:
    for arguments in (["list"], ["list", "--json"], ["show", "tiny"], ["show", "tiny", "--json"]):
        assert run(*arguments).exit_code == 0
    assert not shelf.home.exists()
    shelf.fill()
    shelf.prepare_draft()
    before = everything(shelf.home)
    for arguments in (["list"], ["show", "tiny"], ["show", "tiny", "--json"], ["verify"]):
        assert run(*arguments).exit_code == 0
    assert everything(shelf.home) == before


# show


def test_show_of_a_pair_that_is_not_here(shelf: Shelf) -> None:
    result = run("show", "tiny")
    assert (result.exit_code, result.stderr) == (0, "")
    for file in shelf.pair.files:
        assert f"{file.file}, " in result.stdout and f"sha256 {file.sha256}" in result.stdout
    assert result.stdout.count("not on this disk") == 2
    assert "from Hugging Face, someone/some-GGUF at revision 0123456789abcdef" in result.stdout
    assert "not known before both files are here" in result.stdout
    facts = json.loads(run("show", "tiny", "--json").stdout)
    assert (facts["memory"], facts["judgement"], facts["prepared"]) == (
        {"context": 4096, "bytes": None}, None, None,
    )  # fmt: skip


def test_show_says_which_models_have_prediction_layers_of_their_own(shelf: Shelf) -> None:
    assert (
        "draft     none: drafts from its own prediction layers and repeated text\n"
        in run("show", "qwen3.6-27b").stdout
    )
    assert "draft     none: drafts from repeated text\n" in run("show", "qwen3.5-2b").stdout
    assert json.loads(run("show", "qwen3.5-9b", "--json").stdout)["prediction_layers"] == 1


def test_show_knows_the_memory_of_the_catalogues_pairs(shelf: Shelf) -> None:
    facts = json.loads(run("show", "qwen3-32b", "-c", "2048", "--json").stdout)
    needed = memory_needed("qwen3-32b", n_ctx=2048)
    assert needed.weights + needed.kv_cache == 20401595712 + 64 * 8 * 128 * 4 * 2048 + 28 * 8 * 128 * 4 * 2048
    assert facts["memory"] == {"context": 2048, "bytes": needed.total}


@pytest.mark.parametrize("named", ["path", "home"])
def test_show_of_a_file(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """Also where no shell has put the home folder in place of `~`."""
    target = shelf.originals[0]
    monkeypatch.setenv("HOME", str(target.parent))
    monkeypatch.setenv("USERPROFILE", str(target.parent))
    name = f"~/{target.name}" if named == "home" else str(target)
    result = run("show", name)
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        str(target),
        "llama, 2 layers of width 64",
        "F32, ",
        "gpt2, 300 tokens",
        "512 tokens",
        "template yes",
    ):
        assert words in result.stdout
    assert f"`localspec suggest {shlex.quote(name)}` finds drafts for it." in result.stdout
    facts = json.loads(run("show", name, "-c", "100", "--json").stdout)
    assert (facts["file"], facts["bytes"], facts["layers"]) == (str(target), target.stat().st_size, 2)
    assert facts["memory"]["bytes"] > facts["bytes"]
    assert facts["judgement"]["fits"] is True


def test_show_of_files_that_nothing_drafts_for_or_that_are_none(shelf: Shelf, tmp_path: Path) -> None:
    recurrent = write_mamba(tmp_path / "mamba.gguf")
    shown = run("show", recurrent).stdout
    assert "Text that repeats itself can be drafted for mamba.gguf" in shown
    assert "localspec suggest" in shown
    (tmp_path / "text.gguf").write_text("a text", encoding="utf-8")
    assert "is not a GGUF file: it looks like a text file" in run("show", tmp_path / "text.gguf").stderr
    assert "There is no file" in run("show", "none.gguf").stderr


def test_list_of_what_is_installed(shelf: Shelf, tmp_path: Path) -> None:
    assert "No pair is on this disk" in run("list", "--installed").stderr
    assert json.loads(run("list", "--installed", "--json").stdout) == []
    _, draft = shelf.fill()
    kept = draft.rename(tmp_path / "draft")
    assert json.loads(run("list", "--installed", "--json").stdout) == []
    kept.rename(draft)
    (one,) = json.loads(run("list", "--installed", "--json").stdout)
    assert one["name"] == "tiny"
    lines = run("list", "--installed").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "tiny"]


def test_show_of_a_pair_that_is_here(shelf: Shelf) -> None:
    places = shelf.fill()
    copy = shelf.prepare_draft(bytes(2000))
    shown = run("show", "tiny", "-c", "100").stdout
    assert all(str(place) in shown for place in places)
    assert "tiny-draft.gguf can draft for tiny-target.gguf: " in shown
    assert "with -t 2: drafts with q4_0 (original 15.0 ms, q4_0 9.0 ms a token)" in shown
    assert "prepared drafts, 2 kB:" in shown
    facts = json.loads(run("show", "tiny", "-c", "100", "--json").stdout)
    # Two layers, two heads of 16 elements for K and V in F16, and as much for the draft.
    cache = 2 * (2 * 2 * 2 * 16 * 2 * 100)
    assert facts["judgement"]["verdict"] == "fits"
    needed = memory_needed("tiny", n_ctx=100)
    assert needed.weights + needed.kv_cache == shelf.pair.bytes + cache
    assert facts["memory"] == {"context": 100, "bytes": needed.total}
    assert facts["prepared"]["copies"] == [{"format": "q4_0", "path": str(copy), "bytes": 2000}]
    assert [file["format"] for file in facts["files"]] == ["F32", "F32"]
    # More than the models were trained for is not reserved.
    more = json.loads(run("show", "tiny", "-c", "999999", "--json").stdout)
    assert more["memory"]["bytes"] == memory_needed("tiny", n_ctx=512).total


def test_show_says_what_a_draft_of_another_vocabulary_shares(shelf: Shelf) -> None:
    write_llama(shelf.originals[1], changed_tokens={token: f"w{token}" for token in range(200)})
    other = replace(shelf.pair, draft=model_file(shelf.originals[1]))
    shelf.know(other)
    replace(shelf, pair=other).fill()
    shown = run("show", "tiny").stdout
    assert (
        "tiny-draft.gguf can draft for tiny-target.gguf, less well: their vocabularies differ, and 77 of the"
        in shown
    )


def test_show_says_how_a_recurrent_model_takes_tokens_back(shelf: Shelf) -> None:
    lonely = replace(shelf.pair, target=model_file(write_mamba(shelf.originals[0])), draft=None)
    shelf.know(lonely)
    replace(shelf, pair=lonely).fill()
    shown = run("show", "tiny").stdout
    assert "The target is a recurrent model (mamba), whose running state is saved" in shown
    assert "drafts from repeated text" in shown


def test_show_of_a_damaged_file_goes_on(shelf: Shelf) -> None:
    place = shelf.fill()[0]
    place.write_bytes(bytes(place.stat().st_size))
    result = run("show", "tiny")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {place} is not a GGUF file")
    assert holding(shelf.pair, shelf.store).formats == ("", "F32")


@pytest.mark.parametrize("name", ["../tiny", "no-such", ""])
def test_show_of_an_unknown_name(shelf: Shelf, name: str) -> None:
    result = run("show", name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: There is no pair named {name!r}.")


def test_an_absurd_context_is_refused(shelf: Shelf) -> None:
    shelf.fill()
    result = run("show", "tiny", "-c", "0")
    assert (result.exit_code, "'-c' / '--ctx-size': 0 is not in the range" in result.stderr) == (2, True)
