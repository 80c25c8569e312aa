"""GBNF: what is read, what is refused, and that the grammar library is given the same language."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import InvalidRequest
from localspec.grammar.chars import LAST, complement, lead_bytes, ranges_of
from localspec.grammar.constraint import constraint_on
from localspec.grammar.lark import lark_of_gbnf, written
from localspec.grammar.lexemes import by_characters, by_lexemes
from localspec.grammar.notation import NO_FORCING
from localspec.grammar.parser import parse_gbnf

from .grammars import byte_table, language, matches, on_grammar
from .mutation import planted

BYTES = byte_table()
END = 256

JSON = r"""
# values nest, so this one cannot be a single regular expression
root   ::= ws value
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (
             member ("," ws member)*   # members
           )? "}" ws
member ::= string ":" ws value
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws     ::= [ \t\n]{0,8}
"""
SUMS = r"""
root  ::= (sum "=" blank number "\n")+
sum   ::= term (sign blank term)*
term  ::= name | number | "(" blank sum ")" blank
name  ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
sign  ::= [-+*/]
blank ::= [ ]*
"""
PROGRAM = r"""
root ::= statement+
statement ::= type? name "=" space expression ";" | "while" space "(" expression ")" block
block ::= "{" statement* "}"
type ::= ("int" | "float") space
name ::= [a-z_] [a-z_0-9]* space?
expression ::= part (("+" | "<" | "<=") part)*
part ::= name | [0-9]+ | "(" expression ")"
space ::= [ \n]+
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n'
MOVES = 'root ::= ([1-9] [0-9]? ". " move " " move "\\n"){1,3}\nmove ::= [NBKQR]? [a-h] [1-8] [+#]? | "O-O" "-O"?\n'
KANA = "root ::= letter+ ([ \\t\\n] letter+)*\nletter ::= [ぁ-ゟ] | [ァ-ヿ] | [一-鿿]\n"

SAMPLES = [
    (
        JSON,
        ['{"a": [1, -2.5e+3, "x\\u00e9é\\n"], "b": {}}', " true", "[]"],
        ['{"a": 01}', "{", "[1,]", '"\x01"'],
    ),
    (SUMS, ["a1 + (b*2)= 7\n", "1=1\nx=22\n"], ["a+=1\n", "1=x\n", ""]),
    (PROGRAM, ["int intx= 3;", "while (a<=b){x= y+1;}", "integer= 4;"], ["int 3= 3;", "while(a)x;", "x=1;"]),
    (LIST, ["- one\n- two 🦜\n", "- -\n"], ["- \n", "one\n", "- one"]),
    (MOVES, ["1. e4 e5\n", "1. Nf3 O-O-O\n23. a1+ h8#\n"], ["0. e4 e5\n", "1. e9 e5\n"]),
    (KANA, ["ひらがな カタカナ\n漢字"], ["abc", "漢  字", "漢字 "]),
    (r'root ::= "\x41\u00e9\U0001F99C" [\]\[\\"-]+ "é"?', ['Aé🦜[]\\"-', "Aé🦜-é"], ["A", "Aé🦜", "Aé🦜a"]),
    ('root ::= "a"{2} "b"{1,} "c"{0,2} .', ["aabx", "aabbbcc\n", "aabccc"], ["ab", "aacx", "aab"]),
    ('root ::= ("x" | "yz")* w\nw ::= "xx"  | w "!"', ["xx", "xxx!", "yzxx!!"], ["x", "yxx", "!"]),
]


def accepts(constraint, text: str) -> bool:
    ids = list(text.encode())
    return constraint.count_legal([], ids) == len(ids) and bool(constraint.allowed(ids)[END])


@pytest.mark.parametrize(("grammar", "right", "wrong"), SAMPLES)
def test_usual_grammars(grammar, right, wrong):
    constraint = on_grammar(grammar, BYTES)
    for text in right:
        assert matches(parse_gbnf(grammar), text) and accepts(constraint, text), text
    for text in wrong:
        assert not matches(parse_gbnf(grammar), text) and not accepts(constraint, text), text


def test_what_the_lexer_reads_in_one_go():
    """Strings and numbers of JSON do, and its masks are fast; a word that a letter may follow cannot."""
    assert written(by_lexemes(parse_gbnf(JSON)), parse_gbnf(JSON)).count("/[") < 10
    assert "(/(?:[a]|[b])/)+" in lark_of_gbnf(AMBIGUOUS[0])[0]
    flat = parse_gbnf(MOVES)
    assert written(by_lexemes(flat), flat).startswith("start: /") and "\n" not in lark_of_gbnf(MOVES)[0][:-1]


@st.composite
def grammars(draw):
    """Three rules over a, b and é that may mention each other."""
    atoms = st.sampled_from(['"a"', '"b"', '"ab"', '"é"', '""', "[ab]", "[^a]", "root", "x", "y"])
    parts = st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(" ".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda options: f"({' | '.join(options)})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,6}", "{2,}"])).map(
                lambda pair: f"({pair[0]}){pair[1]}"
            ),
        ),
        max_leaves=6,
    )
    return "".join(f"{name} ::= {draw(parts)}\n" for name in ("root", "x", "y"))


