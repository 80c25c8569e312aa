"""What of a JSON schema cannot be enforced: the place is named, and the rest still holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import InvalidRequest
from localspec.grammar.constraint import check_constraint
from localspec.grammar.notation import fault_of, notations_of_schema
from localspec.grammar.schema_faults import MOST_FAULTS, enforceable, first_fault
from localspec.grammar.schema_places import FORMATS, path_of, without_unknown_formats

AHEAD = {"type": "string", "pattern": "(?=a)b"}
TEXT = {"type": "string"}


def properties(**inner: Any) -> dict[str, Any]:
    return {"type": "object", "properties": inner}


@pytest.mark.parametrize(
    ("schema", "paths", "kept"),
    [
        (properties(x=TEXT), [], properties(x=TEXT)),
        (properties(x=AHEAD, y=TEXT), ["properties.x.pattern"], properties(x=TEXT, y=TEXT)),
        ({"anyOf": [TEXT, AHEAD]}, ["anyOf[1].pattern"], {"anyOf": [TEXT, TEXT]}),
        ({"type": "array", "items": AHEAD}, ["items.pattern"], {"type": "array", "items": TEXT}),
        ({"prefixItems": [AHEAD]}, ["prefixItems[0].pattern"], {"prefixItems": [TEXT]}),
        (
            {"type": "object", "additionalProperties": AHEAD},
            ["additionalProperties.pattern"],
            {"type": "object", "additionalProperties": TEXT},
        ),
        (
            {"$defs": {"b": AHEAD, "a": AHEAD}, **properties(x={"$ref": "#/$defs/a"})},
            ["$defs.a.pattern"],
            {"$defs": {"b": AHEAD, "a": TEXT}, **properties(x={"$ref": "#/$defs/a"})},
        ),
        (
            properties(kids={"type": "array", "items": {"$ref": "#"}}, x=AHEAD),
            ["properties.x.pattern"],
            properties(kids={"type": "array", "items": {"$ref": "#"}}, x=TEXT),
        ),
        (properties(pattern=AHEAD), ["properties.pattern.pattern"], properties(pattern=TEXT)),
        (properties(**{"a b": AHEAD}), ['properties["a b"].pattern'], properties(**{"a b": TEXT})),
        (properties(**{"a/b~": AHEAD}), ['properties["a/b~"].pattern'], properties(**{"a/b~": TEXT})),
        (properties(x={"not": TEXT}), ["properties.x.not"], properties(x={})),
        (properties(x={"$ref": "#/no"}), ["properties.x.$ref"], properties(x={})),
        (properties(x={"$ref": "https://a.b/c"}), ["properties.x.$ref"], properties(x={})),
        (properties(x={"type": "wrong"}), ["properties.x.type"], properties(x={})),
        (properties(x={"oneOf": [TEXT, {**TEXT, "minLength": 2}]}), ["properties.x.oneOf"],
         properties(x={"anyOf": [TEXT, {**TEXT, "minLength": 2}]})),
        ({"type": "object", "patternProperties": {"(?=a)": {}}}, ["patternProperties"], {"type": "object"}),
        ({**properties(a=False), "required": ["a"]}, ["required"], properties(a=False)),
        (
            properties(x=AHEAD, y={"type": "array", "uniqueItems": True}),
            ["properties.x.pattern", "properties.y.uniqueItems"],
            properties(x=TEXT, y={"type": "array"}),
        ),
        (properties(**{f"p{at}": AHEAD for at in range(MOST_FAULTS + 1)}), [""], {}),
        (properties(x={"const": float("nan")}), ["properties.x.const"], properties(x={})),
    ],
)  # fmt: skip
def test_faults_are_named_and_the_rest_is_kept(schema, paths, kept):
    found, faults = enforceable(schema)
    assert sorted(fault.path for fault in faults) == paths
    assert all(fault.reason for fault in faults)
    assert found == kept
    assert fault_of(notations_of_schema(found)[0]) == ""


def test_a_schema_that_is_nested_too_deeply_is_given_up():
    schema: Any = AHEAD
    for _ in range(3000):
        schema = {"anyOf": [schema]}
    kept, faults = enforceable(schema)
    assert kept == {}
    assert [fault.place for fault in faults] == [()]


def test_a_large_schema_is_searched_for_a_bounded_time():
    schema = properties(**{f"p{at}": {**TEXT, "description": "x" * 5000} for at in range(150)}, x=AHEAD)
    kept, faults = enforceable(schema)
    assert kept == {}
    assert [fault.place for fault in faults] == [()], "nothing is named that was not looked at"


@pytest.mark.parametrize("as_text", [False, True])
def test_the_place_is_in_the_refusal(as_text):
    schema: Any = '{"properties": {"x": {"pattern": "(?=a)"}}}' if as_text else properties(x=AHEAD)
    with pytest.raises(
        InvalidRequest, match=r"The json_schema cannot be used: properties\.x\.pattern: regex"
    ):
        check_constraint(json_schema=schema)


def test_what_is_no_schema_has_no_place():
    assert first_fault("{") is None
    assert first_fault([]) is None
    assert first_fault({}) is None


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_that_is_kept_can_be_enforced(kind):
    assert fault_of(notations_of_schema({"type": "string", "format": kind})[0]) == ""
    assert without_unknown_formats({"format": kind}) == {"format": kind}


@pytest.mark.parametrize("kind", ["password", "int64", "date_time", "", 3, None, ["date"]])
def test_other_formats_are_annotations_wherever_a_schema_stands(kind):
    schema = {"type": "string", "format": kind}
    for place in (
        schema,
        properties(x=schema),
        {"anyOf": [{"items": schema}]},
        {"$defs": {"a": schema}, "$ref": "#/$defs/a"},
    ):
        assert fault_of(notations_of_schema(place)[0]) == ""
    assert without_unknown_formats({"prefixItems": [schema], "not": schema}) == {
        "prefixItems": [TEXT],
        "not": TEXT,
    }


def test_what_only_looks_like_a_format_stays():
    schema = {
        "properties": {"format": {"const": {"format": "a"}}},
        "enum": [{"format": "a"}],
        "default": {"format": "a"},
        "x-own": {"format": "a"},
    }
    assert without_unknown_formats(schema) == schema


def test_paths_read_as_one_writes_them():
    assert path_of(("properties", "a", "anyOf", 0, "$ref")) == "properties.a.anyOf[0].$ref"
    assert path_of(("a b", "", 'c"')) == '["a b"][""]["c\\""]'
    assert path_of(()) == ""


PARTS = st.sampled_from(
    [
        TEXT,
        AHEAD,
        {"type": "integer"},
        {"not": {}},
        {"$ref": "#"},
        {"$ref": "#/no"},
        {"type": "string", "format": "a"},
    ]
)
SCHEMAS = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("ab."), inner, max_size=3).map(lambda given: properties(**given)),
        st.lists(inner, min_size=1, max_size=3).map(lambda given: {"anyOf": given}),
        inner.map(lambda given: {"type": "array", "items": given}),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(SCHEMAS)
def test_what_is_kept_can_always_be_enforced(schema):
    kept, faults = enforceable(schema)
    assert fault_of(notations_of_schema(kept)[0]) == ""
    assert (kept == schema) == (not faults)
