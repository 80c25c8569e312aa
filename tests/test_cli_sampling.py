"""Sampling, accept rules and grammars on the command line: what reaches the engine, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import localspec
from localspec.cli import main, opening
from localspec.cli.model_options import ModelOptions
from localspec.cli.options import in_flags
from localspec.decoding.params import SamplingParams
from tests.fake_llm import FakeLLM

GRAMMAR = 'root ::= "yes" | "no"\n'
SCHEMA = '{"type": "object"}'


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(opening, "open_engine", lambda _options, _notify: fake)
    return fake


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """How `LLM` is made: positional arguments, keyword arguments."""
    seen: list[tuple[Any, dict[str, Any]]] = []

    class Recorded:
        @staticmethod
        def from_pair(name: str, **options: Any) -> FakeLLM:
            seen.append((name, options))
            return FakeLLM()

        @staticmethod
        def from_files(target: Path, draft: Path | None, **options: Any) -> FakeLLM:
            seen.append(((target, draft), options))
            return FakeLLM()

    monkeypatch.setattr(localspec, "LLM", Recorded, raising=False)
    return seen


def run(*arguments: str, command: str = "chat") -> Result:
    return CliRunner().invoke(main, [command, "-p", "hi", *arguments], input="")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--typical 0.7", {"typical_p": 0.7}),
        ("--top-nsigma 1.5", {"top_n_sigma": 1.5}),
        ("--min-tokens 3", {"min_tokens": 3}),
        ("--min-tokens 3 -n 3", {"min_tokens": 3, "max_tokens": 3}),
        ("--ignore-eos", {"ignore_eos": True}),
        ("--ignore-eos -n 5", {"ignore_eos": True, "max_tokens": 5}),
        (
            "--typical 0.5 --top-nsigma 2 --temp 1.5",
            {"typical_p": 0.5, "top_n_sigma": 2.0, "temperature": 1.5},
        ),
        (
            "--frequency-penalty 0.5 --presence-penalty -1",
            {"frequency_penalty": 0.5, "presence_penalty": -1.0},
        ),
        ("--repeat-last-n -1 --repeat-penalty 1.2", {"repeat_last_n": -1, "repeat_penalty": 1.2}),
    ],
)
def test_sampling_reaches_the_request(llm: FakeLLM, arguments: str, expected: dict[str, Any]) -> None:
    assert run(*arguments.split()).exit_code == 0
    assert llm.calls[0]["params"] == SamplingParams(**expected)


@pytest.mark.parametrize("rule", ["auto", "block", "rejection", "coupled"])
def test_the_accept_rule_reaches_the_request(llm: FakeLLM, rule: str) -> None:
    assert run("--verify", rule).exit_code == 0
    assert llm.calls[0]["verify"] == rule


def test_without_options_the_rule_is_auto_and_nothing_else_is_asked_for(llm: FakeLLM) -> None:
    assert run().exit_code == 0
    (call,) = llm.calls
    assert call["verify"] == "auto"
    assert (
        set(call) == {"messages", "params", "draft_tokens", "verify", "grammar"} and call["grammar"] is None
    )


@pytest.mark.parametrize(
    ("option", "name", "text"), [("--grammar", "grammar", GRAMMAR), ("--json-schema", "json_schema", SCHEMA)]
)
@pytest.mark.parametrize("in_file", [False, True])
def test_a_grammar_reaches_the_request(
    llm: FakeLLM, tmp_path: Path, option: str, name: str, text: str, in_file: bool
) -> None:
    file = tmp_path / "grünes.txt"
    file.write_text(text, encoding="utf-8")
    arguments = (f"{option}-file", str(file)) if in_file else (option, text)
    assert run(*arguments).exit_code == 0
    (call,) = llm.calls
    assert call[name] == text
    assert [kind for kind in ("grammar", "json_schema") if call.get(kind) is not None] == [name]


def test_an_empty_schema_is_not_no_schema(llm: FakeLLM) -> None:
    run("--json-schema", "{}")
    assert llm.calls[0]["json_schema"] == "{}"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--grammar", ""), "The grammar has no rule root"),
        (("--grammar", 'root ::= "yes'), "in line 1 a text or character class is not closed"),
        (("--json-schema", "{"), "it is no JSON"),
        (("--json-schema", '{"type": 5}'), "type must be a string or array of strings"),
    ],
)
def test_a_bad_grammar_is_refused_before_anything_is_loaded(
    loaded: list[tuple[Any, dict[str, Any]]], arguments: tuple[str, ...], what: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, loaded) == (1, "", [])
    assert what in result.stderr and len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize(("arguments", "strict"), [((), False), (("--strict",), True)])
def test_strict_reaches_the_engine(
    loaded: list[tuple[Any, dict[str, Any]]], arguments: tuple[str, ...], strict: bool
) -> None:
    assert run("tiny", *arguments).exit_code == 0
    assert run("-m", "a.gguf", "-md", "b.gguf", *arguments).exit_code == 0
    assert [what for what, _ in loaded] == ["tiny", (Path("a.gguf"), Path("b.gguf"))]
    assert [options["strict"] for _, options in loaded] == [strict, strict]


@pytest.mark.usefixtures("llm")
def test_json_shows_what_was_in_effect() -> None:
    import json

    result = run("--json", "--typical", "0.5", "--ignore-eos", "-n", "4")
    sampling = json.loads(result.stdout)["sampling"]
    assert set(sampling) == set(SamplingParams.__dataclass_fields__)
    assert (sampling["typical_p"], sampling["ignore_eos"], sampling["logprobs"]) == (0.5, True, None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--typical 0", "--typical is 0.0."),
        ("--typical 1.5", "--typical is 1.5."),
        ("--typical nan", "--typical is nan."),
        ("--top-nsigma -1", "--top-nsigma is -1.0."),
        ("--min-tokens -1", "--min-tokens is -1."),
        ("--min-tokens 5 -n 4", "--min-tokens is 5. It must be at most -n/--max-tokens, 4."),
        ("--top-p 2", "--top-p is 2.0."),
        ("-s -1", "-s/--seed is -1."),
        ("--temp -1", "--temp is -1.0."),
        ("-c 0", "-c/--ctx-size is 0."),
        ("-t 0", "-t/--threads is 0."),
        ("-ctk foo", "-ctk/--cache-type-k is 'foo'."),
        ("-n 0", "-n/--max-tokens is 0."),
    ],
)
def test_a_value_out_of_range_is_one_sentence_before_anything_is_loaded(
    loaded: list[tuple[Any, dict[str, Any]]], arguments: str, sentence: str
) -> None:
    result = run(*arguments.split())
    assert (result.exit_code, result.stdout, loaded) == (2, "", [])
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"Error: {sentence}") and " It must be " in last


def test_no_argument_of_a_call_is_unknown_to_who_types() -> None:
    """Every number and word that a load or an answer takes has the flag's own name in what is said of it."""
    options = ModelOptions(**dict.fromkeys(ModelOptions.__dataclass_fields__))  # type: ignore[arg-type]
    switches = {"use_mmap", "prepare_draft"}
    taken = {*options.engine(), *SamplingParams.__dataclass_fields__} - switches
    for name in taken - {"logit_bias", "logprobs", "logits_processors"}:
        assert in_flags(f"{name} is 0.").startswith("-"), name
    assert in_flags("threads is 99, and 2 are used.") == "-t/--threads is 99, and 2 are used."
    assert in_flags("seed and temp.") == "seed and temp."


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--verify", "fast"), "'fast' is not one of 'auto', 'block', 'rejection', 'coupled'"),
        (("--typical", "much"), "'much' is not a valid float"),
        (("--min-tokens", "1.5"), "'1.5' is not a valid integer"),
        (("--grammar", GRAMMAR, "--json-schema", SCHEMA), "--grammar and --json-schema both say"),
        (
            ("--json-schema", SCHEMA, "--json-schema-file", "x"),
            "--json-schema and --json-schema-file both say",
        ),
        (("--grammar-file", "no/such.gbnf"), "--grammar-file: 'no/such.gbnf' cannot be read: No such file"),
        (("--json-schema-file", "."), "--json-schema-file: '.' cannot be read"),
        (
            ("--no-draft", "--draft-tokens", "3"),
            "--no-draft drafts nothing, and --draft-tokens 3 asks for drafts",
        ),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_loaded(
    loaded: list[tuple[Any, dict[str, Any]]], arguments: tuple[str, ...], what: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, loaded) == (2, "", [])
    assert what in " ".join(result.stderr.split())


