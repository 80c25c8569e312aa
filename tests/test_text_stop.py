"""Stop strings, however the text is cut."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import InvalidRequest
from localspec.text.answer import StopMatcher


def shown(stops: list[str], chunks: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = ""
    for chunk in chunks:
        part, hit = matcher.push(chunk)
        text += part
        if hit:
            return text, True
    return text + matcher.flush(), False


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """Letter by letter: the first stop string to be complete ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)
TEXT = st.text(alphabet="abc", max_size=14)


@given(STOPS, TEXT, st.data())
def test_the_result_does_not_depend_on_the_chunks(stops: list[str], text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(stops, chunks) == expected(stops, text)


@given(STOPS, TEXT)
def test_nothing_is_shown_that_a_stop_string_could_take_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    final, _ = expected(stops, text)
    so_far = ""
    for letter in text:
        part, hit = matcher.push(letter)
        so_far += part
        assert final.startswith(so_far)
        if hit:
            break


def test_of_several_in_one_chunk_the_one_complete_first_counts() -> None:
    words = ["".join(letters) for size in (1, 2, 3) for letters in product("ab", repeat=size)]
    texts = ["".join(letters) for letters in product("ab", repeat=4)]
    for stops in combinations(words, 2):
        for text in texts:
            assert shown(list(stops), [text]) == shown(list(stops), list(text)) == expected(list(stops), text)


def test_a_stop_string_over_three_chunks() -> None:
    matcher = StopMatcher(["###END"])
    assert matcher.push("text #") == ("text ", False)
    assert matcher.push("##E") == ("", False)
    assert matcher.push("ND and more") == ("", True)
    assert matcher.flush() == ""
    assert matcher.push("later") == ("", True)


def test_a_false_alarm_is_given_out() -> None:
    assert shown(["###END"], ["##", "#E", "xit"]) == ("###Exit", False)
    assert shown(["###"], ["a##"]) == ("a##", False)


def test_nothing_is_held_back_without_stop_strings() -> None:
    assert StopMatcher([]).push("abc") == ("abc", False)


def test_one_text_is_one_stop_string() -> None:
    assert shown("ab", ["cab"]) == ("c", True)  # type: ignore[arg-type]


@pytest.mark.parametrize("stops", [[""], ["a", ""], [None], [3], ["x"] * 65])
def test_bad_stop_strings(stops: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopMatcher(stops)
    assert caught.value.name == "stop"
    assert caught.value.remedy


def test_sixty_four_stop_strings_are_allowed() -> None:
    assert shown([f"<{index}>" for index in range(64)], ["a<63", ">b"]) == ("a", True)
