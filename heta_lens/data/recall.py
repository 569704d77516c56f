"""Recall stories: short stories with a question whose answer, and its place in the story, are known.

    Nina put the key in the drawer. Karl put the key in the trunk. Question: Where did Nina put the key? Answer: in the

Every fact is stated once, every place is named once, and the evidence is drawn and placed like every other sentence. So
owner and thing together determine the answer, but no position, wording or number of mentions does. (Options can give
the answer away: without rivals the thing alone determines it, with rivals only the owner, and ``distractors`` fixes the
place of the evidence.)
"""

import csv
import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, islice, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from zlib import crc32

from heta_lens._util.options import check_at_least, check_choice
from heta_lens._util.text import Span
from heta_lens.data.instance import OTHERS, Instance

T = TypeVar("T")
Split = Literal["train", "dev", "test"]
Where = Literal["anywhere", "before", "after", "around"]
Voice = Literal["active", "passive"]
Wordings = Literal["trained", "more"]

# Most facts of a story; fewer with rooms, which are drawn from the tenth of the pairs that a small split has.
MOST, MOST_ROOMS, TRIES = 40, 20, 1000


class Draw:
    """Draws with the same results on every platform, by ``random()``, the only generator never changed by Python."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed).random

    def below(self, stop: int) -> int:
        return int(self.random() * stop)

    def one(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        keys = [self.random() for _ in items]
        return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        return self.shuffled(items)[:count]


# --------------------------------------------------------------------------------------------------- words and shapes
# No word stands in two lists, and every word is a token of the demo model.
WORDS: dict[str, list[str]] = {
    slot: words.split()
    for slot, words in json.loads(Path(__file__).with_name("recall_words.json").read_text(encoding="utf-8")).items()
}
"""Words by their slots; those of `IDLE` name no place."""
NAMES, OBJECTS, PLACES, ROOMS = (WORDS[slot] for slot in ("who", "what", "place", "room"))
IDLE = {slot: WORDS[slot] for slot in ("mood", "time", "sky", "colour", "action")}

ACTIVE = "{who} {verb} the {what} in the {place} ."
PASSIVE = "The {what} was {verb} in the {place} by {who} ."
CLAIM = "Claim : The {what} of {who} is in the {place} . True or false ? Answer :"
TRUTH = {True: "true", False: "false"}
PUNCTUATION = ".:?"
CARRIES = {"who", "what", "place", "room"}  # slots whose words carry the answer

FACTS = (
    ACTIVE,
    PASSIVE,
    "The {what} of {who} was {verb} in the {place} .",
    "In the {place} {who} {verb} the {what} .",
    "{who} had a {what} and {verb} it in the {place} .",
)
SENTENCE_LOCATIONS = (
    "The {place} is in the {room} .",
    "The {place} stands in the {room} .",
    "In the {room} there is the {place} .",
)
FILLERS = (
    "{who} was {mood} that {time} .",
    "{who} {action} all {time} .",
    "The {time} was {sky} .",
    "It was a {sky} {time} .",
    "{who} looked for the {what} .",
    "{who} and {friend} talked about the {what} .",
    "{who} liked the {colour} {what} .",
)
QUESTIONS = {
    1: (
        "Question : Where did {who} put the {what} ? Answer : in the",
        "Question : Where was the {what} of {who} put ? Answer : in the",
        "Question : Where was the {what} put by {who} ? Answer : in the",
    ),
    2: (
        "Question : In which room is the {what} of {who} ? Answer : in the",
        "Question : Which room holds the {what} of {who} ? Answer : in the",
    ),
}

# More shapes in words that the demo model knows. The model was not trained on these shapes, but answers as well as on
# its own: every shape was chosen by the answers on the dev split. A story has a single wording, so templates share no
# wording of a fact or question, and are independent.
with Path(__file__).with_name("recall_wordings.csv").open(encoding="utf-8", newline="") as file:
    WORDINGS = tuple(csv.DictReader(file))
"""Shapes of a fact, a location, a question for the place or the room, and a claim, by these names."""


# --------------------------------------------------------------------------------------------------------------- facts
class Fact(NamedTuple):
    """An owner, a thing and the thing's place; ``room`` is empty if nobody asks for a room."""

    who: str
    what: str
    place: str
    room: str


