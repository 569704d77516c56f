"""Public data sets as instances (LongRA, TellMeWhy, WikiBio), and texts made of named pieces."""

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from heta_lens._util.files import brief
from heta_lens._util.options import check_types
from heta_lens._util.text import Span, joined, sentences, visible_span
from heta_lens.data.instance import Instance
from heta_lens.data.records import Record, each, values_of

WORD = re.compile(r"\w+(?:['’\-]\w+)*")
ABBREVIATIONS = "Mr Mrs Ms Dr St Jr Sr Prof Rev Col Capt Gen Lt Sgt vs etc [A-Z]".split()  # noqa: SIM905
NOT_ABBREVIATED = "".join(rf"(?<!\b{abbreviation}\.)" for abbreviation in ABBREVIATIONS)
PROSE_END = re.compile(rf"(?<=[.!?]){NOT_ABBREVIATED}[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])")


class Piece(NamedTuple):
    text: str
    name: str = ""
    """A name of spans, such as ``support``; empty for text in between."""


def composed(id: str, pieces: Iterable[Piece], answer: str | None, **known: Any) -> Instance:
    """Return an instance whose text is the pieces, and whose spans are the named pieces without white space around."""
    text, spans = "", {}
    for piece in pieces:
        span = visible_span(piece.text, Span(0, len(piece.text)))
        if piece.name and span.start < span.stop:
            spans.setdefault(piece.name, []).append(Span(len(text) + span.start, len(text) + span.stop))
        text += piece.text
    return Instance(id, text, answer, **spans, **known)


def words_within(text: str, spans: Iterable[Span]) -> list[Span]:
    """Return the words with every character in a span."""
    whole, inside = [Span(*match.span()) for match in WORD.finditer(text)], [*spans]
    return [word for word in whole if any(start <= word.start and word.stop <= stop for start, stop in inside)]


def occurrences(phrase: str, text: str, span: Span | None = None) -> list[Span]:
    """Return the spans of a phrase in the text (or in a span of the text) as whole words, regardless of case."""
    start, stop = span or (0, len(text))
    wanted = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)", re.IGNORECASE)
    return [Span(*match.span()) for match in wanted.finditer(text, start, stop)]


def one_line(text: str) -> str:
    return " ".join(text.split())


def split_sentences(text: str) -> list[str]:
    """Split at full stops, question and exclamation marks before a capital, but not after an initial or a title."""
    return [text[start:stop].strip() for start, stop in sentences(text, PROSE_END)]


# -------------------------------------------------------------------------------------------------------------- LongRA
def longra_instances(
    records: Iterable[Mapping[str, Any]], *, says: Callable[[str], str] | None = None
) -> Iterator[Instance]:
    """Make LongRA instances: a word in agreement with a distant previous word, with a remark in between.

    Records have ``text``, ``target``, ``category`` and the spans of characters of antecedent and distractor. ``says``,
    a function from a text to the model's continuation, keeps only the instances that the model answers, as in `kept`.
    """
    made = each(records, _longra_instance, "LongRA's record")
    return made if says is None else kept(made, says)


def _longra_instance(number: int, record: Mapping[str, Any]) -> Instance:
    spans: dict[str, Any] = dict.fromkeys(("antecedent_span", "distractor_span"), Sequence[int])
    known = values_of(record, text=str, target=str, category=str, **spans)
    text, target, category, antecedent, distractor = known
    told, name, answer = (antecedent,), f"longra-{number:03d}", " " + target.strip()
    instance = Instance(name, text, answer, category, support=told, gold=told, distractor=(distractor,))
    named = record.get("antecedent", instance.words("gold")[0])
    if instance.words("gold") != [named]:
        raise ValueError(f"antecedent_span says {brief(instance.words('gold')[0])}, not {brief(named)}")
    return instance


