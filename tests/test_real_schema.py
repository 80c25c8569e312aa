"""JSON schemas on the real pair: every answer parses and satisfies its schema, with and without a draft.

Requantized to Q4_0 with the V cache in BF16, whose rows are the same in passes of any width: ids can then be compared
under a fixed seed. The schemas bound every part, so that an answer ends within the tokens it may have.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

# What a grammar allows does not depend on who computes.
pytestmark = [pytest.mark.real, pytest.mark.parametrize("strict_llm", ["llama"], indirect=True)]


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORD = {"type": "string", "maxLength": 12}
YEAR = {"type": "integer", "minimum": 1000, "maximum": 2100}
CASES = {
    "Name a capital in Europe and its country.": record(city=WORD, country=WORD),
    "When was Ada Lovelace born, and was she a mathematician?": record(
        born=YEAR, mathematician={"type": "boolean"}
    ),
    "List three primary colours.": {"type": "array", "items": WORD, "minItems": 3, "maxItems": 3},
    "How many legs has a spider?": {"type": "integer", "minimum": 0, "maximum": 99},
    "Is Python statically typed? Answer yes, no or partly.": {"enum": ["yes", "no", "partly"]},
    "Describe a point at x = 3, y = 4.": record(x={"type": "number", "maximum": 9}, y={"const": 4}),
    "Give an HTTP status for a missing page.": record(
        code={"enum": [200, 404, 500]}, text={"enum": ["OK", "Not Found"]}
    ),
    "Give a date in July 1969.": {"type": "string", "pattern": "^1969-07-[0-3][0-9]$"},
    "Name an animal, or say null.": {"anyOf": [record(animal=WORD), {"type": "null"}]},
    "Two people and their ages.": {
        "type": "array",
        "items": {"$ref": "#/$defs/person"},
        "minItems": 2,
        "maxItems": 2,
        "$defs": {"person": record(name=WORD, age={"type": "integer", "minimum": 1, "maximum": 99})},
    },
}


@pytest.mark.parametrize("question", list(CASES))
def test_every_answer_satisfies_its_schema_with_and_without_a_draft(strict_llm, question):
    schema = CASES[question]
    messages = [{"role": "user", "content": f"{question} Answer in JSON."}]
    options = {"json_schema": schema, "seed": 7, "max_tokens": 60}
    drafted = strict_llm.generate(messages, **options)
    plain = strict_llm.generate(messages, draft_tokens="off", **options)
    assert drafted.finish_reason == "stop"
    jsonschema.validate(json.loads(drafted.text), schema)
    assert plain.stats.drafted == 0 and drafted.stats.drafted > 0
    assert drafted.ids == plain.ids


def test_a_grammar_on_the_real_vocabulary(strict_llm):
    grammar = 'root ::= "- " line "\\n" "- " line "\\n"\nline ::= [a-zA-Z ]{1,30}'
    answer = strict_llm.generate(
        [{"role": "user", "content": "Name two fruits."}], grammar=grammar, temperature=0, max_tokens=40
    )
    lines = answer.text.splitlines()
    assert len(lines) == 2 and all(
        line.startswith("- ") and line[2:].replace(" ", "").isalpha() for line in lines
    )
    assert answer.finish_reason == "stop"
