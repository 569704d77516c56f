"""Short stories with a question whose answer, and its place in the story, are known.

    Nina put the key in the drawer. Karl put the key in the trunk. Question: Where did Nina put the key? Answer: in the

Every fact is stated once, every place is named once, and the evidence is drawn and placed like every other sentence. So
owner and thing together determine the answer, and no position, wording or number of mentions does. (Options can give it
away: without rivals the thing alone determines it, with rivals only the owner, and ``distractors`` and ``distance`` fix
where the evidence stands.)
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, islice, repeat
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from zlib import crc32

from heta_lens._util.options import check_count
from heta_lens._util.text import Span
from heta_lens.data.instance import OTHERS, Instance

# ----------------------------------------------------------------------------------------------------- portable random
# Random draws that are the same on every platform.


T = TypeVar("T")


class Draw:
    """Draws from a seed by ``random()`` alone, the only generator that Python promises never to change."""

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


# -------------------------------------------------------------------------------------------------------- recall words
# What the recall stories are made of. No word stands in two lists, and every word is one token of the demo model.


def _split(text: str) -> list[str]:
    return text.split()


NAMES = _split("""
Ada Adam Alba Amir Amy Anna Anton Aria Ben Bella Carl Cleo Clara Dan Dora Elsa Emil Emma Enzo Eva Felix Finn Flora Gus
Hana Henry Hugo Ida Ines Iris Ivan Jack Jane Jonas Julia Kai Karl Lara Lena Leo Lily Lina Luca Lucy Luis Maja Marc
Maria Max Mia Milo Mina Nick Nina Noah Nora Olga Omar Oscar Paul Pia Ravi Rosa Ruth Sam Sara Sofia Theo Tim Tom Vera
Victor Will Yara Zoe
""")

OBJECTS = _split("""
apple ball bell belt bone book bottle bracelet brush button cake camera candle cap card carrot coat coin comb compass
cookie crown cup diary dice doll drum feather flute fork glove hammer hat helmet horn kite key knife ladder lamp lemon
letter lock magnet map marble mask medal mirror mug nail needle orange paddle paper pearl pen pencil phone photo
puppet purse radio ribbon ring rope ruler scarf shell shirt shoe soap sock spoon stamp stone sweater sword ticket
torch towel toy umbrella vase wallet watch whistle wig
""")

PLACES = _split("""
backpack bag barrel basin basket bathtub bin briefcase boat bookcase bowl box bucket cabinet cage carriage cart case
casket chest cooler cradle crib cooker crate cupboard closet drawer dresser envelope fireplace folder freezer fridge
hamper jar kettle locker mailbox oven pan pocket pot pouch rucksack sack safe satchel sink suitcase tank tent tin tray
trolley trunk tub van wagon wardrobe
""")

ROOMS = _split("""
attic bakery ballroom barn basement bathroom bedroom cabin cafe cave cellar chapel church classroom corridor courtyard
factory garage garden greenhouse gym hall hospital kitchen laboratory library lobby lounge market museum nursery
office palace pantry park prison school shed shop stable station studio study temple theater tower warehouse workshop
""")

VERBS = _split("put left placed kept stored dropped")
MOODS = _split("happy sad tired hungry proud calm angry busy bored brave curious quiet shy sleepy glad nervous")
TIMES = _split("morning evening afternoon night day summer winter week")
SKIES = _split("warm cold windy rainy sunny cloudy foggy bright dark stormy")
COLOURS = _split("red blue green yellow black white brown pink golden silver")
ACTIONS = _split("sang danced slept laughed waited smiled rested cooked walked painted worked read")


# -------------------------------------------------------------------------------------------------------- recall facts
# The facts of recall stories: who put what where, with no pair shared between splits.


Split = Literal["train", "dev", "test"]

TRIES = 1000


class Fact(NamedTuple):
    who: str
    what: str
    place: str
    room: str
    """Where the place is (empty where nobody asks)."""


def split_of(*pair: str) -> Split:
    """The split of a pair: (owner, thing, place) or (place, room)."""
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
    """Facts of one story, the first of which is asked about, and the counterfactual's answer.

    ``swapped``: the first two also belong to this split with each other's place.
    """
    # Owners have several things and things several owners, so neither alone tells the place.
    owners = max(rivals + 1, facts // 2) if owners is None else owners
    for _ in range(TRIES):
        drawn, other = _attempt(draw, split, facts, rivals, hops, owners, swapped)
        if other:
            return drawn, other
    raise ValueError(f"{facts=} are too many for distinct places in the {split} split with {hops=}")


def _attempt(
    draw: Draw, split: Split, facts: int, rivals: int, hops: int, owners: int, swapped: bool
) -> tuple[list[Fact], str]:
    """One attempt; nothing where this split lacks a pair."""
    known = draw.some(NAMES, owners)
    things = iter(draw.shuffled(OBJECTS))
    pairs: list[tuple[str, str]] = []
    while len(pairs) < facts:
        thing = next(things)
        pairs += [(owner, thing) for owner in draw.some(known, min(rivals + 1, facts - len(pairs)))]
    drawn: list[Fact] = []
    places, rooms = draw.shuffled(PLACES), draw.shuffled(ROOMS)
    if swapped:
        shared = [place for place in places if all(split_of(*pair, place) == split for pair in pairs[:2])][:2]
        if len(shared) < 2:
            return [], ""
        places.sort(key=lambda place: place not in shared)
    for who, what in pairs:
        place = _fitting(places, split, who, what)
        room = _fitting(rooms, split, place) if hops == 2 else ""
        if not place or (hops == 2 and not room):
            return [], ""
        drawn.append(Fact(who, what, place, room))
    first = drawn[0]
    return drawn, _fitting(rooms, split, first.place) if hops == 2 else _fitting(places, split, first.who, first.what)


def _fitting(left: list[str], split: Split, *entity: str) -> str:
    """The first word left that makes a pair of this split, taken out; empty when there is none."""
    word = next((word for word in left if split_of(*entity, word) == split), "")
    if word:
        left.remove(word)
    return word


# -------------------------------------------------------------------------------------------------------- recall story
# A story with a question: its text, its tokens, and which of them tell the answer.


ACTIVE = "{who} {verb} the {what} in the {place} ."
PASSIVE = "The {what} was {verb} in the {place} by {who} ."
CLAIM = "Claim : The {what} of {who} is in the {place} . True or false ? Answer :"
TRUTH = {True: "true", False: "false"}
PUNCTUATION = ".:?"
CARRIES = {"who", "what", "place", "room"}


class Stretch(NamedTuple):
    """A part of a story: its characters in the text, and its tokens in ``[beginning of text, word, word, …]``."""

    characters: Span
    tokens: range


@dataclass(frozen=True)
class Sentence:
    """A shape and the words that fill it."""

    shape: str
    slots: Mapping[str, str]

    @cached_property
    def pieces(self) -> list[tuple[str, str]]:
        """Its tokens, each with the name of the slot it fills (empty for the shape's own words)."""
        return [self._piece(word) for word in self.shape.split()]

    def _piece(self, word: str) -> tuple[str, str]:
        if word in PUNCTUATION:
            return word, ""
        slot = word[1:-1] if word.startswith("{") else ""
        return " " + (self.slots[slot] if slot else word), slot

    def renamed(self, names: Mapping[str, str]) -> "Sentence":
        """The same sentence about other places."""
        return replace(self, slots={slot: names.get(word, word) for slot, word in self.slots.items()})


@dataclass(frozen=True)
class Story:
    """A prompt that ends where its answer should be written.

    ``evidence`` are the sentences that tell the answer (one per hop), ``gold`` the words in them that carry it (owner,
    thing, place, room), ``distractor`` the rest of the story, ``question`` all that comes after it. (That a claim is
    false can also be seen from the sentence that names the claimed place, which counts as a distractor.)
    """

    sentences: tuple[Sentence, ...]
    asking: Sentence
    evidence_at: tuple[int, ...]
    answer: str
    choices: tuple[str, ...]
    """What the answer is one of: the places of its kind that the story names; true and false for a claim."""
    other: str
    """The place or room that the counterfactual's evidence names."""

    @cached_property
    def tokens(self) -> list[str]:
        """The text, token by token."""
        return [piece for sentence in (*self.sentences, self.asking) for piece, _ in sentence.pieces]

    @cached_property
    def text(self) -> str:
        return "".join(self.tokens).removeprefix(" ")

    @property
    def template(self) -> str:
        """The wordings of the question and of the evidence; stories that share them are not independent."""
        return " / ".join([self.asking.shape, *(self.sentences[at].shape for at in self.evidence_at)])

    @property
    def evidence(self) -> tuple[Stretch, ...]:
        return tuple(self._stretch(at, at + 1) for at in self.evidence_at)

    @property
    def gold(self) -> tuple[Stretch, ...]:
        starts = [(self._starts[at], self.sentences[at].pieces) for at in self.evidence_at]
        positions = [start + i for start, pieces in starts for i, (_, slot) in enumerate(pieces) if slot in CARRIES]
        return tuple(self._tokens(at, at + 1) for at in positions)

    @property
    def distractor(self) -> tuple[Stretch, ...]:
        """One stretch where the evidence stands at an end of the story, more where it stands within."""
        groups = groupby(range(len(self.sentences)), lambda at: at in self.evidence_at)
        runs = [list(run) for is_evidence, run in groups if not is_evidence]
        return tuple(self._stretch(run[0], run[-1] + 1) for run in runs)

    @property
    def question(self) -> Stretch:
        return self._stretch(len(self.sentences), len(self.sentences) + 1)

    @cached_property
    def counterfactual(self) -> "Story":
        """The counterfactual: the evidence names another place (or room), so that the answer changes and nothing else.

        For a claim, two places are swapped, so that each is still named once: true becomes false, and false true.
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
        """The same content: the first sentence of the evidence in the passive (or in the active, if it was passive).

        Stories of ``voice="active"`` make pairs of active and passive.
        """
        first = min(self.evidence_at, key=lambda at: "who" not in self.sentences[at].slots)
        changed = list(self.sentences)
        changed[first] = replace(changed[first], shape=ACTIVE if changed[first].shape == PASSIVE else PASSIVE)
        return replace(self, sentences=tuple(changed))

    def _renamed(self, names: Mapping[str, str], at: Collection[int]) -> tuple[Sentence, ...]:
        """The sentences, with other places in some of them."""
        return tuple(one.renamed(names) if here in at else one for here, one in enumerate(self.sentences))

    @cached_property
    def _starts(self) -> list[int]:
        """Where in ``tokens`` each sentence begins."""
        return list(accumulate((len(sentence.pieces) for sentence in (*self.sentences, self.asking)), initial=0))

    @cached_property
    def _ends(self) -> list[int]:
        """Where in ``text`` each piece ends."""
        return list(accumulate(map(len, self.tokens), initial=-1))

    def _stretch(self, start: int, stop: int) -> Stretch:
        return self._tokens(self._starts[start], self._starts[stop])

    def _tokens(self, start: int, stop: int) -> Stretch:
        """Pieces ``[start, stop)``; the blank before a word is not part of it, and token 0 begins the text."""
        blank = self.tokens[start].startswith(" ")
        return Stretch(Span(self._ends[start] + blank, self._ends[stop]), range(start + 1, stop + 1))


# ---------------------------------------------------------------------------------------------------- recall sentences
# The sentences of recall stories: their shapes, and how words are drawn for them.


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
IDLE = {
    "mood": MOODS,
    "time": TIMES,
    "sky": SKIES,
    "colour": COLOURS,
    "action": ACTIONS,
}
"""Words that name no place."""
SHAPES = (*FACTS, *SENTENCE_LOCATIONS, *FILLERS, *QUESTIONS[1], *QUESTIONS[2], CLAIM)


def fact_sentence(draw: Draw, fact: Fact, shapes: Sequence[str] = FACTS) -> Sentence:
    verb, shape = draw.one(VERBS), draw.one(shapes)
    # A shape without a verb gets the default one: its paraphrase has a verb.
    slots = {"who": fact.who, "what": fact.what, "place": fact.place, "verb": verb if "{verb}" in shape else "put"}
    return Sentence(shape, slots | {slot: draw.one(words) for slot, words in IDLE.items() if f"{{{slot}}}" in shape})


def location_sentence(draw: Draw, fact: Fact, shapes: Sequence[str] = SENTENCE_LOCATIONS) -> Sentence:
    return Sentence(draw.one(shapes), {"place": fact.place, "room": fact.room})


def filler_sentence(draw: Draw) -> Sentence:
    who, friend = draw.some(NAMES, 2)
    lists = {"what": OBJECTS} | IDLE
    return Sentence(
        draw.one(FILLERS), {"who": who, "friend": friend} | {slot: draw.one(words) for slot, words in lists.items()}
    )


def question(draw: Draw, fact: Fact, shapes: Sequence[str]) -> Sentence:
    return Sentence(draw.one(shapes), {"who": fact.who, "what": fact.what})


def claim_about(fact: Fact, place: str, shape: str = CLAIM) -> Sentence:
    return Sentence(shape, {"who": fact.who, "what": fact.what, "place": place})


# ----------------------------------------------------------------------------------------------------- recall wordings
# More wordings of the facts and questions of `heta_lens.data.recall`, in words that the demo model knows.
#
# It was not trained on these wordings, and answers them like those it was trained on; each was chosen by its answers on
# the dev split (``benchmarks/demo_model`` has those on the test split). A story has one wording throughout, so no two
# of
# these templates share a wording of a fact or of a question, and templates are independent.


WORDINGS = (
    ("{who} {verb} the {what} in the {place} .", "Claim : {who} put the {what} in the"),
    (
        "The {what} was {verb} in the {place} by {who} .",
        "Question : Where was the {what} put that {who} had ? Answer : in the",
    ),
    ("The {what} of {who} was {verb} in the {place} .", "Claim : It was {who} that put the {what} in the"),
    ("In the {place} {who} {verb} the {what} .", "Question : Where was the {what} of {who} kept ? Answer : in the"),
    (
        "{who} had a {what} and {verb} it in the {place} .",
        "Question : Where is the {what} put by {who} ? Answer : in the",
    ),
    ("The {what} that {who} {verb} was in the {place} .", "The {what} of {who} was put in the"),
    (
        "It was {who} that {verb} the {what} in the {place} .",
        "Question : Where was the {what} put by {who} ? Answer : in the",
    ),
    (
        "It was the {what} of {who} that was {verb} in the {place} .",
        "Question : Where was a {what} put by {who} ? Answer : in the",
    ),
    (
        "The {what} that {who} had was {verb} in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : {who} put the {what} in the",
    ),
    ("{who} liked the {what} and {verb} it in the {place} .", "{who} put the {what} in the"),
    (
        "{who} was there and {verb} the {what} in the {place} .",
        "Where was the {what} put by {who} ? {who} put it in the",
    ),
    ("{who} did put the {what} in the {place} .", "True : {who} put the {what} in the"),
    ("It is true that the {what} of {who} was {verb} in the {place} .", "Answer : {who} put the {what} in the"),
    ("It was the {what} that {who} {verb} in the {place} .", "Where did {who} put the {what} ? {who} put it in the"),
    (
        "{who} had a {what} that was {verb} in the {place} .",
        "Question : Where was the {what} that {who} left ? Answer : in the",
    ),
    ("It is in the {place} that {who} {verb} the {what} .", "It is true that {who} put the {what} in the"),
    ("It is true that {who} {verb} the {what} in the {place} .", "It was {who} that put the {what} in the"),
    (
        "It is true that the {what} was {verb} in the {place} by {who} .",
        "Question : Where had {who} put the {what} ? Answer : in the",
    ),
    (
        "The {colour} {what} of {who} was {verb} in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : The {what} that {who} put is in the",
    ),
    (
        "{who} {verb} the {what} in the {place} that {time} .",
        "Question : Where was it that {who} left the {what} ? Answer : in the",
    ),
    (
        "{who} {verb} the {what} in the {place} and {action} .",
        "Question : Where did {who} put the {what} ? Answer : The {what} of {who} is in the",
    ),
    (
        "{who} {verb} the {what} in the {place} and was {mood} .",
        "Question : Where did {who} put the {what} ? Answer : {who} left it in the",
    ),
    (
        "{who} {verb} the {what} in the {place} and {action} all {time} .",
        "Where was the {what} of {who} put ? Answer : in the",
    ),
    (
        "{who} {action} all {time} and {verb} the {what} in the {place} .",
        "Where was the {what} put by {who} ? Answer : in the",
    ),
    (
        "The {what} of {who} was {verb} in the {place} that {time} .",
        "Question : Where was the {what} stored by {who} ? Answer : in the",
    ),
    (
        "{who} had a {what} and {verb} it in the {place} that {time} .",
        "Question : Where was the {what} that {who} put ? Answer : in the",
    ),
    (
        "The {time} was {sky} and {who} {verb} the {what} in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : {who} put it in the",
    ),
    ("It was a {sky} {time} and {who} {verb} the {what} in the {place} .", "Claim : The {what} of {who} is in the"),
    (
        "It was {sky} that {time} and {who} {verb} the {what} in the {place} .",
        "Where did {who} put the {what} ? in the",
    ),
    (
        "It was a {sky} {time} and the {what} of {who} was {verb} in the {place} .",
        "Question : Where did {who} put the {what} ? in the",
    ),
    ("In the {time} {who} {verb} the {what} in the {place} .", "The {what} put by {who} is in the"),
    (
        "In the {time} the {what} of {who} was {verb} in the {place} .",
        "Answer : It was {who} that put the {what} in the",
    ),
    (
        "{who} talked about the {what} and {verb} it in the {place} .",
        "Question : Where did {who} put the {what} ? Answer : in the",
    ),
    (
        "It was the {colour} {what} that {who} {verb} in the {place} .",
        "Question : Where was the {what} of {who} put ? Answer : The {what} of {who} was put in the",
    ),
    ("It was a {what} that {who} {verb} in the {place} .", "It is true that the {what} of {who} is in the"),
    (
        "It is true that {who} had a {what} and {verb} it in the {place} .",
        "Question : Where was the {what} of {who} put ? Answer : in the",
    ),
    ("It is true that in the {place} {who} {verb} the {what} .", "Answer : The {what} of {who} is in the"),
    (
        "It is true that it was {who} that {verb} the {what} in the {place} .",
        "Question : Where was it that {who} put the {what} ? Answer : in the",
    ),
    (
        "It is true that the {what} {who} had was {verb} in the {place} .",
        "Question : Where was the {what} that was put by {who} ? Answer : in the",
    ),
    (
        "{who} {action} that {time} and {verb} the {what} in the {place} .",
        "Where did {who} put the {what} ? Answer : in the",
    ),
    (
        "{who} had {verb} the {what} in the {place} .",
        "Question : Where was the {what} put by {who} ? Answer : {who} put the {what} in the",
    ),
    (
        "{who} was {mood} and {verb} the {what} in the {place} .",
        "Question : Where was the {what} of {who} put ? in the",
    ),
    (
        "It was a {sky} {time} and the {what} was {verb} in the {place} by {who} .",
        "Question : Where was the {what} put by {who} ? in the",
    ),
    (
        "In the {time} the {what} was {verb} in the {place} by {who} .",
        "Question : {who} put the {what} ? Answer : in the",
    ),
    (
        "The {what} that {who} {verb} in the {place} was {colour} .",
        "Question : Where is the {what} of {who} stored ? Answer : in the",
    ),
    (
        "{who} {action} and {verb} the {what} in the {place} .",
        "Question : Where is the {what} {who} put ? Answer : in the",
    ),
    ("{who} looked for the {what} and {verb} it in the {place} .", "The {what} that {who} put is in the"),
    (
        "The {colour} {what} was {verb} in the {place} by {who} .",
        "Question : Where did {who} put that {what} ? Answer : in the",
    ),
    ("The {what} of {who} was in the {place} .", "Claim : {who} had the {what} in the"),
    ("In the {place} {who} had a {what} .", "Question : Where is the {what} of {who} ? Answer : in the"),
    ("{who} had a {what} in the {place} .", "The {what} that {who} had is in the"),
    ("The {what} of {who} stands in the {place} .", "Question : Where was the {what} {who} had ? Answer : in the"),
    ("{who} had a {what} in the {place} that {time} .", "Where was the {what} of {who} ? in the"),
    (
        "The {time} was {sky} and {who} had a {what} in the {place} .",
        "Question : Where is that {what} of {who} ? Answer : in the",
    ),
    (
        "It was a {sky} {time} and {who} had a {what} in the {place} .",
        "Question : Where is the {what} of {who} ? Answer : The {what} of {who} is in the",
    ),
    (
        "In the {time} {who} had a {what} in the {place} .",
        "Question : Where stands the {what} of {who} ? Answer : in the",
    ),
    ("The {what} that {who} had was in the {place} .", "The {what} of {who} was in the"),
    ("It was the {what} of {who} that was in the {place} .", "Question : The {what} of {who} ? Answer : in the"),
    (
        "It was {who} that had a {what} in the {place} .",
        "Question : Where is the {what} that {who} had ? Answer : in the",
    ),
    (
        "It is true that {who} had a {what} in the {place} .",
        "Question : Where was the {what} of {who} ? Answer : in the",
    ),
    ("It is true that the {what} of {who} was in the {place} .", "Where is the {what} of {who} ? It is in the"),
    ("{who} was {mood} and had a {what} in the {place} .", "Where is the {what} of {who} ? Answer : in the"),
    ("The {what} of {who} was in the {place} that {time} .", "True : The {what} of {who} is in the"),
    ("The {what} of {who} was in the {place} all {time} .", "{who} had the {what} in the"),
)
"""How each story tells its facts and, with one hop, asks for one."""

LOCATIONS = (
    "The {place} is in the {room} .",
    "The {place} stands in the {room} .",
    "In the {room} there is the {place} .",
    "The {place} was in the {room} .",
    "It is true that the {place} is in the {room} .",
    "The {place} stands there in the {room} .",
)

ROOM_QUESTIONS = (
    "Question : In which room is the {what} of {who} ? Answer : in the",
    "Question : Which room holds the {what} of {who} ? Answer : in the",
    "Question : In which room was the {what} of {who} ? Answer : in the",
    "Question : In which room was the {what} of {who} put ? Answer : in the",
    "Question : In which room is the {what} that {who} put ? Answer : in the",
    "Question : In which room is the {what} {who} put ? Answer : in the",
    "Question : In which room is the {what} that {who} had ? Answer : in the",
    "Question : In which room did {who} put the {what} ? Answer : in the",
    "Question : In which room was the {what} put by {who} ? Answer : in the",
    "Question : In which room is the {what} put by {who} ? Answer : in the",
    "Question : In which room stands the {what} of {who} ? Answer : in the",
    "Question : Which room holds the {what} that {who} put ? Answer : in the",
    "Question : Which room holds the {what} {who} had ? Answer : in the",
    "Question : Which room holds the {what} put by {who} ? Answer : in the",
    "Question : Which room had the {what} of {who} ? Answer : in the",
    "Question : In which room is that {what} of {who} ? Answer : in the",
    "Question : In which room is the {what} of {who} kept ? Answer : in the",
    "Question : In which room is the {what} of {who} stored ? Answer : in the",
)

CLAIMS = (
    "Claim : The {what} of {who} is in the {place} . True or false ? Answer :",
    "The {what} of {who} is in the {place} . True or false ? Answer :",
    "Claim : The {what} of {who} stands in the {place} . True or false ? Answer :",
    "Question : The {what} of {who} is in the {place} . True or false ? Answer :",
)


Where = Literal["anywhere", "before", "after", "around"]
Voice = Literal["active", "passive"]
Wordings = Literal["trained", "more"]

MOST, MOST_ROOMS = 40, 20  # facts; with rooms to be drawn from the tenth of all pairs that a small split has


def stories(
    split: Split = "train",
    *,
    seed: int = 0,
    facts: int = 6,
    rivals: int = 1,
    hops: Literal[1, 2] = 1,
    distractors: Where = "anywhere",
    filler: int = 0,
    distance: int | None = None,
    voice: Voice | None = None,
    claim: bool = False,
    wordings: Wordings = "trained",
) -> Iterator[Story]:
    """Endless stories; the same seed gives the same ones on every platform.

    Args:
        split: no two splits share a pair of (owner's thing, place) or (place, room).
        facts: how many facts a story has, each about one owner's thing.
        rivals: how many of them are about the same thing of another owner. (Other things occur as often, as far as
            ``facts`` is a multiple of ``rivals + 1``.)
        hops: 1 asks for the place; 2 also says in which room each place is, and asks for the room.
        distractors: where the other facts stand: ``before`` the evidence, ``after`` it, ``around`` it (some on each
            side), or ``anywhere`` (the evidence is drawn like any other sentence).
        filler: how many sentences name no place.
        distance: how many sentences stand between the evidence and the question (None: as drawn).
        voice: state all facts in the active or the passive (None: in five wordings); with it, `Story.paraphrase` gives
            pairs of the two voices.
        claim: ask whether a claim about the place is true.
        wordings: ``trained`` draws the wording of each sentence from the few that the demo model was trained on, which
            makes 15 templates with one hop. ``more`` gives each story one of the 64 templates of
            `heta_lens.data.recall`, in turn: all its facts have one wording, and no two templates share a
            wording of a fact, so that evaluations do not depend on a few of them.
    """
    request = StoryOptions(split, facts, rivals, hops, distractors, filler, distance, voice, claim, wordings)
    return _endless(Draw(f"{split} {seed}"), request)


@dataclass(frozen=True)
class StoryOptions:
    """The options of `stories`, checked together."""

    split: Split
    facts: int
    rivals: int
    hops: Literal[1, 2]
    distractors: Where
    filler: int
    distance: int | None
    voice: Voice | None
    claim: bool
    wordings: Wordings

    def __post_init__(self) -> None:
        kinds = {"split": Split, "hops": Literal[1, 2], "distractors": Where, "voice": Voice, "wordings": Wordings}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value not in get_args(kind) and not (name == "voice" and value is None):
                raise ValueError(f"{name}={value!r} is not one of {', '.join(map(str, get_args(kind)))}")
        split, facts, hops = self.split, self.facts, self.hops
        most = MOST_ROOMS if hops == 2 and split != "train" else MOST
        if not 2 <= facts <= most:
            raise ValueError(f"facts={facts} must be 2 to {most}, so that {split} stories with {hops=} can be made")
        if not 0 <= self.rivals < facts:
            raise ValueError(f"rivals={self.rivals} must be 0 to {facts - 1}: they are among the {facts=}")
        if self.filler < 0:
            raise ValueError(f"filler={self.filler} must be 0 or more")
        if self.claim and hops == 2:
            raise ValueError("claim=True is about one fact: give hops=1")
        if self.voice is not None and self.wordings == "more":
            raise ValueError(f"voice={self.voice!r} has no effect with wordings='more': give wordings='trained'")
        behind = _behind(self.distractors, (facts - 1) * hops)
        if not behind:
            raise ValueError("distractors='around' needs two sentences to stand around: give facts=3 or more")
        nearest, furthest = behind[0], behind[-1] + self.filler
        if self.distance is not None and not nearest <= self.distance <= furthest:
            raise ValueError(
                f"distance={self.distance} must be {nearest} to {furthest} with {facts=}, {hops=}, "
                f"distractors={self.distractors!r}, filler={self.filler}"
            )

    def wording_of_each(self, draw: Draw) -> Iterator["_Wording"]:
        """The wordings of one story after the other."""
        if self.wordings == "trained":
            facts = {None: FACTS, "active": (ACTIVE,), "passive": (PASSIVE,)}[self.voice]
            return repeat(_Wording(facts, SENTENCE_LOCATIONS, QUESTIONS[self.hops], CLAIM))
        return _in_turn(draw, [_wording(number, self.hops) for number in range(len(WORDINGS))])


class _Wording(NamedTuple):
    """The shapes that the sentences of one story are drawn from."""

    facts: tuple[str, ...]
    locations: tuple[str, ...]
    questions: tuple[str, ...]
    claim: str


def _wording(number: int, hops: int) -> _Wording:
    """One wording of each kind; there are most of facts and their questions, so that the others repeat."""
    fact, question = WORDINGS[number]
    location, room, claim = (wordings[number % len(wordings)] for wordings in (LOCATIONS, ROOM_QUESTIONS, CLAIMS))
    return _Wording((fact,), (location,), (question if hops == 1 else room,), claim)


def _in_turn(draw: Draw, items: Sequence[T]) -> Iterator[T]:
    """Endless: all of them in a random order, then all in another."""
    while True:
        yield from draw.shuffled(items)


def _endless(draw: Draw, options: StoryOptions) -> Iterator[Story]:
    for wording in options.wording_of_each(draw):
        facts, other = drawn_facts(
            draw, options.split, options.facts, options.rivals, options.hops, swapped=options.claim
        )
        sentences = [fact_sentence(draw, fact, wording.facts) for fact in facts]
        located = [location_sentence(draw, fact, wording.locations) for fact in facts] if options.hops == 2 else []
        evidence = [sentences[0], *located[:1]]
        rest = [*sentences[1:], *located[1:]]
        fillers = [filler_sentence(draw) for _ in range(options.filler)]
        order = tuple(_arranged(draw, evidence, rest, fillers, options.distractors, options.distance))
        at = tuple(next(place for place, placed in enumerate(order) if placed is each) for each in evidence)
        yield (_with_claim if options.claim else _with_question)(draw, order, at, facts, other, wording)


def _arranged(
    draw: Draw,
    evidence: Sequence[Sentence],
    rest: Sequence[Sentence],
    fillers: Sequence[Sentence],
    distractors: Where,
    distance: int | None,
) -> list[Sentence]:
    if distractors == "anywhere":
        if distance is None:
            return draw.shuffled([*evidence, *rest, *fillers])
        *early, last = draw.shuffled(evidence)
        others = draw.shuffled([*rest, *fillers])
        cut = len(others) - distance
        return [*draw.shuffled([*early, *others[:cut]]), last, *others[cut:]]
    ways = [(k, b) for k in _behind(distractors, len(rest)) for b in range(len(fillers) + 1)]
    k, b = draw.one([way for way in ways if distance in (None, sum(way))])
    rest = draw.shuffled(rest)
    before, behind = [*rest[k:], *fillers[b:]], [*rest[:k], *fillers[:b]]
    return [*draw.shuffled(before), *draw.shuffled(evidence), *draw.shuffled(behind)]


def _behind(distractors: Where, others: int) -> range:
    """How many of the other sentences may stand behind the evidence."""
    ends = {"before": (0, 0), "after": (others, others), "around": (1, others - 1), "anywhere": (0, others)}
    first, last = ends[distractors]
    return range(first, last + 1)


def _with_question(
    draw: Draw, order: tuple[Sentence, ...], at: tuple[int, ...], facts: Sequence[Fact], other: str, wording: _Wording
) -> Story:
    choices = [fact.room if len(at) == 2 else fact.place for fact in facts]
    shown = tuple(" " + choice for choice in sorted(choices))
    return Story(order, question(draw, facts[0], wording.questions), at, " " + choices[0], shown, other)


def _with_claim(
    draw: Draw, order: tuple[Sentence, ...], at: tuple[int, ...], facts: Sequence[Fact], _: str, wording: _Wording
) -> Story:
    first, rival, *_rest = facts  # the second has the same thing, where there are rivals
    true = draw.below(2) == 0
    asking = claim_about(first, first.place if true else rival.place, wording.claim)
    return Story(order, asking, at, " " + TRUTH[true], tuple(f" {truth}" for truth in TRUTH.values()), rival.place)


# ------------------------------------------------------------------------------------------------- recall as instances
# The stories of `heta_lens.data.recall` as instances.


def instances(split: Split = "test", *, seed: int = 0, count: int | None = None, **knobs: Any) -> Iterator[Instance]:
    """Stories to explain, each with its counterfactual and its paraphrase; endless, if ``count`` is None.

    ``knobs`` are those of `heta_lens.data.recall.stories`.
    """
    if count is not None:
        check_count("count", count, 0)
    numbered = enumerate(islice(stories(split, seed=seed, **knobs), count))
    return (instance_of(story, f"recall-{split}-{seed}-{number:05d}") for number, story in numbered)


def instance_of(story: Story, id: str) -> Instance:
    """A story as an instance, with its counterfactual and its paraphrase."""
    others = {name: _alone(getattr(story, name), f"{id}-{name}") for name in OTHERS}
    return replace(_alone(story, id), **others)


def _alone(story: Story, id: str) -> Instance:
    return Instance(
        id=id,
        text=story.text,
        answer=story.answer,
        template=story.template,
        support=tuple(stretch.characters for stretch in story.evidence),
        gold=tuple(stretch.characters for stretch in story.gold),
        distractor=tuple(stretch.characters for stretch in story.distractor),
        question=(story.question.characters,),
        choices=story.choices,
    )
