"""The prompts of the study: families in six kinds, with the tokens that are known to decide the answer.

Wordings are in `study_wordings.json`, where ``<…>`` marks the gold; what is asked is no part of the context. A template
is a wording of the context with a wording of the question, a separator or a pair of verbs. Splits share no template.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from heta_lens._util.text import Span
from heta_lens.data.instance import SPANS, Instance
from heta_lens.data.recall import Draw
from heta_lens.data.suites import suite

FILES = Path(__file__).parents[1] / "models" / "data"
SPLITS = ("dev", "test")
FAMILIES: dict[str, Any] = json.loads(Path(__file__).with_name("study_wordings.json").read_text(encoding="utf-8"))
LISTS: dict[str, str] = FAMILIES.pop("words")
USED: dict[str, str] = FAMILIES.pop("used")  # ids of published prompts that had a part in an earlier study
SQUAD = ("squad_sentence", "squad_paragraph")
PUBLISHED = {"squad_sentence": "text", "squad_paragraph": "text", "known_facts": "facts", "agreement_phrase": "syntax"}
KINDS: Mapping[str, str] = {**PUBLISHED, **{name: spec["kind"] for name, spec in FAMILIES.items()}}
MARK = re.compile(r"<([\w' ]+)>")
OPEN = "\"'([\n"  # a word follows without a space
NUMBERED = "subjects"  # the list of singulars and plurals
FACTS = 3  # every third pair of words is for dev
LED = ("facts", "syntax", "patterns")  # kinds of short prompts, which begin with a sentence that has no part in them
MADE = 400  # prompts of a family and split, at most
REPEATED, LISTED = 5, 4  # words of a sequence that is repeated; of a list that goes on
ARTICLES = (  # the paragraph that begins each of the file's articles
    *(0, 31, 64, 97, 118, 138, 174, 216, 251, 267, 283, 301, 324, 349, 353, 364, 383, 394, 409, 423, 447, 470, 486),
    *(525, 558, 593, 636, 654, 675, 716, 748, 785, 817, 859, 877),
)


class Question(NamedTuple):
    instance: Instance
    wrong: Sequence[str] = ()
    """The other answers, of a prompt whose answers are known."""


@cache
def questions(family: str, split: str) -> list[Question]:
    """Return the prompts of a family and split, in a fixed order."""
    if family in PUBLISHED:
        own = [one for one in published(family) if _split(one.instance.template) == split]
        return sorted(own, key=lambda one: crc32(one.instance.id.encode()))
    return [made(family, split, number) for number in range(MADE)]


def _split(template: str) -> str:
    return SPLITS[crc32(template.encode()) % 2]


# ------------------------------------------------------------------------------------------------------------ published
@cache
def published(family: str) -> list[Question]:
    name, file, options = {
        "squad_sentence": ("squad", "squad_subset.json", {"neighbours": 0}),
        "squad_paragraph": ("squad", "squad_subset.json", {}),
        "known_facts": ("known_facts", "known_1000.json", {}),
        "agreement_phrase": ("agreement", "agreement_nounpp.jsonl", {}),
    }[family]
    used = USED[name].split()
    every = [one for one in suite(name, str(FILES / file), **options) if one.id.partition("-")[2] not in used]
    if name == "squad":  # paragraphs of an article are not independent; each question is in one of the two families
        every = [one for one in every if _told_once(one) and _asked_in(one) == family]
        return [Question(replace(one, template=_article(one))) for one in every]
    if name == "known_facts":
        answers = {(one.template, one.answer): None for one in every}
        return [
            Question(led(one), [str(other) for of, other in answers if of == one.template and other != one.answer])
            for one in every
        ]
    pairs = [pair for one in every if (other := one.counterfactual) for pair in ((one, other), (other, one))]
    return [Question(led(one), [str(other.answer)]) for one, other in pairs]


def _asked_in(one: Instance) -> str:
    """Return the family of a question: two of three are about a paragraph, which the model answers less often."""
    return SQUAD[crc32(f"{one.id} family".encode()) % 3 > 0]


def _told_once(one: Instance) -> bool:
    """Tell if the context names the first word of the answer once."""
    (eligible,), first = one.eligible, str(one.answer).split()[0].lower()
    return len(re.findall(rf"\b{re.escape(first)}\b", one.text[: eligible.stop].lower())) == 1


def led(one: Instance, between: str = " ") -> Instance:
    """Return a prompt behind a sentence that has no part in it, so that evidence does not begin the text."""
    lead = Draw(f"lead {one.id}").one(LISTS["noise"].split("|")) + between
    moved = {name: [Span(start + len(lead), stop + len(lead)) for start, stop in getattr(one, name)] for name in SPANS}
    moved["eligible"] = [Span(0, stop) for _, stop in moved["eligible"]]  # the sentence too
    return replace(one, text=lead + one.text, counterfactual=None, **moved)


def _article(one: Instance) -> str:
    return f"article {bisect_right(ARTICLES, int(one.template.split()[-1]))}"


# ----------------------------------------------------------------------------------------------------------------- made
def made(family: str, split: str, number: int) -> Question:
    """Return a prompt; the number goes through the family's templates in turn."""
    spec, draw = FAMILIES[family], Draw(f"study {family} {split} {number}")
    own = spec[split]
    seconds = next((own[part] for part in ("asked", "answers", "separators") if part in own), [""])
    wordings = [*product(own["lines"], seconds)]
    turn, at = divmod(number, len(wordings))  # each turn has another order, so that every fourth prompt is any wording
    line, second = Draw(f"order {family} {split} {turn}").shuffled(wordings)[at]
    words = draw_words(spec, split, draw)
    asked = draw.one(words)
    while "label" in asked and len({one["label"] for one in words if one is not asked}) == 1:  # examples have both
        words = draw_words(spec, split, draw)
        asked = draw.one(words)
    answer, wrong = asked.get(spec.get("answer", "own"), ""), [asked["wrong"]] if "wrong" in asked else []
    if spec["kind"] == "facts":
        wrong = [row.split("/")[1] for name in spec["slots"].values() for row in LISTS[name].split()]
    question = opening = ""
    match spec.get("function"):
        case "few_shot":
            examples = [_unmarked(_filled(line, one)) for one in words if one is not asked]
            context = second.join([*examples, _filled(line.split("{label}")[0], asked)])
        case "copying":
            context, answer = copied(line, second, draw)
        case "series":
            context, answer = continued(line, second, draw)
        case _:
            lines = line if isinstance(line, list) else [line]
            context = told(spec, lines, words, asked, draw)
            if "answers" in own:
                answer, *wrong = second.split("/")[:: 1 if asked["n"] == "0" else -1]
            elif "asked" in own:
                beginning = _filled(lines[0].split("<")[0], asked)
                question, opening = (_filled(part, {**asked, "line": beginning}) for part in second)
    id = f"{family} {split} {number}"
    instance = instance_of(id, f"{line} {second}", spec, context, question, opening, answer)
    if spec["kind"] in LED:
        instance = led(instance, "\n" if spec["kind"] == "patterns" else " ")
    return Question(instance, [f" {other}" for other in dict.fromkeys(wrong) if other != answer])


