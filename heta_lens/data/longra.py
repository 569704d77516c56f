"""LongRA: a word that must agree with one long before it, with a remark in brackets between the two."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from heta_lens._util.file_reading import brief
from heta_lens._util.text_spans import Span
from heta_lens.data.dataset_files import each, needed, place_of, texts
from heta_lens.data.instance import Instance, spans_of

TEXTS, SPANS = ("text", "target", "category"), ("antecedent_span", "distractor_span")
FIELDS = (*TEXTS, *SPANS)


def instances(records: Iterable[Mapping[str, Any]], *, says: Callable[[str], str] | None = None) -> Iterator[Instance]:
    """From records with ``text``, ``target``, ``category`` and the spans of characters of antecedent and distractor.

    ``says``, a function from a text to the model's continuation, keeps only those that it answers, as in `kept`.
    """
    if says is not None and not callable(says):
        raise TypeError(f"says={says!r} is not a function from a text to the token that follows")
    made = each(records, _instance)
    return made if says is None else kept(made, says)


def _instance(number: int, record: Mapping[str, Any]) -> Instance:
    what = place_of(record, f"record {number} of LongRA")
    text, target, category = texts(record, TEXTS, what)
    antecedent, distractor = (spans_of([span]) for span in needed(record, SPANS, what))
    instance = Instance(
        id=f"longra-{number:03d}",
        text=text,
        answer=" " + target.strip(),
        template=category,
        support=antecedent,
        gold=antecedent,
        distractor=distractor,
    )
    named = record.get("antecedent", instance.words("gold")[0])
    if instance.words("gold") != [named]:
        raise ValueError(f"{instance.id}: antecedent_span says {brief(instance.words('gold')[0])}, not {brief(named)}")
    return instance


def kept(instances: Iterable[Instance], says: Callable[[str], str]) -> Iterator[Instance]:
    """Instances that the model answers both with and without the distractor, as ReAGent keeps them.

    ``says`` gives the text of the model's next token after a prompt. An answer of several tokens is never given, so its
    instance is not kept.
    """
    for instance in instances:
        if instance.answer is None:
            raise ValueError(f"instance {instance.id!r} has no answer to compare with the model's")
        prompts = (instance.text, without(instance.text, instance.distractor))
        if all(says(prompt).strip() == instance.answer.strip() for prompt in prompts):
            yield instance


def without(text: str, spans: Iterable[Span]) -> str:
    """The text without these spans; of the white space around each, only that before it is kept."""
    out: list[Span] = []  # those that overlap are one
    for start, stop in sorted(spans):
        whole = out.pop() if out and start <= out[-1].stop else Span(start, stop)
        out.append(Span(whole.start, max(stop, whole.stop)))
    for start, stop in reversed(out):
        before, after = text[:start], text[stop:]
        if not before or before[-1].isspace():
            after = after.lstrip()
        text = before + after if after else before.rstrip()
    return text