def split_of(*pair: str) -> Split:
    """Return the split of a pair: (owner, thing, place) or (place, room)."""
    bucket = crc32(" ".join(pair).encode()) % 10
    return "test" if bucket == 9 else "dev" if bucket == 8 else "train"


def drawn_facts(
    draw: Draw,
    split: Split,
    facts: int,
    rivals: int,
    hops: int,
    owners: int | None = None,
    swapped: bool = False,
) -> tuple[list[Fact], str]:
    """Draw the facts of a story, first the fact to ask about, and the counterfactual's answer.

    With ``swapped``, the first two facts stay in the split if they exchange places.
    """
    # Owners have several things and things several owners, so neither alone tells the place.
    owners = max(rivals + 1, facts // 2) if owners is None else owners
    for _ in range(TRIES):
        known, things = draw.some(NAMES, owners), iter(draw.shuffled(OBJECTS))
        pairs: list[tuple[str, str]] = []
        while len(pairs) < facts:
            thing = next(things)
            pairs += [(owner, thing) for owner in draw.some(known, min(rivals + 1, facts - len(pairs)))]
        places, rooms = draw.shuffled(PLACES), draw.shuffled(ROOMS)
        if swapped:
            shared = [place for place in places if all(split_of(*pair, place) == split for pair in pairs[:2])][:2]
            if len(shared) < 2:
                continue
            places.sort(key=lambda place, shared=shared: place not in shared)
        drawn: list[Fact] = []
        for who, what in pairs:
            place = _take(places, split, who, what)
            drawn.append(Fact(who, what, place, _take(rooms, split, place) if hops == 2 and place else ""))
            if not place or (hops == 2 and not drawn[-1].room):
                break
        else:
            first = drawn[0]
            other = _take(rooms, split, first.place) if hops == 2 else _take(places, split, first.who, first.what)
            if other:
                return drawn, other
    raise ValueError(f"{facts=} are too many for distinct places in the {split} split with {hops=}")


def _take(left: list[str], split: Split, *entity: str) -> str:
    """Take out the first word with a pair of the split; empty without a word."""
    word = next((word for word in left if split_of(*entity, word) == split), "")
    if word:
        left.remove(word)
    return word


# ----------------------------------------------------------------------------------------------------------- sentences
@dataclass(frozen=True)
class Sentence:
    """A shape, and the words in its slots."""

    shape: str
    slots: Mapping[str, str]

    @cached_property
    def pieces(self) -> list[tuple[str, str]]:
        """Tokens of the sentence, with the names of their slots (empty for words of the shape)."""
        slots = [(word, word[1:-1] if word.startswith("{") else "") for word in self.shape.split()]
        return [(word if word in PUNCTUATION else " " + self.slots.get(slot, word), slot) for word, slot in slots]


def fact_sentence(draw: Draw, fact: Fact, shapes: Sequence[str] = FACTS) -> Sentence:
    verb, shape = draw.one(WORDS["verb"]), draw.one(shapes)
    # A shape without a verb gets the default verb, because the paraphrase has a verb.
    slots = {"who": fact.who, "what": fact.what, "place": fact.place, "verb": verb if "{verb}" in shape else "put"}
    return Sentence(shape, slots | {slot: draw.one(words) for slot, words in IDLE.items() if f"{{{slot}}}" in shape})


def filler_sentence(draw: Draw) -> Sentence:
    who, friend = draw.some(NAMES, 2)
    shape = draw.one(FILLERS)
    drawn = {slot: draw.one(words) for slot, words in ({"what": OBJECTS} | IDLE).items()}
    return Sentence(shape, {"who": who, "friend": friend} | drawn)


def claim_about(fact: Fact, place: str, shape: str = CLAIM) -> Sentence:
    return Sentence(shape, {"who": fact.who, "what": fact.what, "place": place})


# --------------------------------------------------------------------------------------------------------------- story
class Stretch(NamedTuple):
    """A part of a story: characters of the text, and tokens of ``[beginning of text, word, word, …]``."""

    characters: Span
    tokens: range


@dataclass(frozen=True)
class Story:
    """A story with a question, up to the answer.

    ``evidence`` are the sentences that tell the answer (a sentence per hop), ``gold`` the words of the evidence that
    carry the answer (owner, thing, place, room), ``distractor`` the rest of the story, ``question`` the text after the
    story. (The sentence that names the place of a claim also shows that a claim is false, but counts as a distractor.)
    """

    sentences: tuple[Sentence, ...]
    asking: Sentence
    evidence_at: tuple[int, ...]
    answer: str
    choices: tuple[str, ...]
    """Possible answers: the places (or rooms) in the story; true and false for a claim."""
    other: str
    """Place or room in the evidence of the counterfactual."""

    @cached_property
    def tokens(self) -> list[str]:
        return [piece for sentence in (*self.sentences, self.asking) for piece, _ in sentence.pieces]

    @cached_property
    def text(self) -> str:
        return "".join(self.tokens).removeprefix(" ")

    @property
    def template(self) -> str:
        """Wordings of the question and of the evidence; stories with the same template are not independent."""
        return " / ".join([self.asking.shape, *(self.sentences[at].shape for at in self.evidence_at)])

    @property
    def evidence(self) -> tuple[Stretch, ...]:
        return tuple(self._sentences(at, at + 1) for at in self.evidence_at)

    @property
    def gold(self) -> tuple[Stretch, ...]:
        starts = [(self._starts[at], self.sentences[at].pieces) for at in self.evidence_at]
        positions = [start + i for start, pieces in starts for i, (_, slot) in enumerate(pieces) if slot in CARRIES]
        return tuple(self._stretch(at, at + 1) for at in positions)

    @property
    def distractor(self) -> tuple[Stretch, ...]:
        """Stretches around the evidence: a single stretch if the evidence begins or ends the story."""
        groups = groupby(range(len(self.sentences)), lambda at: at in self.evidence_at)
        runs = [list(run) for is_evidence, run in groups if not is_evidence]
        return tuple(self._sentences(run[0], run[-1] + 1) for run in runs)

    @property
    def question(self) -> Stretch:
        return self._sentences(len(self.sentences), len(self.sentences) + 1)

    @cached_property
    def counterfactual(self) -> "Story":
        """The story with another place (or room) in the evidence: only the evidence and the answer change.

        For a claim, two places are exchanged, so that a place is still named once: true becomes false, and the reverse.
        """
        last = self.evidence_at[-1]
        slot = "room" if "room" in self.sentences[last].slots else "place"
        old = self.sentences[last].slots[slot]
        if "place" in self.asking.slots:  # a claim
            changed = self._renamed({old: self.other, self.other: old}, range(len(self.sentences)))
            answer = " " + TRUTH[self.answer != " " + TRUTH[True]]
            return replace(self, sentences=changed, answer=answer, other=old)
        choices = tuple(" " + self.other if choice == self.answer else choice for choice in self.choices)
        changed = self._renamed({old: self.other}, [last])
        return replace(self, sentences=changed, answer=" " + self.other, other=old, choices=choices)

    @cached_property
    def paraphrase(self) -> "Story":
        """The story with the first evidence in the passive (or, for passive evidence, in the active).

        Stories of ``voice="active"`` make pairs of active and passive.
        """
        first = min(self.evidence_at, key=lambda at: "who" not in self.sentences[at].slots)
        changed = list(self.sentences)
        changed[first] = replace(changed[first], shape=ACTIVE if changed[first].shape == PASSIVE else PASSIVE)
        return replace(self, sentences=tuple(changed))

    def _renamed(self, names: Mapping[str, str], at: Collection[int]) -> tuple[Sentence, ...]:
        """Return the sentences, with words exchanged by name in some of the sentences."""
        slots = [{slot: names.get(word, word) for slot, word in sentence.slots.items()} for sentence in self.sentences]
        changed = enumerate(zip(self.sentences, slots, strict=True))
        return tuple(replace(sentence, slots=words) if i in at else sentence for i, (sentence, words) in changed)

    @cached_property
    def _starts(self) -> list[int]:
        """Indices in ``tokens`` of the starts of sentences."""
        return list(accumulate((len(sentence.pieces) for sentence in (*self.sentences, self.asking)), initial=0))

    @cached_property
    def _ends(self) -> list[int]:
        """Indices in ``text`` of the ends of tokens."""
        return list(accumulate(map(len, self.tokens), initial=-1))

    def _sentences(self, start: int, stop: int) -> Stretch:
        return self._stretch(self._starts[start], self._starts[stop])

    def _stretch(self, start: int, stop: int) -> Stretch:
        """Return the stretch of ``tokens[start:stop]``, without the first blank; token 0 begins the text."""
        blank = self.tokens[start].startswith(" ")
        return Stretch(Span(self._ends[start] + blank, self._ends[stop]), range(start + 1, stop + 1))


# ------------------------------------------------------------------------------------------------------------- stories
def stories(
    split: Split = "train",
    *,
    seed: int = 0,
    facts: int = 6,
    rivals: int = 1,
    hops: Literal[1, 2] = 1,
    distractors: Where = "anywhere",
    filler: int = 0,
    voice: Voice | None = None,
    claim: bool = False,
    wordings: Wordings = "trained",
) -> Iterator[Story]:
    """Generate endless stories, the same for a seed on every platform.

    Args:
        split: the split; splits share no pair of (owner's thing, place) or (place, room).
        seed: the seed of the draws.
        facts: the number of facts of a story; a fact is about an owner's thing.
        rivals: the number of facts about the same thing of another owner. (Other things occur as often, as far as
            ``facts`` is a multiple of ``rivals + 1``.)
        hops: 1 asks for the place; 2 also tells the rooms of the places, and asks for the room.
        distractors: the place of the other facts: ``before`` the evidence, ``after`` it, ``around`` it (on both sides),
            or ``anywhere`` (the evidence is drawn like every other sentence).
        filler: the number of sentences that name no place.
        voice: state every fact in the active or the passive (None: in five wordings); with a voice, `Story.paraphrase`
            gives pairs of the two voices.
        claim: ask for the truth of a claim about the place.
        wordings: ``trained`` draws the wording of every sentence from the wordings that the demo model was trained on:
            15 templates with one hop. ``more`` gives every story a template of 64, in turn: the facts of a story have a
            single wording, and templates share no wording of a fact, so that evaluations do not hang on a few wordings.
    """
    check_choice("split", split, get_args(Split))
    check_choice("hops", hops, (1, 2))
    check_choice("distractors", distractors, get_args(Where))
    check_choice("voice", voice, (None, *get_args(Voice)))
    check_choice("wordings", wordings, get_args(Wordings))
    most = MOST_ROOMS if hops == 2 and split != "train" else MOST
    if not 2 <= facts <= most:
        raise ValueError(f"facts={facts} must be 2 to {most}, so that {split} stories with {hops=} can be made")
    if not 0 <= rivals < facts:
        raise ValueError(f"rivals={rivals} must be 0 to {facts - 1}: they are among the {facts=}")
    check_at_least("filler", filler, 0, whole=True)
    if claim and hops == 2:
        raise ValueError("claim=True is about one fact: give hops=1")
    if voice is not None and wordings == "more":
        raise ValueError(f"voice={voice!r} has no effect with wordings='more': give wordings='trained'")
    if distractors == "around" and (facts - 1) * hops < 2:
        raise ValueError("distractors='around' needs two sentences to stand around: give facts=3 or more")
    draw = Draw(f"{split} {seed}")

    def story(wording: Wording) -> Story:
        drawn, other = drawn_facts(draw, split, facts, rivals, hops, swapped=claim)
        sentences = [fact_sentence(draw, fact, wording.facts) for fact in drawn]
        rooms = [{"place": fact.place, "room": fact.room} for fact in drawn if hops == 2]
        located = [Sentence(draw.one(wording.locations), words) for words in rooms]
        evidence, rest = [sentences[0], *located[:1]], [*sentences[1:], *located[1:]]
        fillers = [filler_sentence(draw) for _ in range(filler)]
        order = tuple(_arranged(draw, evidence, rest, fillers, distractors))
        at = tuple(next(i for i, placed in enumerate(order) if placed is sentence) for sentence in evidence)
        if claim:
            first, rival, *_ = drawn  # the rival fact is about the same thing, if there are rivals
            true = draw.below(2) == 0
            asking = claim_about(first, first.place if true else rival.place, wording.claim)
            choices = tuple(f" {truth}" for truth in TRUTH.values())
            return Story(order, asking, at, " " + TRUTH[true], choices, rival.place)
        answers = [" " + (fact.room if hops == 2 else fact.place) for fact in drawn]
        asking = Sentence(draw.one(wording.questions), {"who": drawn[0].who, "what": drawn[0].what})
        return Story(order, asking, at, answers[0], tuple(sorted(answers)), other)

    return map(story, _wordings(draw, hops, voice, wordings))


class Wording(NamedTuple):
    """Shapes of the sentences of a story."""

    facts: tuple[str, ...]
    locations: tuple[str, ...]
    questions: tuple[str, ...]
    claim: str


def _wordings(draw: Draw, hops: int, voice: Voice | None, kind: Wordings) -> Iterator[Wording]:
    """Generate the wordings of successive stories; of ``more``, every wording in a random order, again and again."""
    if kind == "trained":
        facts = {None: FACTS, "active": (ACTIVE,), "passive": (PASSIVE,)}[voice]
        yield from repeat(Wording(facts, SENTENCE_LOCATIONS, QUESTIONS[hops], CLAIM))
    question = "question" if hops == 1 else "room_question"
    wordings = [Wording((row["fact"],), (row["location"],), (row[question],), row["claim"]) for row in WORDINGS]
    while True:
        yield from draw.shuffled(wordings)


def _arranged(
    draw: Draw,
    evidence: Sequence[Sentence],
    rest: Sequence[Sentence],
    fillers: Sequence[Sentence],
    distractors: Where,
) -> list[Sentence]:
    if distractors == "anywhere":
        return draw.shuffled([*evidence, *rest, *fillers])
    others = len(rest)
    behind = {"before": range(1), "after": range(others, others + 1), "around": range(1, others)}[distractors]
    facts, idle = draw.one([(facts, idle) for facts in behind for idle in range(len(fillers) + 1)])
    rest = draw.shuffled(rest)
    before, after = [*rest[facts:], *fillers[idle:]], [*rest[:facts], *fillers[:idle]]
    return [*draw.shuffled(before), *draw.shuffled(evidence), *draw.shuffled(after)]


# ----------------------------------------------------------------------------------------------------------- instances
def instances(split: Split = "test", *, seed: int = 0, count: int | None = None, **knobs: Any) -> Iterator[Instance]:
    """Generate stories to explain, with counterfactuals and paraphrases; endless without a ``count``.

    ``knobs`` are the options of `heta_lens.data.recall.stories`.
    """
    if count is not None:
        check_at_least("count", count, 0, whole=True)
    numbered = enumerate(islice(stories(split, seed=seed, **knobs), count))
    return (instance_of(story, f"recall-{split}-{seed}-{number:05d}") for number, story in numbered)


def instance_of(story: Story, id: str) -> Instance:
    """Return a story as an instance, with its counterfactual and its paraphrase."""
    others = {name: _alone(getattr(story, name), f"{id}-{name}") for name in OTHERS}
    return replace(_alone(story, id), **others)


def _alone(story: Story, id: str) -> Instance:
    told = {"support": story.evidence, "gold": story.gold, "distractor": story.distractor, "question": [story.question]}
    spans: dict[str, Any] = {name: tuple(part.characters for part in parts) for name, parts in told.items()}
    return Instance(id, story.text, story.answer, story.template, choices=story.choices, **spans)
