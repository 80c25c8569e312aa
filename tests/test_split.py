"""Split models: the first part is the model, and what lies beside it is checked before llama.cpp sees it."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from localspec import LLM
from localspec.errors import ModelFileError, ModelLoadError
from localspec.gguf.formats import elements_by_type
from localspec.gguf.metadata import parse_metadata, read_headers, read_metadata
from localspec.gguf.reader import HeaderIncomplete
from localspec.gguf.split import PartName, part_name
from localspec.llama import backend
from localspec.llama.quantize import requantize
from tests.tinygguf import write_llama

PROMPT = list(range(40, 60))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("whole") / "tiny.gguf", seed=3)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "tiny.gguf", seed=3, per_part=8)


def parts(first: Path) -> list[Path]:
    return sorted(first.parent.glob("*.gguf"))


def answer(target: Path, draft: Path | None = None, library: str = "llama") -> tuple[int, ...]:
    with LLM.from_files(target, draft, n_ctx=128, draft_tokens=3 if draft else 0, library=library) as llm:
        return llm.generate(PROMPT, temperature=0.0, max_tokens=12).ids


def test_names_of_parts() -> None:
    name = part_name("Big-Q4_K_M-00002-of-00003.gguf")
    assert name == PartName("Big-Q4_K_M", 2, 3)
    assert name is not None
    assert name.all_names[0] == "Big-Q4_K_M-00001-of-00003.gguf"
    for other in ("Big.gguf", "Big-1-of-3.gguf", "Big-00001-of-00003.GGUF", "-00001-of-00003.gguf.part"):
        assert part_name(other) is None


def test_metadata_are_those_of_the_whole(whole: Path, first: Path) -> None:
    assert [path.name for path in parts(first)] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    split, plain = read_metadata(first), read_metadata(whole)
    assert split.size_bytes == sum(path.stat().st_size for path in parts(first))
    assert (split.tokens, split.n_layer, split.n_vocab) == (plain.tokens, plain.n_layer, plain.n_vocab)
    assert elements_by_type(first) == elements_by_type(whole)
    assert len(read_headers(first)) == 3


@pytest.mark.parametrize("library", ["llama", "ik"])
def test_it_answers_as_the_whole_does_as_target_and_as_draft(whole: Path, first: Path, library: str) -> None:
    expected = answer(whole, library=library)
    assert len(expected) == 12
    for files in ((first,), (first, first), (whole, first)):
        assert answer(*files, library=library) == expected


def test_it_can_be_requantized_into_one_file(first: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "tiny.gguf"
    copy.parent.mkdir()
    requantize(first, copy, "f16")
    assert sum(elements_by_type(copy).values()) == sum(elements_by_type(first).values())


@pytest.mark.parametrize("accident", [1, KeyboardInterrupt()])
def test_a_copy_that_was_not_finished_leaves_nothing(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accident: int | BaseException
) -> None:
    def half(_source: bytes, destination: bytes, _params: object) -> int:
        Path(destination.decode()).write_bytes(b"GGUF")
        if isinstance(accident, BaseException):
            raise accident
        return accident

    copy = tmp_path / "copy" / "tiny.gguf"
    copy.parent.mkdir()
    monkeypatch.setattr(backend.library(), "llama_model_quantize", half)
    with pytest.raises((ModelLoadError, KeyboardInterrupt)):
        requantize(first, copy, "f16")
    assert not list(copy.parent.iterdir())


def test_a_part_that_is_missing_is_named(first: Path) -> None:
    parts(first)[2].unlink()
    with pytest.raises(
        ModelFileError, match=r"incomplete: tiny-00003-of-00003\.gguf is not beside it"
    ) as caught:
        read_metadata(first)
    assert "one folder" in caught.value.remedy


def test_another_part_than_the_first_leads_to_it(first: Path) -> None:
    with pytest.raises(ModelFileError, match="is part 2 of 3 of a split model") as caught:
        read_metadata(parts(first)[1])
    assert caught.value.remedy == f"Give its first part {first.name}."


@pytest.mark.parametrize("name", ["renamed.gguf", "tiny-00002-of-00003.gguf", "tiny-00001-of-00004.gguf"])
def test_a_first_part_under_another_name_cannot_lead_to_the_others(first: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="does not have the form NAME-00001-of-00003"):
        read_metadata(first.replace(first.with_name(name)))


def test_parts_that_do_not_belong_together(first: Path, tmp_path: Path) -> None:
    second, third = parts(first)[1:]
    shutil.copyfile(third, second)
    with pytest.raises(ModelFileError, match=r"tiny-00002.*says to be part 3 of 3, not 2 of 3"):
        read_metadata(first)


@pytest.mark.parametrize(("number", "count"), [(1, 3), (3, 3), (2, 2), (2, 4)])
def test_a_part_says_which_of_how_many_it_is(first: Path, number: int, count: int) -> None:
    second = parts(first)[1]
    data = second.read_bytes()
    for key, value in ((b"split.no", number - 1), (b"split.count", count)):
        at = data.index(key) + len(key) + 4  # behind the type
        data = data[:at] + struct.pack("<H", value) + data[at + 2 :]
    second.write_bytes(data)
    with pytest.raises(ModelFileError, match=f"says to be part {number} of {count}, not 2 of 3"):
        read_metadata(first)


def test_parts_with_too_few_tensors(first: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_llama(other / "tiny.gguf", seed=3, per_part=8, leave_out=["blk.1.ffn_down.weight"])
    shutil.copyfile(parts(other / "x")[2], parts(first)[2])
    with pytest.raises(ModelFileError, match="its parts hold 20 tensors, not 21"):
        read_metadata(first)


@pytest.mark.parametrize("cut", [0, 3, 100, -1])
def test_a_part_that_is_cut_off(first: Path, cut: int) -> None:
    second = parts(first)[1]
    second.write_bytes(second.read_bytes()[:cut])
    with pytest.raises(ModelFileError, match="tiny-00002"):
        read_metadata(first)


def test_a_number_of_another_type_would_end_the_process(first: Path) -> None:
    second = parts(first)[1]
    data = second.read_bytes()
    key = data.index(b"split.no") + len(b"split.no")
    changed = data[:key] + struct.pack("<I", 3) + data[key + 4 :]  # INT16
    second.write_bytes(changed)
    with pytest.raises(ModelFileError, match=r"split\.no is missing or not a 16-bit number"):
        read_metadata(first)


def test_the_head_of_a_file_tells_what_the_file_tells(whole: Path) -> None:
    data = whole.read_bytes()
    plain = read_metadata(whole)
    seen = None
    for length in range(4, len(data), 61):
        try:
            seen = parse_metadata(data[:length], len(data), Path("far.gguf"), len(data))
        except HeaderIncomplete:
            continue
        break
    assert seen is not None
    assert length < 20_000 < len(data)
    assert (seen.path, seen.tokens, seen.key_values) == (Path("far.gguf"), plain.tokens, plain.key_values)
    assert seen.size_bytes == plain.size_bytes


def test_the_head_of_a_file_that_is_too_short_for_it(whole: Path) -> None:
    data = whole.read_bytes()
    with pytest.raises(ModelFileError, match=r"far\.gguf is not a usable GGUF file: it is cut off"):
        parse_metadata(data[:20_000], len(data) - 1, Path("far.gguf"), len(data) - 1)


@pytest.mark.parametrize(("head", "words"), [(b"<html>", "a web page"), (b"\0" * 600, "empty space")])
def test_a_head_of_something_else(head: bytes, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        parse_metadata(head, 5000, Path("far.gguf"), 5000)