def differences(grammar: str, table=BYTES) -> list[str]:
    """Texts about which the two forms, with and without lexemes, and the plain reader disagree."""
    try:
        lark_of_gbnf(grammar)
    except InvalidRequest:
        return []
    rules = parse_gbnf(grammar)
    forms = (written(by_lexemes(rules), rules), written(by_characters(rules), rules))
    constraints = [constraint_on(table, [NO_FORCING + form], "grammar") for form in forms]
    alphabet = "abé"
    known = language(grammar, alphabet, 4)
    prefixes = {word[:size].encode() for word in known for size in range(len(word) + 1)}
    prefixes |= {prefix + "é".encode()[:1] for prefix in prefixes if prefix + "é".encode() in prefixes}
    found = []
    for size in range(4):
        for chars in itertools.product(alphabet, repeat=size):
            text = "".join(chars)
            masks = [constraint.allowed(list(text.encode())) for constraint in constraints]
            same = (masks[0] == masks[1]).all() and bool(masks[0][END]) == (text in known)
            complete = all(
                masks[0][following[-1]]
                for following in prefixes
                if following[:-1] == text.encode() and following
            )
            if not (same and complete):
                found.append(text)
    return found


@settings(max_examples=40, deadline=None)
@given(grammars())
def test_the_library_is_given_the_same_language(grammar):
    assert differences(grammar) == []


AMBIGUOUS = [
    'root ::= x y\nx ::= ("a" | "b")+\ny ::= "b" | "(" root ")"',
    'root ::= "a" y | "ab" "b"\ny ::= "b" "a" | "(" root ")"',
    'root ::= x y root | "b"\nx ::= "a"*\ny ::= "a" "b"?',
    'root ::= x root | "é"\nx ::= "a" | "aé" "b"',
]


@pytest.mark.parametrize("grammar", AMBIGUOUS)
def test_the_longest_match_is_not_taken_for_granted(grammar):
    """Where a lexeme could go on, the library would never end it: such grammars lose texts unless taken apart."""
    assert differences(grammar) == []
    with planted(
        "localspec.grammar.lexemes", "_Grouping._in_the_way", "if mine.starts & its.starts:", "if False:"
    ):
        assert differences(grammar) != []


FAULTS = {
    "": "no rule root",
    'x ::= "a"': "no rule root",
    "root": "'::=' is missing",
    "root ::= x": "does not define",
    'root ::= "a" root': "never comes to an end",
    'root ::= "a" | x\nx ::= x': "rule x never comes to an end",
    'root ::= "a': "not closed",
    'root ::= "a"\n\nx ::= [a': "line 3",
    "root ::= [z-a]": "ends before it begins",
    "root ::= []": "holds no character",
    "root ::= [^\\x00-\\U0010FFFF]": "holds no character",
    'root ::= ("a"': "')' is missing",
    'root ::= "a")': "')' cannot stand here",
    'root ::= * "a"': "nothing before it to repeat",
    'root ::= "\\q"': "\\q is no escape",
    'root ::= "\\u12"': "no escape",
    'root ::= "\\uD800"': "code of no character",
    'root ::= "\ud800"': "code of no character",
    'root ::= "\\UFFFFFFFF"': "code of no character",
    'root ::= "a"{3,2}': "ends before it begins",
    'root ::= "a"{,2}': "is written",
    'root ::= "a"{99999999999}': "more than 2000",
    "root ::= <[12]>": "names a token",
    'root ::= "a"\nroot ::= "b"': "a second time",
    "root ::= " + "(" * 5000: "groups stand in each other",
    "root ::= " + '"a" ' * 50_000: "characters",
}


@pytest.mark.parametrize("grammar", list(FAULTS), ids=lambda grammar: repr(grammar[:30]))
def test_what_is_no_grammar_is_refused_with_the_reason(grammar):
    with pytest.raises(InvalidRequest) as caught:
        on_grammar(grammar, BYTES)
    assert FAULTS[grammar] in caught.value.message
    assert caught.value.name == "grammar"
    assert caught.value.message.count("\n") == 0


def test_large_grammars_are_read_or_refused():
    """None of these may take the process along; what is too much for the library has its reason."""
    chain = (
        "root ::= r0\n"
        + "".join(f'r{i} ::= "a" r{i + 1} | "b" root\n' for i in range(2000))
        + 'r2000 ::= "c"'
    )
    double = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60 ::= "c"'
    words = 'root ::= "(" root ")" | ' + " | ".join(f'"word{i}"' for i in range(1500))
    states = 'root ::= ([ab]* "a" [ab]{900} "c"){0,2000}'
    for grammar, start in ((chain, "a"), (double, "c"), (words, "("), (states, "b")):
        assert on_grammar(grammar, BYTES).allowed([])[ord(start)]


def test_sets_of_characters():
    assert ranges_of([(5, 9), (1, 2), (3, 4), (8, 12)]) == ((1, 12),)
    assert complement(complement(((65, 70),))) == ((65, 70),)
    assert complement(()) == ((0, 0xD7FF), (0xE000, LAST))
    for low, high in ((0, 0x7F), (0x41, 0x41), (0x7E, 0x81), (0x80, 0x7FF), (0x700, 0x10000), (0xFFFF, LAST)):
        expected = {chr(code).encode()[0] for code in range(low, high + 1) if not 0xD800 <= code <= 0xDFFF}
        assert lead_bytes(ranges_of([(low, high)])) == sum(1 << byte for byte in expected)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" x root | ";"\nx ::= "b" | "bc" root "c"',
        'root ::= [ab]+ root [b] | ";" | "a" "c"',
        'root ::= "x" | n root n\nn ::= [0-9]+ | "1" "-" "2"',
    ],
)
def test_a_comparison_that_was_given_up_is_not_passed(grammar, monkeypatch):
    """However early the steps are used up: a lexeme that was not compared to the end may be in another's way."""
    rules = parse_gbnf(grammar)
    compared, characters = written(by_lexemes(rules), rules), written(by_characters(rules), rules)
    found = []
    for steps in range(1, 60):
        monkeypatch.setattr("localspec.grammar.lexemes.MOST_STEPS", steps)
        found.append(written(by_lexemes(rules), rules))
    assert found[0] == characters != compared == found[-1]
    assert set(found) == {characters, compared}
