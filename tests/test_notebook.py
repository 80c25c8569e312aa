"""A notebook that is really run: what its cells show of answers and of a bench, and what they leave behind."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import nbformat
import pytest
from nbclient import NotebookClient

from localspec import Completion
from localspec.answers.notebook import answer_html, completion_html
from localspec.decoding.stats import Stats
from localspec.text.controls import printable

from .tinygguf import write_pair

CELLS = {
    "load": "from localspec import LLM, bench\n"
    "llm = LLM.from_files(TARGET, DRAFT, n_ctx=512, draft_tokens=3, library='llama')",
    "stream": "llm.stream('a <b> & $x$ ' * 4, max_tokens=60, temperature=0)",
    "display": "stream = llm.chat([{'role': 'user', 'content': 'hello'}], max_tokens=40, temperature=0)\n"
    "display(stream)\nprint(stream.completion.finish_reason, len(stream.completion.ids))",
    "again": "stream",
    "begun": "stream = llm.stream('abc', max_tokens=30, temperature=0)\nfirst = next(stream)\nstream",
    "completion": "answer = llm.generate('abc', max_tokens=30, temperature=0)\nanswer",
    "interrupt": """
import _thread

def interrupts(ids, _logits):
    if len(ids) == 40:
        _thread.interrupt_main()

stream = llm.stream('abc', logits_processors=[interrupts])
try:
    display(stream)
except KeyboardInterrupt:
    print('interrupted', stream.completion.finish_reason)
""",
    "next": "llm.generate('abc', max_tokens=2).finish_reason",
    "live": """
from IPython.display import DisplayHandle
from localspec.answers import notebook

notebook.INTERVAL, drawn, update = 0, [], DisplayHandle.update

def watched(handle, bundle, **options):
    drawn.append(bundle)
    update(handle, bundle, **options)