def kept(instances: Iterable[Instance], says: Callable[[str], str]) -> Iterator[Instance]:
    """Keep instances with a correct answer by the model, with and without the distractor, as ReAGent does.

    ``says`` gives the text of the model's next token after a prompt. The model never gives an answer of several tokens,
    so an instance with such an answer is not kept.
    """
    for instance in instances:
        if instance.answer is None:
            raise ValueError(f"instance {instance.id!r} has no answer to compare with the model's")
        prompts = (instance.text, without(instance.text, instance.distractor))
        if all(says(prompt).strip() == instance.answer.strip() for prompt in prompts):
            yield instance


def without(text: str, spans: Iterable[Span]) -> str:
    """Remove spans from a text, with the white space after a span if white space precedes the span."""
    for start, stop in reversed(joined(sorted(spans))):
        before, after = text[:start], text[stop:]
        if not before or before[-1].isspace():
            after = after.lstrip()
        text = before + after if after else before.rstrip()
    return text


# ----------------------------------------------------------------------------------------------------------- TellMeWhy


def tellmewhy_instances(records: Iterable[Mapping[str, Any]]) -> Iterator[Instance]:
    """Make TellMeWhy instances: a story of a few sentences, and a question for the reason of an event.

    The data set has a record per question and annotator; an instance joins the records of a question. The answer is
    left to the model, because people answer in their own words; the text ends with the question, as in ReAGent.
    """
    questions: dict[tuple[str, ...], list[Record]] = {}
    records = [*records]
    keys = each(records, lambda _, record: (*values_of(record, narrative=str, question=str),), "TellMeWhy's record")
    for key, record in zip(keys, records, strict=True):
        questions.setdefault(key, []).append(record)

    def made(number: int, group: Sequence[Record]) -> Instance:
        return _tellmewhy_instance(f"tellmewhy-{number:05d}", group)

    return each(questions.values(), made, "TellMeWhy's question", lambda group: getattr(group[0], "where", ""))


def _tellmewhy_instance(name: str, group: Sequence[Record]) -> Instance:
    first = group[0]
    meta = values_of(first, question_meta=str | None)[0] or name
    asking = Piece(first["question"].strip(), "question")
    # Questions about a story share its sentences.
    return composed(meta, [*_story(group), Piece(" "), asking], None, template=meta.split("_sentence_")[0])


def _story(group: Sequence[Record]) -> list[Piece]:
    """Split the story into helpful sentences (support) and further sentences (distractor), if known."""
    narrative = group[0]["narrative"].strip()
    sentences = _listed(group[0], "original_narrative_form", str)
    helpful = _helpful(group)
    pieces, done = [], 0
    for at, sentence in enumerate(sentences):
        start = narrative.find(sentence.strip(), done)
        if start < 0 or not helpful:
            return [Piece(narrative)]
        stop = start + len(sentence.strip())
        name = "support" if at in helpful else "distractor"
        pieces += [Piece(narrative[done:start]), Piece(narrative[start:stop], name)]
        done = stop
    return [*pieces, Piece(narrative[done:])]


def _helpful(group: Sequence[Record]) -> set[int]:
    """Return the sentences named by half of the annotators, without annotators who name no sentence."""
    votes = [votes for record in group if (votes := set(_listed(record, "helpful_sentences", int)))]
    named = Counter(at for vote in votes for at in vote)
    return {at for at, times in named.items() if 2 * times >= len(votes)}


def _listed(record: Record, name: str, kind: type) -> list[Any]:
    """Return a list of text or numbers, also from the text of a csv file."""
    value = record.get(name) or []
    try:
        items: Any = literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        items = value
    check_types({name: Sequence[kind]}, {name: items})
    return [*items]


# ------------------------------------------------------------------------------------------------------------- WikiBio
# The paper cites SelfCheckGPT's set of 238 biographies.
def wikibio_instances(records: Iterable[Mapping[str, Any]]) -> Iterator[Instance]:
    """Make WikiBio instances: the first sentence of a biography (``wiki_bio_text``), which the model continues."""

    def made(number: int, record: Mapping[str, Any]) -> Instance:
        (prose,) = values_of(record, wiki_bio_text=str)
        return Instance(f"wikibio-{number:05d}", " ".join(split_sentences(one_line(prose))[:1]), None)

    return each(records, made, "WikiBio's record")
