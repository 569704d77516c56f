"""The curated set: an irrelevant story, a passage that tells the answer, and a question about it.

Both the paper's released instances, read from their JSON, and new ones, made from NarrativeQA and SciQ as the paper
describes.
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from heta_lens._util.files import brief
from heta_lens._util.options import check_at_least, check_choice
from heta_lens._util.python import extra
from heta_lens._util.text import Span, tokens_in
from heta_lens.data.datasets import (
    Piece,
    composed,
    each,
    listed_texts,
    needed,
    occurrences,
    one_line,
    place_of,
    split_sentences,
    text_or_nothing,
    texts,
    words_within,
)
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Draw

# ------------------------------------------------------------------------------------------------- annotation protocol
# Evidence annotation: which words of the support tell the answer, and how far annotators agree.
#
# An annotator is any function from an instance to spans of characters. Words are compared, so that it does not matter
# whether one marks the full stop too, and nothing depends on a tokenizer.


Annotator: TypeAlias = Callable[[Instance], Collection[Span]]
Agree: TypeAlias = Literal["intersection", "majority", "union"]

# Words that say how a sentence is built, not what it is about; longer lists also hold nouns that answer questions.
_FUNCTION = """
    a about after all also an and another any are as at be because been before being both but by can could did do
    does doing during each either every few for from had has have having he her hers him his how i if in into is it its
    itself just may me might more most must my no nor not of off on once one only or other our out over own same she
    should so some such than that the their them then there these they this those through to too under until up upon us
    very was we were what when where whether which while who whom whose why will with would you your
    question answer
"""
FUNCTION_WORDS = frozenset(_FUNCTION.split())


class Agreement(NamedTuple):
    f1: float
    kappa: float
    """Cohen's: the agreement beyond chance."""
    jaccard: float
    words: int
    """The number of words compared."""


def annotated(
    instances: Iterable[Instance], annotators: Sequence[Annotator], agree: Agree = "intersection"
) -> Iterator[Instance]:
    """The instances, with gold words: those that all annotators mark, more than half of them, or any."""
    check_choice("agree", agree, get_args(Agree))
    if not annotators:
        raise ValueError("annotators is empty: give one function or more, such as answer_words")
    least = {"intersection": len(annotators), "majority": len(annotators) // 2 + 1, "union": 1}[agree]
    return (_annotated(instance, annotators, least) for instance in instances)


def _annotated(instance: Instance, annotators: Sequence[Annotator], least: int) -> Instance:
    votes = [_marked(instance, annotator(instance)) for annotator in annotators]
    gold = [word for word in markable_words(instance) if sum(word in marked for marked in votes) >= least]
    return replace(instance, gold=tuple(gold))


def markable_words(instance: Instance) -> list[Span]:
    """The words that can be marked: those of the support, or of the whole text where the support is unknown."""
    return words_within(instance.text, instance.support or [Span(0, len(instance.text))])


def _marked(instance: Instance, spans: Iterable[Span]) -> set[Span]:
    """The words with a character in one of the spans; a span that has none of the words is refused."""
    words, marked = markable_words(instance), set()
    for span in spans:
        touched = tokens_in(instance.text, words, Span(*span))
        if not touched:
            where = "support" if instance.support else "text"
            text = instance.text[slice(*span)]
            raise ValueError(f"{tuple(span)}, {text!r}, marks no word in the {where} of instance {instance.id!r}")
        marked |= {words[at] for at in touched}
    return marked


def agreement(first: Iterable[Instance], second: Iterable[Instance]) -> Agreement:
    """The agreement of two annotations of the same instances, over all their words together.

    NaN where it is undefined: F1 and Jaccard where nobody marks a word, kappa where all words are marked the same way.
    """
    ours: list[bool] = []
    theirs: list[bool] = []
    first, second = list(first), list(second)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} instances and {len(second)} are not two annotations of the same")
    for left, right in zip(first, second, strict=True):
        if (left.text, left.support) != (right.text, right.support):
            raise ValueError(f"{left.id!r} and {right.id!r} are not the same text and support with other gold")
        marked, other = _marked(left, left.gold), _marked(right, right.gold)
        ours += [word in marked for word in markable_words(left)]
        theirs += [word in other for word in markable_words(right)]
    if not ours:
        raise ValueError("there is no word that both could mark")
    both, either = sum(map(min, ours, theirs)), sum(map(max, ours, theirs))
    kappa = nan
    if len({*ours, *theirs}) == 2:
        kappa = float(extra("sklearn.metrics", "the agreement of annotators").cohen_kappa_score(ours, theirs))
    # F1 is 2 both / (first + second), and first + second is both + either.
    return Agreement(2 * both / (both + either), kappa, both / either, len(ours)) if either else _none(len(ours))


