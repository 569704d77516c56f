"""Evidence annotation: which words of the support tell the answer, and how far annotators agree.

An annotator is any function from an instance to spans of characters. Words are compared, so that it does not matter
whether one marks the full stop too, and nothing depends on a tokenizer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import nan
from typing import Literal, NamedTuple, TypeAlias, get_args

from heta_lens._util.extras import extra
from heta_lens._util.options import check_choice
from heta_lens._util.text_spans import Span, tokens_in
from heta_lens.data.instance import Instance
from heta_lens.data.text_layout import words_within

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
