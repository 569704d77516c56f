"""Annotations of evidence: how they are joined, and how far they agree."""

from collections.abc import Callable
from dataclasses import replace
from math import isnan

import pytest
from sklearn.metrics import cohen_kappa_score, f1_score, jaccard_score

from helpers.dataset_records import NINA, unchecked
from heta_lens._util.text import Span
from heta_lens.data import recall
from heta_lens.data.curated import FUNCTION_WORDS, agreement, annotated, answer_words, markable_words
from heta_lens.data.datasets import occurrences
from heta_lens.data.instance import Instance


def marking(*phrases: str) -> Callable[[Instance], list[Span]]:
    """An annotator that marks these phrases, where each stands first."""

    def spans(instance: Instance) -> list[Span]:
        found = {phrase: occurrences(phrase, instance.text) for phrase in phrases}
        return [at[0] for at in found.values()]

    return spans


def test_annotations_are_joined_word_by_word() -> None:
    annotators = [marking("Nina", "the drawer."), marking("drawer", "key in"), marking("Nina", "key")]
    first = [replace(NINA, support=(Span(0, 31),))]
    gold = {agree: [one.words("gold") for one in annotated(first, annotators[:2], agree)] for agree in ("union",)}
    assert gold["union"] == [["Nina", "key", "in", "the", "drawer"]]
    assert next(annotated(first, annotators[:2])).words("gold") == ["drawer"]
    assert next(annotated(first, annotators, "majority")).words("gold") == ["Nina", "key", "drawer"]
    assert next(annotated(first, annotators)).words("gold") == []
    # Half is no majority.
    assert next(annotated(first, annotators[:2], "majority")).words("gold") == ["drawer"]


@unchecked
def test_wrong_annotations_are_refused() -> None:
    with pytest.raises(ValueError, match="annotators is empty: give one function or more"):
        annotated([NINA], [])
    with pytest.raises(ValueError, match="agree='both' is not one of 'intersection', 'majority', 'union'"):
        annotated([NINA], [answer_words], "both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(32, 36\), 'Karl', marks no word in the support of instance 'nina'"):
        list(annotated([NINA], [marking("Karl")]))


def test_without_a_support_every_word_can_be_marked() -> None:
    bare = replace(NINA, support=(), gold=())
    assert len(markable_words(bare)) == 13 and len(markable_words(NINA)) == 7
    assert next(annotated([bare], [marking("Karl")])).words("gold") == ["Karl"]


def test_answer_words_are_those_of_answer_and_question() -> None:
    assert next(annotated([NINA], [answer_words])).words("gold") == ["key", "drawer"]
    capitals = replace(NINA, answer=" Drawer", choices=(), question=())
    assert next(annotated([capitals], [answer_words])).words("gold") == ["drawer"]
    small = replace(NINA, answer=" nina", choices=(), question=())
    assert next(annotated([small], [answer_words])).words("gold") == ["Nina"]
    function = replace(NINA, answer=" in the", choices=(), question=())
    assert {"in", "the"} <= FUNCTION_WORDS
    assert next(annotated([function], [answer_words])).words("gold") == ["the", "in", "the"]
    assert next(annotated([replace(function, answer=None)], [answer_words])).words("gold") == []


def test_agreement_is_that_of_scikit_learn_over_all_words() -> None:
    told = list(recall.instances(count=6, hops=2))
    found = list(annotated(told, [answer_words]))
    left, right = ([word in one.gold for one in several for word in markable_words(one)] for several in (found, told))
    scores = agreement(found, told)
    assert scores.words == len(left) == sum(len(markable_words(one)) for one in told)
    assert scores.f1 == pytest.approx(f1_score(left, right)) and 0 < scores.f1 < 1
    assert scores.kappa == pytest.approx(cohen_kappa_score(left, right))
    assert scores.jaccard == pytest.approx(jaccard_score(left, right))


def test_agreement_by_hand() -> None:
    """Of seven words one annotator marks two, the other three, and two are the same."""
    one, two = replace(NINA, gold=(Span(0, 4), Span(24, 30))), replace(NINA, gold=(Span(0, 8), Span(24, 31)))
    found = agreement([one], [two])
    chance = (2 * 3 + 5 * 4) / 49
    assert found == pytest.approx((4 / 5, (6 / 7 - chance) / (1 - chance), 2 / 3, 7))
    assert agreement([one], [one]) == (1, 1, 1, 7)


def test_agreement_on_nothing_is_undefined() -> None:
    nothing = replace(NINA, gold=())
    assert [isnan(value) for value in agreement([nothing], [nothing])] == [True, True, True, False]
    whole = replace(NINA, gold=(Span(0, 31),))
    assert isnan(agreement([whole], [whole]).kappa) and agreement([whole], [whole]).f1 == 1
    assert agreement([nothing], [whole])[:3] == (0, 0, 0)
    with pytest.raises(ValueError, match="there is no word that both could mark"):
        agreement([], [])
    with pytest.raises(ValueError, match="1 instances and 0 are not two annotations of the same"):
        agreement([NINA], [])
    with pytest.raises(ValueError, match="'nina' and 'b' are not the same text and support"):
        agreement([NINA], [replace(NINA, id="b", support=(Span(0, 10),), gold=())])