def _none(words: int) -> Agreement:
    return Agreement(nan, nan, nan, words)


def answer_words(instance: Instance) -> list[Span]:
    """The simplest annotator: words of the support that are in the answer or the question, except function words.

    An answer of nothing but function words is marked nevertheless.
    """
    in_question = {word for question in instance.words("question") for word in _forms(question)} - FUNCTION_WORDS
    answer = set(_forms(instance.answer or ""))
    wanted = in_question | (answer - FUNCTION_WORDS or answer)
    return [word for word in markable_words(instance) if instance.text[slice(*word)].casefold() in wanted]


def _forms(text: str) -> list[str]:
    return [text[slice(*word)].casefold() for word in words_within(text, [Span(0, len(text))])]


Order: TypeAlias = Literal["narrative_first", "science_first", "both"]
NARRATIVES, QUESTIONS = "deepmind/narrativeqa", "allenai/sciq"

RELEASED = ("id", "sciq_id", "input_text", "narrative_segment", "sciq_support_segment", "question", "answer")
REFERS_BACK = re.compile(r"(?:He|She|It|They|His|Her|Hers|Its|Their|This|That|These|Those|Then|There|However)\b")
FEWEST_WORDS = 5


# ---------------------------------------------------------------------------------------------------------- released
def released(
    records: Iterable[Mapping[str, Any]],
    *,
    separator: str = " ",
    cue: str | None = "Answer:",
    repeated: bool = False,
) -> list[Instance]:
    """The paper's own instances.

    Args:
        records: the ``examples`` of its JSON.
        separator: what stands between the segments; ``"<s>"``, as in the release, is three characters of text.
        cue: what the text ends with; None ends it with the question.
        repeated: also instances that repeat another in everything but the id, as nineteen of twenty in the release's
            file of 2,000 do.
    """
    instances = [*each(records, lambda number, record: _released(number, record, separator, cue))]
    if repeated:
        return instances
    once = _once(instances)
    if len(once) < len(instances):
        warnings.warn(
            f"{len(instances) - len(once)} of {len(instances)} instances repeat another and are left out: "
            "give repeated=True to keep them",
            stacklevel=2,
        )
    return once


def _once(instances: Sequence[Instance]) -> list[Instance]:
    """The first of those that differ in nothing but the id."""
    first: dict[Instance, Instance] = {}
    for instance in instances:
        first.setdefault(replace(instance, id="-"), instance)
    return list(first.values())


def _released(number: int, record: Mapping[str, Any], separator: str, cue: str | None) -> Instance:
    what = place_of(record, f"record {number} of the curated data")
    id, template, text, narrative, support, question, answer = texts(record, RELEASED, what)
    at = {segment: text.find(segment) for segment in (narrative, support, question)}
    for segment, start in at.items():
        if start < 0:
            raise ValueError(f"{what} ({id}): its input_text does not hold the segment {brief(segment)}")
    segments = [Piece(narrative, "distractor"), Piece(support, "support")]
    order = sorted(segments, key=lambda piece: at[piece.text])  # as they really stand in it
    # Instances of one science question share support, gold and answer, and only the story differs.
    instance = _with_question(id, order, question, answer, separator, cue, template=template)
    gold = [span for word in listed_texts(record, "important_words", what) for span in _standing(instance, word)]
    return replace(instance, gold=tuple(gold))


def _standing(instance: Instance, word: str) -> list[Span]:
    spans = [span for support in instance.support for span in occurrences(word, instance.text, support)]
    if not spans:
        raise ValueError(f"{instance.id}: the important word {brief(word)} is not a word of its support")
    return spans


def _with_question(
    id: str, segments: Sequence[Piece], question: str, answer: str, separator: str, cue: str | None, **known: Any
) -> Instance:
    """The segments, followed by the question."""
    if not separator:
        raise ValueError("separator='' would run the segments together: give ' ', or '<s>'")
    between = Piece(f" {separator.strip()} " if separator.strip() else separator)
    asking = Piece(" ".join(["Question:", question, *([cue] if cue else [])]), "question")
    pieces = [piece for segment in segments for piece in (segment, between)]
    return composed(id, [*pieces, asking], " " + answer.strip(), **known)


