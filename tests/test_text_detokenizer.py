"""Streaming text: joined, it is the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.text.answer import Detokenizer


def stream(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer(pieces.__getitem__)
    return [*map(detokenizer.push, range(len(pieces))), detokenizer.flush()]


# Lone lead and continuation bytes are as likely as letters, or faults would hardly ever meet.
BYTES = st.one_of(
    st.text(alphabet="aé€😀", max_size=3).map(str.encode),
    st.lists(st.sampled_from(b"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\xed\xa0"), max_size=4).map(bytes),
    st.binary(max_size=3),
)


@given(st.lists(BYTES, max_size=8))
def test_joined_pieces_are_the_whole_text(pieces: list[bytes]) -> None:
    assert "".join(stream(pieces)) == b"".join(pieces).decode("utf-8", errors="replace")


@given(st.text(alphabet="aé€😀\n", max_size=20), st.data())
def test_nothing_provisional_is_ever_shown(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    shown = stream(pieces)
    assert "\ufffd" not in "".join(shown)
    assert "".join(shown) == text


def test_a_split_character_is_held_back() -> None:
    assert stream([b"\xf0\x9f", b"\x98", b"\x80!"]) == ["", "", "😀!", ""]


def test_half_a_character_at_the_end() -> None:
    assert stream([b"a\xe2\x82"]) == ["a", "\ufffd"]


def test_usable_again_after_flush() -> None:
    detokenizer = Detokenizer([b"\xe2", b"ok"].__getitem__)
    detokenizer.push(0)
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(1) == "ok"
    assert detokenizer.flush() == ""
