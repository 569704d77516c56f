"""WikiBio: biographies of prose and of tables."""

import random

import pytest

from helpers.dataset_records import PROSE, TABLE, unchecked
from heta_lens._util.text import Span
from heta_lens.data import datasets
from heta_lens.data.datasets import occurrences
from heta_lens.data.instance import SPANS


def test_a_biography_goes_on_after_its_first_sentences() -> None:
    (instance,) = datasets.wikibio_instances([PROSE])
    assert (instance.text, instance.answer) == ("J. Doe (born 3 May 1950) is a pilot.", None)
    assert [getattr(instance, name) for name in SPANS] == [()] * 4
    (longer,) = datasets.wikibio_instances([PROSE], sentences=2)
    assert longer.text.endswith("pilot. She flew in Peru.")


def test_a_table_tells_what_the_text_says_first() -> None:
    (instance,) = datasets.wikibio_instances([TABLE])
    assert instance.text == (
        "name: j. doe\nbirth date: 3 may 1950\nnationality: german\nlanguage: german and dutch\n"
        "j. doe -lrb- born 1950 -rrb- is a"
    )
    assert (instance.answer, instance.template) == (" german", "nationality")
    assert instance.words("support") == ["nationality: german", "language: german and dutch"]
    assert instance.words("gold") == ["german", "german"]
    assert instance.words("distractor") == ["name: j. doe", "birth date: 3 may 1950"]
    assert instance.words("question") == ["j. doe -lrb- born 1950 -rrb- is a"]


def test_of_two_rows_the_text_says_the_longer() -> None:
    table = {"column_header": ["nationality", "trade"], "content": ["german", "german pilot"]}
    (instance,) = datasets.wikibio_instances([TABLE | {"input_text": {"table": table}}])
    assert (instance.answer, instance.words("gold")) == (" german pilot", ["german pilot"])
    assert instance.words("distractor") == ["nationality: german"]


def test_a_text_that_says_nothing_of_its_table_is_left_out() -> None:
    assert [one.id for one in datasets.wikibio_instances([TABLE | {"target_text": "j. doe flies ."}, PROSE])] == [
        "wikibio-00001"
    ]


@unchecked
def first_said(contents: list[str], told: str) -> Span | None:
    """As the docstring of `wikibio.instances` says it, with a search for each row."""
    found = [spans[0] for content in contents if content and (spans := occurrences(content, told)) and spans[0].start]
    return min(found, key=lambda span: (span.start, -span.stop), default=None)


def test_the_first_row_that_is_said_is_found_as_by_a_search_for_each() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        told = "".join(draw.choices("aAbBİſsSK-  .", k=draw.randrange(25)))
        contents = ["".join(draw.choices("abBİs -.", k=draw.randrange(5))) for _ in range(6)]
        assert datasets._first_repeated(contents, told) == first_said(contents, told), (contents, told)


def test_long_tables_are_searched_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def counted(phrase: str, text: str, span: Span | None = None) -> list[Span]:
        searched.append(len(text) if span is None else span.stop - span.start)
        return occurrences(phrase, text, span)

    monkeypatch.setattr(datasets, "occurrences", counted)
    rows = [f"value {row} of it" for row in range(400)]
    table = {"column_header": ["row"] * 400, "content": rows}
    told = "he was born with " + " ".join(reversed(rows))
    (instance,) = datasets.wikibio_instances([{"input_text": {"table": table}, "target_text": told}])
    assert instance.answer == " value 399 of it"
    assert sum(searched) < 5 * len(told)


def test_a_wrong_record_of_wikibio_is_refused() -> None:
    with pytest.raises(ValueError, match="wikibio-00000 has no wiki_bio_text: it has text"):
        list(datasets.wikibio_instances([{"text": "…"}]))
    with pytest.raises(ValueError, match="the table of wikibio-00000 has no content"):
        list(datasets.wikibio_instances([TABLE | {"input_text": {"table": {"column_header": []}}}]))
    with pytest.raises(ValueError, match="sentences=0 must be at least 1"):
        datasets.wikibio_instances([PROSE], sentences=0)
