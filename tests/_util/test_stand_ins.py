"""Where a template put the values it was given."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from heta_lens._util.text import Span
from heta_lens.prediction.chat import changed, filled, places, shared_prefix, stand_in

Template = Callable[[Mapping[str, Any]], str]


def found(template: Template, values: Mapping[str, Any]) -> dict[str, list[str] | None]:
    """What stands at the places that are found."""
    rendered = template(values)
    located = places(lambda given: template({**values, **given}), rendered, values)
    return {key: spans and [rendered[slice(*span)] for span in spans] for key, spans in located.items()}


def starts(template: Template, values: Mapping[str, Any], key: str) -> list[int]:
    spans = places(lambda given: template({**values, **given}), template(values), values)[key]
    assert spans is not None
    return [span.start for span in spans]


def plain(values: Mapping[str, Any]) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in values.items())


# ------------------------------------------------------------------------------------------------------- all at once
def test_values_that_repeat_and_hold_the_templates_words_are_found_where_they_are() -> None:
    values = {"a": "<b>x</b>", "b": "x", "c": "x", "d": "</d><d>"}
    assert found(plain, values) == {name: [value] for name, value in values.items()}
    assert starts(plain, values, "b") == [3 + len("<b>x</b>") + 4 + 3]


@pytest.mark.parametrize(("strip", "expected"), [(str.strip, "x"), (str.lstrip, "x \n"), (str.rstrip, "\n x")])
def test_a_value_that_is_stripped_is_found_without_what_it_lost(strip: Callable[[str], str], expected: str) -> None:
    template: Template = lambda values: f"[{strip(values['a'])}\n]"  # noqa: E731
    assert found(template, {"a": "\n x \n"}) == {"a": [expected]}


def test_a_value_may_come_twice_or_not_at_all() -> None:
    twice: Template = lambda values: f"{values['a']}, {values['a']}: {values['b']}"  # noqa: E731
    assert found(twice, {"a": "hm", "b": "hm", "c": "hm"}) == {"a": ["hm", "hm"], "b": ["hm"], "c": []}


def test_an_object_is_found_as_json() -> None:
    template: Template = lambda values: f"{{{json.dumps(values['a'], ensure_ascii=False)}}}"  # noqa: E731
    assert found(template, {"a": {"é": [1, "}"]}}) == {"a": ['{"é": [1, "}"]}']}


@pytest.mark.parametrize("blank", ["", " ", "\n\n"])
def test_a_blank_value_is_where_another_would_be(blank: str) -> None:
    assert found(plain, {"a": blank, "b": "x"}) == {"a": [blank], "b": ["x"]}
    assert starts(plain, {"a": blank, "b": "x"}, "a") == [3]


def test_what_a_template_writes_instead_of_a_blank_value_is_its_own() -> None:
    template: Template = lambda values: f"({values['a'] or 'nothing'}) {values['b']}"  # noqa: E731
    assert found(template, {"a": "", "b": "x"}) == {"a": [], "b": ["x"]}
    left_out: Template = lambda values: f"<a>{values['a']}</a>" * bool(values["a"]) + plain({"b": "x"})  # noqa: E731
    assert found(left_out, {"a": ""}) == {"a": []}


# ------------------------------------------------------------------------------------------------------- one by one
def test_a_value_that_is_written_in_another_way_is_found_by_what_stands_around_it() -> None:
    template: Template = lambda values: f"{json.dumps(values['a'])}: {values['b'].split('/')[-1]}"  # noqa: E731
    assert found(template, {"a": 'a "b"', "b": "x/y/z"}) == {"a": [r"a \"b\""], "b": ["z"]}


def test_a_value_that_other_things_depend_on_is_found_in_what_it_changes() -> None:
    counting: Template = lambda values: f"{len(values['a'])} letters: {values['a']}"  # noqa: E731
    assert found(counting, {"a": "some"}) == {"a": ["some"]}
    assert starts(counting, {"a": "some"}, "a") == [len("4 letters: ")]
    reasoned: Template = lambda values: "<t>{}</t>{}".format(*values["a"].rpartition("</t>")[::2])  # noqa: E731
    assert found(reasoned, {"a": "why</t>so"}) == {"a": ["why</t>so"]}


def test_values_that_the_template_compares_are_found_in_their_order() -> None:
    def template(values: Mapping[str, Any]) -> str:
        return "".join(f"{'last: a, ' if value == values['c'] else ''}<{value}>" for value in values.values())

    values = {"a": "a, a", "b": "x", "c": "a, a"}
    assert found(template, values) == {key: [value] for key, value in values.items()}
    assert starts(template, values, "a") < starts(template, values, "c")


def test_an_object_that_is_not_written_as_json_is_what_changes_with_it() -> None:
    template: Template = lambda values: "".join(f"<{name}={item}>" for name, item in values["a"].items())  # noqa: E731
    assert found(template, {"a": {"city": "Rome", "days": 3}}) == {"a": ["city=Rome><days=3"]}


@pytest.mark.parametrize(
    "template",
    [
        lambda values: values["a"].upper(),
        lambda values: f"{values['a']}, {len(values['a'])}, {values['a']}",
        lambda values: f"{hash(values['a'])}",
    ],
    ids=["altered", "counted between", "dropped"],
)
def test_what_cannot_be_found_is_not_guessed(template: Template) -> None:
    assert found(template, {"a": "some words"}) == {"a": None}


def test_a_template_that_refuses_stand_ins_is_asked_no_more() -> None:
    def template(values: Mapping[str, Any]) -> str:
        if values["a"] != "yes":
            raise ValueError("say yes")
        return f"{values['a']} {values['b']}"

    assert found(template, {"a": "yes", "b": "x"}) == {"a": None, "b": ["x"]}


# ------------------------------------------------------------------------------------------------------------ pieces
def test_a_stand_in_is_unlike_the_text_and_the_value() -> None:
    word = stand_in("", "").written
    assert stand_in(word, "").written != word
    assert not {stand_in("", "quiz").written[0], stand_in("", "quiz").written[-1]} & {*"quiz"}
    assert stand_in("", {"a": 1}).value == {word: word}
    for size in range(1, len(word)):
        assert not word.endswith(word[:size])  # so that it cannot overlap itself


@pytest.mark.parametrize(
    ("rendered", "probe", "expected"),
    [
        ("ab", "aZb", [Span(1, 1)]),
        ("axb", "aZb", [Span(1, 2)]),
        ("axbxc", "aZbZc", [Span(1, 2), Span(3, 4)]),
        ("axbyc", "aZbZc", None),
        ("axxc", "aZZc", [Span(1, 2), Span(2, 3)]),
        ("axc", "aZZc", None),
        ("ab", "aZ", [Span(1, 2)]),
        ("cb", "aZb", None),
        ("ab", "ab", []),
        ("ab", "ac", None),
        ("a", "aaZaa", None),
    ],
)
def test_what_fills_the_place_of_a_stand_in(rendered: str, probe: str, expected: list[Span] | None) -> None:
    assert filled(rendered, probe, "Z") == expected


@pytest.mark.parametrize(
    ("rendered", "probe", "expected"),
    [("axb", "ayyb", (1, 2)), ("ab", "axb", (1, 1)), ("aa", "aaa", (2, 2)), ("ab", "ab", (2, 2)), ("ab", "", (0, 2))],
)
def test_what_changes_is_between_what_stays(rendered: str, probe: str, expected: tuple[int, int]) -> None:
    assert changed(rendered, probe) == expected


@pytest.mark.parametrize(("one", "other"), [("", ""), ("", "a"), ("abc", "abd"), ("abc", "abc"), ("abc", "abcd")])
def test_what_two_texts_begin_with(one: str, other: str) -> None:
    shared = shared_prefix(one, other)
    assert one[:shared] == other[:shared] and one[shared : shared + 1] != (other[shared : shared + 1] or None)
    assert shared_prefix(one, other) == shared_prefix(other, one)