def draw_words(spec: Mapping[str, Any], split: str, draw: Draw) -> list[dict[str, str]]:
    """Return the words of every entity by slot, all different."""
    count, lists = spec.get("entities", 1), [*spec["slots"].values()]
    facts = spec["kind"] == "facts"
    drawn = {
        name: draw.shuffled(facts_of(name, split) if facts else LISTS[name].split()) for name in dict.fromkeys(lists)
    }
    entities = [dict[str, str]() for _ in range(count)]
    for slots, name in spec["slots"].items():
        for entity in entities:
            entity |= _values(slots.split("/"), name, drawn[name].pop(), draw)
    return entities or [{}]


def facts_of(name: str, split: str) -> list[str]:
    """Return the facts of a split; both directions of a pair are in one."""
    pairs = {fact: tuple(sorted(fact.split("/"))) for fact in LISTS[name].split()}
    places = {pair: at for at, pair in enumerate(dict.fromkeys(pairs.values()))}
    return [fact for fact, pair in pairs.items() if (places[pair] % FACTS == 0) == (split == "dev")]


def _values(slots: Sequence[str], name: str, row: str, draw: Draw) -> dict[str, str]:
    values = row.split("/")
    if name == NUMBERED:
        number = draw.below(2)
        values = [values[number], str(number)]
    return dict(zip(slots, values, strict=True))


