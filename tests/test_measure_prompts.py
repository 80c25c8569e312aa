"""The built-in prompts, and prompts files in both forms with every fault they can have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from localspec.errors import InvalidRequest
from localspec.measure.prompts import Prompt, builtin_prompts, choose, read_prompts

SCENARIOS = ["code", "edit", "technical", "creative", "math", "summary", "chat", "rag"]


def prompts_of(scenario: str) -> list[Prompt]:
    return choose(builtin_prompts(), [scenario])


def test_there_are_three_different_prompts_of_every_kind() -> None:
    prompts = builtin_prompts()
    assert list(dict.fromkeys(prompt.scenario for prompt in prompts)) == SCENARIOS
    assert all(len({prompt.turns for prompt in prompts_of(scenario)}) >= 3 for scenario in SCENARIOS)
    assert all(turn == turn.strip() != "" for prompt in prompts for turn in prompt.turns)


def test_edits_bring_a_file_answers_a_passage_and_chats_three_turns() -> None:
    for prompt in prompts_of("edit"):
        (file,) = re.findall(r"^```\w+\n(.*?)^```", prompt.turns[0], flags=re.MULTILINE | re.DOTALL)
        assert len(file.splitlines()) >= 25
    for prompt in prompts_of("rag"):
        passage = prompt.turns[0].partition("Passage:\n")[2].partition("\n\nQuestion:")[0]
        assert 200 <= len(passage.split()) <= 320
    assert {len(prompt.turns) for prompt in prompts_of("chat")} == {3}
    assert {len(p.turns) for p in builtin_prompts() if p.scenario != "chat"} == {1}


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_both_forms_are_read(tmp_path: Path) -> None:
    file = write(
        tmp_path / "prompts.jsonl",
        {"scenario": "code", "system": "Be brief.", "user": "Sort a list.", "source": "ours"},
        "",
        {"scenario": "code", "user": "a\u2028b"},
        {"question_id": 7, "category": "writing", "turns": ["One.", "Two."], "reference": ["x"]},
    )
    assert read_prompts(file) == [
        Prompt("code", ("Sort a list.",), "Be brief."),
        Prompt("code", ("a\u2028b",)),
        Prompt("writing", ("One.", "Two.")),
    ]


GOOD = {"scenario": "code", "user": "Sort a list."}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "Line 2 of FILE is not JSON"),
        ("[1]", "Line 2 of FILE is no JSON object."),
        ({"user": "x"}, "Line 2 of FILE: the field 'scenario' is missing."),
        ({"scenario": "code"}, "Line 2 of FILE: the field 'user' is missing."),
        ({"scenario": "code", "user": 3}, "Line 2 of FILE: the field 'user' is not a text."),
        ({"scenario": " ", "user": "x"}, "Line 2 of FILE: the field 'scenario' is not a text."),
        ({**GOOD, "system": ["x"]}, "Line 2 of FILE: the field 'system' is not a text."),
        ({"turns": ["x"]}, "Line 2 of FILE: the field 'category' is missing."),
        ({"category": "a", "turns": []}, "Line 2 of FILE: the field 'turns' is not a list of texts."),
        ({"category": "a", "turns": "x"}, "Line 2 of FILE: the field 'turns' is not a list of texts."),
        ({"category": "a", "turns": ["x", 1]}, "Line 2 of FILE: the field 'turns' is not a list of texts."),
    ],
)
def test_a_fault_names_line_and_field(tmp_path: Path, line: object, complaint: str) -> None:
    file = write(tmp_path / "prompts.jsonl", GOOD, line)
    with pytest.raises(InvalidRequest) as caught:
        read_prompts(file)
    assert caught.value.message.startswith(complaint.replace("FILE", str(file)))
    assert "question_id" in caught.value.remedy


def test_a_missing_an_empty_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(InvalidRequest, match="holds no prompt"):
        read_prompts(write(tmp_path / "empty.jsonl", "", " "))
    (tmp_path / "binary.jsonl").write_bytes(b"ab\xff")
    with pytest.raises(InvalidRequest, match="not UTF-8 at byte 2"):
        read_prompts(tmp_path / "binary.jsonl")


def test_scenarios_are_chosen_in_the_order_asked_for_and_limited() -> None:
    prompts = [Prompt(name, (str(i),)) for i, name in enumerate("abcab")]
    assert [p.turns[0] for p in choose(prompts)] == ["0", "3", "1", "4", "2"]
    assert [p.turns[0] for p in choose(prompts, ["c", "a", "c"], limit=1)] == ["2", "0"]
    with pytest.raises(InvalidRequest, match="'d'") as caught:
        choose(prompts, ["d"])
    assert caught.value.remedy == "There are a, b, c."
