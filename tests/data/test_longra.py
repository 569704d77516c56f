"""LongRA: the antecedent, the remark, and which instances are kept."""

from dataclasses import replace
from typing import Any

import pytest

from helpers.dataset_records import LONG, LONGRA, SHARED, shared, unchecked
from heta_lens._util.text import Span
from heta_lens.data import datasets
from heta_lens.data.suites import suite


def test_longra_marks_the_antecedent_and_the_remark() -> None:
    (instance,) = datasets.longra_instances([LONGRA])
    assert (instance.id, instance.answer, instance.template) == ("longra-000", " Oslo", "capital")
    assert instance.words("gold") == instance.words("support") == ["Norway"]
    assert instance.words("distractor") == ["(I slept)."]
    assert datasets.without(instance.text, instance.distractor) == "I landed in Norway. I stayed in the capital,"


@pytest.mark.parametrize(
    ("text", "spans", "left"),
    [
        ("(a) b", [(0, 3)], "b"),
        ("b (a)", [(2, 5)], "b"),
        ("b\n(a)\nc", [(2, 5)], "b\nc"),
        ("x(a)y", [(1, 4)], "xy"),
        ("one (a) two (b) three", [(4, 7), (12, 15)], "one two three"),
        ("one", [], "one"),
        ("a. (x). b", [(3, 7), (3, 7)], "a. b"),
        ("a. (x y). b", [(3, 9), (4, 5), (6, 9)], "a. b"),
        ("a. (x y). b", [(3, 9), (4, 5)], "a. b"),
    ],
)
def test_a_distractor_leaves_clean_text(text: str, spans: list[Any], left: str) -> None:
    assert datasets.without(text, [Span(*span) for span in spans]) == left


def test_kept_are_those_that_the_model_answers_with_and_without_the_distractor() -> None:
    (instance,) = datasets.longra_instances([LONGRA])
    short = "I landed in Norway. I stayed in the capital,"

    def kept(answers: dict[str, str]) -> bool:
        return list(datasets.kept([instance], answers.__getitem__)) == [instance]

    assert kept({LONG: " Oslo", short: "Oslo"})
    assert not kept({LONG: " Oslo", short: " a"})
    assert not kept({LONG: " a", short: " Oslo"})
    assert not kept({LONG: " Os", short: " Os"})
    with pytest.raises(ValueError, match="'longra-000' has no answer to compare with the model's"):
        list(datasets.kept([replace(instance, answer=None)], lambda _: ""))


@unchecked
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": None}, "record 0 of LongRA has no target: it has category, text"),
        ({"target": 3}, "record 0 of LongRA: its target is 3, and must be text"),
        ({"antecedent_span": [11, 18]}, "longra-000: antecedent_span says ' Norway', not 'Norway'"),
        ({"distractor_span": [20, 99]}, r"the span \(20, 99\) of distractor is not within"),
    ],
)
def test_a_wrong_record_of_longra_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        list(datasets.longra_instances([LONGRA | change]))


@shared
def test_all_of_longra_is_read() -> None:
    instances = suite("longra", SHARED / "longra" / "longra_reconstructed.jsonl")
    assert len({one.id for one in instances}) == 221 and len({one.template for one in instances}) == 13
    for one in instances:
        (remark,) = one.words("distractor")
        left = datasets.without(one.text, one.distractor)
        assert remark.startswith("(") and remark.endswith(").") and one.answer == " " + (one.answer or "").strip()
        assert not any(dirt in left for dirt in ("  ", "(", ")", " ."))
        assert len(left) == len(one.text) - len(remark) - 1
