"""Which words of the support tell the answer: what annotators say of it, where they agree, and how far.

An annotator is any function from an instance to spans of characters. Words are what is compared, so that it does not
matter whether one marks the full stop too, and so that nothing depends on a tokenizer.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import nan
from typing import Literal, NamedTuple, TypeAlias, get_args

from sklearn.metrics import cohen_kappa_score

from heta_lens.data.instance import Instance
from heta_lens.data.layout import words_within
from heta_lens.options import check_choice
from heta_lens.text import Span, tokens_in

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
    """Cohen's: what is left of the agreement when that of chance is taken off."""
    jaccard: float
    words: int
    """How many were judged."""


def annotated(
    instances: Iterable[Instance], annotators: Sequence[Annotator], agree: Agree = "intersection"
) -> Iterator[Instance]:
    """The instances, with the words as gold that all annotators mark, most of them (more than half), or any."""
    check_choice("agree", agree, get_args(Agree))
    if not annotators:
        raise ValueError("annotators is empty: give one function or more, such as answer_words")
    least = {"intersection": len(annotators), "majority": len(annotators) // 2 + 1, "union": 1}[agree]
    return (_annotated(instance, annotators, least) for instance in instances)


def _annotated(instance: Instance, annotators: Sequence[Annotator], least: int) -> Instance:
    votes = [_marked(instance, annotator(instance)) for annotator in annotators]
    gold = [word for word in judged(instance) if sum(word in marked for marked in votes) >= least]
    return replace(instance, gold=tuple(gold))


def judged(instance: Instance) -> list[Span]:
    """The words that can be marked: those of the support, or of the whole text where the support is unknown."""
    return words_within(instance.text, instance.support or [Span(0, len(instance.text))])


def _marked(instance: Instance, spans: Iterable[Span]) -> set[Span]:
    """The words with a character in one of the spans; a span that has none of the words is refused."""
    words, marked = judged(instance), set()
    for span in spans:
        touched = tokens_in(instance.text, words, Span(*span))
        if not touched:
            where = "support" if instance.support else "text"
            said = instance.text[slice(*span)]
            raise ValueError(f"{tuple(span)}, {said!r}, marks no word in the {where} of instance {instance.id!r}")
        marked |= {words[at] for at in touched}
    return marked


def agreement(first: Iterable[Instance], second: Iterable[Instance]) -> Agreement:
    """Of two annotations of the same instances, over the words of all of them taken together.

    NaN where it is undefined: F1 and Jaccard where nobody marks a word, kappa where all words are marked alike.
    """
    one: list[bool] = []
    two: list[bool] = []
    first, second = list(first), list(second)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} instances and {len(second)} are not two annotations of the same")
    for left, right in zip(first, second, strict=True):
        if (left.text, left.support) != (right.text, right.support):
            raise ValueError(
                f"{left.id!r} and {right.id!r} are not the same text and support, told apart by their gold"
            )
        marked, other = _marked(left, left.gold), _marked(right, right.gold)
        one += [word in marked for word in judged(left)]
        two += [word in other for word in judged(right)]
    if not one:
        raise ValueError("there is no word that both could judge")
    both, either = sum(map(min, one, two)), sum(map(max, one, two))
    kappa = float(cohen_kappa_score(one, two)) if len({*one, *two}) == 2 else nan
    # F1 is 2 both / (first + second), and first + second is both + either.
    return Agreement(2 * both / (both + either), kappa, both / either, len(one)) if either else _none(len(one))


def _none(words: int) -> Agreement:
    return Agreement(nan, nan, nan, words)


def answer_words(instance: Instance) -> list[Span]:
    """The simplest annotator: words of the support that are also in the answer or the question, function words not.

    An answer of nothing but function words is marked all the same.
    """
    asked = {word for question in instance.words("question") for word in _forms(question)} - FUNCTION_WORDS
    answer = set(_forms(instance.answer or ""))
    wanted = asked | (answer - FUNCTION_WORDS or answer)
    return [word for word in judged(instance) if instance.text[slice(*word)].casefold() in wanted]


def _forms(text: str) -> list[str]:
    return [text[slice(*word)].casefold() for word in words_within(text, [Span(0, len(text))])]
