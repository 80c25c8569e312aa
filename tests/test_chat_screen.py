"""What the screen shows of a conversation, in a real pseudo-terminal with an emulated screen. POSIX only."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

__test__ = sys.platform != "win32"

if sys.platform != "win32":
    from tests.window import Window

ANSWER = """\
# Rivers of the *north*

A **bold** word, some `inline code` and vector<int>, in a paragraph
that is broken anew.

1. First, with so many words that this item needs a second line of the window
2. Second
   - nested 你好世界你好世界你好世界你好世界你好世界你好世界你好世界

```python
def reverse(text):
    return text[::-1]  # and a remark that is too long for a window of sixty columns
```

| name | value |
|------|-------|
| one  | 12345 |

> The end.
"""
RENDERED = """\
Rivers of the north

A bold word, some inline code and vector<int>, in a
paragraph
that is broken anew.

 1. First, with so many words that this item needs a second
    line of the window
 2. Second
     • nested
       你好世界你好世界你好世界你好世界你好世界你好世界你好
       世界

  def reverse(text):
      return text[::-1]  # and a remark that is too long
  for a window of sixty columns

 name  value
 ───────────
 one   12345

▌ The end.
"""


@pytest.fixture
def answer(tmp_path: Path) -> Path:
    path = tmp_path / "answer.md"
    path.write_text(ANSWER, encoding="utf-8")
    return path


def between(text: str, first: str, last: str) -> str:
    return text.partition(first)[2].partition(last)[0]


def test_an_answer_is_rendered_while_it_comes_and_stands_there_once(tmp_path: Path, answer: Path) -> None:
    with Window(tmp_path, "chat", PACE="0.04") as window:
        window.enter(f"show {answer}")
        window.until("about 1.4x plain")
        assert re.fullmatch(r"\d+ tokens, 10.0 tokens/s, about 1.4x plain", window.lines[-1])
        window.until("mean acceptance length")
        lines = window.text.split("answer.md\n")[1].split("\n")
        end = next(at for at, line in enumerate(lines) if " tokens/s" in line)
        assert "\n".join(lines[:end]) + "\n" == RENDERED
        assert "1.4x" not in window.text, "the line on how it goes leaves with the answer"
