"""A grammar or a JSON schema in the library's own notation, and what the library says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from localspec.checks import shown
from localspec.errors import InvalidRequest
from localspec.grammar.lark import lark_of_gbnf
from localspec.grammar.matching import first_sentence
from localspec.grammar.schema_places import without_unknown_formats
from localspec.system.deep_stack import with_deep_stack

if TYPE_CHECKING:
    from llguidance import LLParserLimits

LONGEST_SCHEMA = 1_000_000
"""Characters."""
WHITESPACE = r" |\r?\n[ \t]{0,100}"
"""Between the parts of JSON: a space or a new line with its indentation. Endless space would never fail, and a model
that has begun with it may not stop."""
MOST_ITEMS = 2_000_000
"""Steps of the parser for one mask, a fraction of a second; the library's own limit, a fortieth of it, is too low for
words of a large vocabulary read character by character."""
OPTIONS = "x-guidance"
DEFAULTS = {"whitespace_pattern": WHITESPACE, "json_allow_general_unicode_escapes": True}
MOST_LEXER_STATES = 50_000
"""Each takes one or two kilobytes; the library's own limit is five times as many."""

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Allow every token that fits. Where the text is certain, the library would otherwise allow only the tokens that it
would use itself, and the answer would depend on how it cuts text into tokens."""


def limits() -> LLParserLimits:
    """How much work the library may do."""
    from llguidance import LLParserLimits

    return LLParserLimits(step_max_items=MOST_ITEMS, max_lexer_states=MOST_LEXER_STATES, verbose_errors=False)


def notations_of_grammar(grammar: object) -> list[str]:
    """A GBNF text in the library's notation, in ways that mean the same. Raises `InvalidRequest`."""
    if not isinstance(grammar, str):
        raise InvalidRequest(f"grammar is {shown(grammar)}.", "It must be a text in GBNF.", name="grammar")
    return [NO_FORCING + notation for notation in lark_of_gbnf(grammar)]


def notations_of_schema(schema: object) -> list[str]:
    """A JSON schema in the library's notation. Raises `InvalidRequest`."""
    return [f"{NO_FORCING}start: %json {_schema_text(schema)}\n"]


def _schema_text(schema: object) -> str:
    """The schema, a JSON object, as text. Raises `InvalidRequest`."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        if value is False:
            raise InvalidRequest("json_schema is false.", "No JSON satisfies that.", name="json_schema")
        value = {} if value is True else value
        if not isinstance(value, Mapping):
            raise InvalidRequest(
                f"json_schema is {shown(schema)}.",
                "It must be an object, or true for any JSON.",
                name="json_schema",
            )
        # Under this key the library looks for options; what the caller has put there takes precedence.
        options = DEFAULTS | dict(value.get(OPTIONS, {}))
        text = json.dumps({**without_unknown_formats(value), OPTIONS: options}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise unusable("json_schema", f"it is no JSON ({first_sentence(str(error))})") from None
    if len(text) > LONGEST_SCHEMA:
        raise InvalidRequest(
            f"json_schema has {len(text)} characters.",
            f"At most {LONGEST_SCHEMA} are read.",
            name="json_schema",
        )
    return text


def fault_of(notation: str) -> str:
    """Why the library cannot use it, in a sentence, or ""; also "" where the library is not there."""
    return with_deep_stack(partial(_fault, notation), len(notation))


def _fault(notation: str) -> str:
    try:
        from llguidance import LLMatcher
    except ImportError:  # `token_constraint` says it in full
        return ""
    reason = str(LLMatcher.validate_grammar(notation, limits=limits()))
    return first_sentence(reason) if reason else ""


def unusable(field: str, reason: str) -> InvalidRequest:
    """The refusal of a grammar or schema. reason: without a full stop."""
    return InvalidRequest(f"The {field} cannot be used: {reason}.", "Correct or simplify it.", name=field)