def _filled(form: str, words: Mapping[str, str]) -> str:
    """Return the form with its words; *a* becomes *an* before a vowel."""

    def word(slot: re.Match[str]) -> str:
        own = words.get(slot["name"], slot[0])
        return f"{slot['article']}{'n' * (own[0] in 'aeiou')} {slot['mark']}{own}"

    with_articles = re.sub(r"\b(?P<article>[aA]) (?P<mark><?)\{(?P<name>\w+)\}", word, form)
    return re.sub(r"\{(\w+)\}", lambda slot: words.get(slot[1], slot[0]), with_articles)


def told(
    spec: Mapping[str, Any], lines: Sequence[str], words: Sequence[dict[str, str]], asked: dict[str, str], draw: Draw
) -> str:
    """Return the lines of every entity in turn, of which the asked one's keep their marks, between lines of noise."""
    every = [(_filled(line, entity), entity is asked) for entity in words for line in lines]
    shown = [line if own else _unmarked(line) for line, own in every]
    for sentence in draw.some(LISTS["noise"].split("|"), spec.get("noise", 0)):
        shown.insert(draw.below(len(shown) + 1), sentence)
    return spec.get("between", " ").join(shown)


def copied(line: str, separator: str, draw: Draw) -> tuple[str, str]:
    """Return words and their first ones again, and the word that comes next."""
    sequence, shown = draw.some(LISTS["plain"].split(), REPEATED), 2 + draw.below(REPEATED - 2)
    first = [f"<{word}>" if at == shown else word for at, word in enumerate(sequence)]
    return line.replace("{words}", separator.join([*first, *sequence[:shown], ""])), sequence[shown]


def continued(line: str, separator: str, draw: Draw) -> tuple[str, str]:
    """Return a part of an ordered list, and its next word."""
    items = draw.one(LISTS["ordered"].split()).split(",")
    start = draw.below(len(items) - LISTED)
    *before, last = items[start : start + LISTED]
    return line.replace("{words}", separator.join([*before, f"<{last}>", ""])), items[start + LISTED]


def _unmarked(text: str) -> str:
    return MARK.sub(r"\1", text)


def instance_of(
    id: str, template: str, spec: Mapping[str, Any], marked: str, question: str, opening: str, answer: str
) -> Instance:
    """Return the prompt without the marks, which become spans; of a chat, in its messages."""
    gold = [Span(found.start() - 2 * at, found.end() - 2 * at - 2) for at, found in enumerate(MARK.finditer(marked))]
    context, between, role = _unmarked(marked), spec.get("between", " "), spec.get("role", "user")
    chat = spec["kind"] == "chats"
    parts = [context, question, opening] if not chat else [context, question] if role == "user" else [context]
    text = between.join(filter(None, parts)).rstrip(" ")
    said = {
        "user": [("user", text)],
        "system": [("system", text), ("user", question)],
        "earlier": [("user", text), ("assistant", "I see."), ("user", question)],
    }[role]
    end = (opening if chat else text)[-1]
    return Instance(
        id,
        text,
        answer if end in OPEN else f" {answer}",
        template=template,
        gold=gold,
        eligible=[Span(0, len(context.rstrip(" ")))],
        messages=[{"role": role, "content": content} for role, content in [*said, ("assistant", opening)] if chat],
    )