# -------------------------------------------------------------------------------------------------------------- made
def pairs(
    narratives: Iterable[Mapping[str, Any]],
    questions: Iterable[Mapping[str, Any]],
    *,
    order: Order = "narrative_first",
    separator: str = " ",
    cue: str | None = "Answer:",
    sentences: int = 1,
    annotators: Sequence[Annotator] = (answer_words,),
    agree: Agree = "intersection",
    seed: int = 0,
) -> Iterator[Instance]:
    """An instance for every usable SciQ question (two with ``order="both"``), with a story drawn for it.

    Args:
        narratives: records of NarrativeQA, of which only the summaries are read.
        questions: records of SciQ.
        order: whether the story or the passage comes first.
        separator: what stands between the segments.
        cue: what the text ends with; None ends it with the question.
        sentences: how many of a summary's first sentences make a story.
        annotators: functions that mark the words of the passage that tell the answer.
        agree: how the annotators' marks are joined.
        seed: which story goes with which question.
    """
    check_choice("order", order, get_args(Order))
    check_at_least("sentences", sentences, 1, whole=True)
    narratives = [*narratives]
    stories = _stories(narratives, sentences)
    if not stories:
        place = f" ({place_of(narratives[0], 'the first record')} and what follows)" if narratives else ""
        raise ValueError(
            f"narratives hold no summary that begins with whole sentences that refer to nothing before{place}"
        )
    orders = get_args(Order)[:2] if order == "both" else (order,)
    made = _paired(stories, questions, orders, separator, cue, Draw(f"curated {seed}"))
    return annotated(made, annotators, agree)


def _paired(
    stories: Sequence[str],
    questions: Iterable[Mapping[str, Any]],
    orders: Sequence[str],
    separator: str,
    cue: str | None,
    draw: Draw,
) -> Iterator[Instance]:
    for number, (question, answer, support, choices) in enumerate(each(questions, _question)):
        if not usable(question, answer, support):
            continue
        at = draw.below(len(stories))
        # The passage is to be the only one that holds the answer.
        fitting = (story for story in (*stories[at:], *stories[:at]) if not occurrences(answer, story))
        if (story := next(fitting, None)) is None:
            continue
        segments = [Piece(story, "distractor"), Piece(support, "support")]
        for order in orders:
            yield _with_question(
                f"curated-{number:05d}-{order}",
                segments if order == "narrative_first" else segments[::-1],
                question,
                answer,
                separator,
                cue,
                template=f"sciq-{number:05d}",
                choices=choices,
            )


def _question(number: int, record: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    """Of a record of SciQ: the question, the answer, the passage that tells it, and the choices."""
    what = place_of(record, f"record {number} of SciQ")
    question, answer = map(one_line, texts(record, ("question", "correct_answer"), what))
    return question, answer, one_line(text_or_nothing(record, "support", what)), _choices(record, answer, what)


def usable(question: str, answer: str, support: str) -> bool:
    """Whether the passage, and nothing else, tells the answer.

    The paper requires the answer in the passage verbatim, because nothing could be marked otherwise. If the question
    itself names the answer, the passage is not what tells it.
    """
    return bool(answer and occurrences(answer, support)) and not occurrences(answer, question)


def _choices(record: Mapping[str, Any], answer: str, what: str) -> tuple[str, ...]:
    """In alphabetical order, so that the order gives nothing away."""
    others = [text_or_nothing(record, f"distractor{number}", what) for number in (1, 2, 3)]
    wrong = {one_line(other) for other in others if other.strip()}
    return tuple(" " + choice for choice in sorted({answer, *wrong})) if wrong else ()


def _stories(narratives: Iterable[Mapping[str, Any]], sentences: int) -> list[str]:
    """The beginnings of the summaries, each once: NarrativeQA repeats a document with each of its questions."""
    summaries = dict.fromkeys(
        each(narratives, lambda number, record: summary_of(record, place_of(record, f"record {number} of NarrativeQA")))
    )
    return list(dict.fromkeys(story for summary in summaries if (story := beginning(summary, sentences))))


def summary_of(record: Mapping[str, Any], what: str) -> str:
    (document,) = needed(record, ("document",), what)
    (summary,) = needed(document, ("summary",), f"the document of {what}")
    (text,) = texts(summary, ("text",), f"the summary of {what}")
    return text


def beginning(summary: str, sentences: int) -> str:
    """The first sentences, if they are complete and self-contained; else nothing.

    A beginning refers to nothing before it, unless it begins with a pronoun; a line of a few words is a heading.
    """
    first = split_sentences(one_line(summary))[:sentences]
    complete = len(first) == sentences and all(each.rstrip("\"'”’)").endswith((".", "!", "?")) for each in first)
    self_contained = complete and len(first[0].split()) >= FEWEST_WORDS and not REFERS_BACK.match(first[0])
    return " ".join(first) if self_contained else ""