def test_a_grammar_file_that_is_no_text_is_refused(
    loaded: list[tuple[Any, dict[str, Any]]], tmp_path: Path
) -> None:
    file = tmp_path / "grammar.gbnf"
    file.write_bytes(b"root ::= \xff")
    result = run("--grammar-file", str(file))
    assert (result.exit_code, loaded) == (2, [])
    assert "cannot be read: it is not UTF-8 text." in " ".join(result.stderr.split())


def test_the_help_page_says_what_each_promise_costs() -> None:
    page = " ".join(run("--help").stdout.split())
    assert "--verify [auto|block|rejection|coupled]" in page
    for option in (
        "--typical",
        "--top-nsigma",
        "--min-tokens",
        "--ignore-eos",
        "--grammar",
        "--json-schema",
        "--strict",
    ):
        assert option in page
    assert "Bit for bit the same answer" in page
    assert "coupled with a seed" in page


def test_a_conversation_keeps_the_rule_and_the_grammar() -> None:
    from localspec.cli.chat.talk import Chat
    from tests.test_cli_interactive import parsed, reader

    fake = FakeLLM()
    options = parsed("--verify", "coupled", "--grammar", GRAMMAR, "--typical", "0.5")
    Chat(fake, options, quiet=True).run(reader(("say one", "/regen", "say two")))  # type: ignore[arg-type]
    assert len(fake.calls) >= 2
    assert {(call["verify"], call["grammar"], call["params"].typical_p) for call in fake.calls} == {
        ("coupled", GRAMMAR, 0.5)
    }


def test_a_stop_string_that_is_no_utf_8_is_refused(llm: FakeLLM) -> None:
    """Python reads such bytes of the command line as half surrogate pairs."""
    done = run("--stop", "a\udcff")
    assert done.exit_code == 1
    assert "half a surrogate pair (U+DCFF) at position 1" in done.stderr
    assert llm.calls == []