DisplayHandle.update = watched
display(llm.stream('abc', max_tokens=40, temperature=0))
DisplayHandle.update = update
texts = [bundle['text/plain'] for bundle in drawn]
print(len(texts) > 5, all(text.startswith(before) for before, text in zip(texts, texts[1:])))
print('tokens ...' in drawn[0]['text/html'], sum('span style' in bundle['text/html'] for bundle in drawn) > 5)
""",
    "bench": "from localspec import SamplingParams\n"
    "result = bench(llm, scenarios=['code'], limit=1, runs=1, lengths=[2],\n"
    "               params=SamplingParams(temperature=0, max_tokens=20))\nresult",
    "printed": "print(result)\nllm.close()",
}


class Shown(HTMLParser):
    """Text of an HTML output, what of it is coloured, and its tags; a tag that is not closed is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.coloured, self.tags, self.open = "", "", [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag != "br":
            self.open.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        inside = [tag for tag, _ in self.open]
        if "small" not in inside:
            self.text += data
            self.coloured += data if "span" in inside else ""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Of each cell, by its name."""
    folder = tmp_path_factory.mktemp("notebook")
    target, draft = write_pair(folder)
    sources = [
        text.replace("TARGET", repr(str(target))).replace("DRAFT", repr(str(draft)))
        for text in CELLS.values()
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "LOCALSPEC_HOME"):
            patch.setenv(name, str(folder / name))
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def html(cell):
    (output,) = [output for output in cell if output.output_type in ("display_data", "execute_result")]
    return output.data["text/html"]


def printed(cell):
    return "".join(
        output.text for output in cell if output.output_type == "stream" and output.name == "stdout"
    )


def test_nothing_else_is_said(outputs):
    assert outputs["load"] == []
    assert [output for cell in outputs.values() for output in cell if output.output_type == "error"] == []
    assert [output for cell in outputs.values() for output in cell if output.get("name") == "stderr"] == []


@pytest.mark.parametrize("name", ["stream", "display", "begun"])
def test_a_stream_shows_its_whole_text_coloured_and_its_figures(outputs, name):
    (output,) = [output for output in outputs[name] if output.output_type == "display_data"]
    shown = Shown(output.data["text/html"])
    assert shown.text == output.data["text/plain"] != ""
    assert 0 < len(shown.coloured) < len(shown.text)
    below = re.sub("<.*?>", "", output.data["text/html"].split("<small>")[1])
    assert re.search(
        r"\d+ tokens, [\d.]+ tokens/s.*, acceptance rate 0\.\d\d \(\d+ of \d+ drafted tokens\)", below
    )
    assert "coloured: drafted, and kept by the target" in below


def test_its_text_grows_while_it_is_decoded(outputs):
    assert printed(outputs["live"]) == "True True\nTrue True\n"


def test_a_stream_that_was_shown_is_read_and_shows_the_same_again(outputs):
    assert printed(outputs["display"]) == "length 40\n"
    assert html(outputs["again"]) == html(outputs["display"])


def test_a_whole_answer_shows_itself_likewise(outputs):
    assert Shown(html(outputs["completion"])).text == Shown(html(outputs["begun"])).text


def test_an_interrupted_cell_ends_its_answer_and_the_engine_is_free(outputs):
    assert printed(outputs["interrupt"]) == "interrupted cancelled\n"
    assert "<small>stopped, " in html(outputs["interrupt"])
    assert outputs["next"][0].data["text/plain"] == "'length'"


def test_a_bench_is_a_table_with_intervals(outputs):
    (output,) = outputs["bench"]
    shown = Shown(output.data["text/html"])
    assert shown.tags.count("table") >= 2 and {"caption", "th", "td"} <= set(shown.tags)
    assert "target.gguf + draft.gguf, tokens/s" in shown.text and "2 drafted" in shown.text
    assert re.search(r"\d\.\d\dx \((\?|\d\.\d\d-\d+\.\d\d)\)", shown.text)
    text = printed(outputs["printed"])
    assert text.splitlines()[0] == "target.gguf + draft.gguf, tokens/s" and "speedup: mean" in text
    assert output.data["text/plain"] == text.rstrip("\n")


def completion(text, drafted, ends, **stats):
    return Completion(
        text, tuple(range(len(drafted))), "stop", Stats(**stats), None, "on", "", drafted, text_ends=ends
    )


def test_what_a_model_writes_is_never_html():
    text = "<script>alert(1)</script> & \"x\" 'y' </div></small>"
    shown = Shown(completion_html(completion(text, (True, False), (8, len(text)))))
    assert (shown.text, shown.coloured) == (text, "<script>")
    assert set(shown.tags) == {"div", "span", "small", "br"}
    notice = completion_html(Completion(text, (), "stop", Stats(), None, "off: <b>", "a <i> notice"))
    assert "<b>" not in notice and "<i>" not in notice


@pytest.mark.parametrize(
    ("text", "drafted", "ends", "coloured"),
    [
        ("", (), (), ""),
        ("abc", (), (), ""),
        ("abcdef", (True, False, True), (2, 4, 6), "abef"),
        ("abcdef", (True, True), (2, 4), "abcd"),  # the rest is still without a token
        ("ab", (False, True, True), (1, 2, 9), "b"),  # the rest of the tokens' text is held back
        ("äb", (True, True, False), (0, 1, 2), "ä"),  # half a character
    ],
)
def test_what_is_coloured(text, drafted, ends, coloured):
    shown = Shown(answer_html(text, drafted, ends, ""))
    assert (shown.text, shown.coloured) == (text, coloured)


def test_in_a_terminal_the_text_is_printed_as_it_comes(tmp_path):
    target, draft = write_pair(tmp_path)
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "from localspec import LLM\n"
        "llm = LLM.from_files(*sys.argv[1:], n_ctx=256, draft_tokens=3, library='llama')\n"
        "text = llm.generate('abc', max_tokens=9, temperature=0).text\n"
        "InteractiveShell.instance()\n"
        "llm.stream('abc', max_tokens=9, temperature=0)._ipython_display_()\n"
        "print(ascii(text))\n"
        "llm.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, target, draft],
        capture_output=True,
        encoding="utf-8",
        env={"HOME": str(tmp_path), "PYTHONUTF8": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    *_, figures, text = done.stdout.splitlines()
    assert figures.startswith("9 tokens") and done.stdout.startswith(printable(eval(text)))


def test_ipython_is_not_imported_until_it_is_asked():
    code = (
        "import sys, localspec.answers.notebook, localspec; localspec.bench; print('IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
