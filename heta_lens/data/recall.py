"""Short stories with a question, and where in the story its answer is known from.

    Nina put the key in the drawer. Karl put the key in the trunk. Question: Where did Nina put the key? Answer: in the

Who has what is told once, every place is named once, and the sentence that counts is drawn and stands like every other
one. So owner and thing together tell the answer, and no position, wording or number of mentions does. (Knobs can give
that away: without rivals the thing alone tells, with rivals only the owner, and ``distractors`` and ``distance`` say
where the evidence stands.)
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, NamedTuple, TypeVar, get_args
from zlib import crc32

from heta_lens.data import wordings, words
from heta_lens.data.story import ACTIVE, CLAIM, PASSIVE, TRUTH, Sentence, Story

Split = Literal["train", "dev", "test"]
Where = Literal["anywhere", "before", "after", "around"]
Voice = Literal["active", "passive"]
Wordings = Literal["trained", "more"]
T = TypeVar("T")

FACTS = (
    ACTIVE,
    PASSIVE,
    "The {what} of {who} was {verb} in the {place} .",
    "In the {place} {who} {verb} the {what} .",
    "{who} had a {what} and {verb} it in the {place} .",
)
LOCATIONS = (
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
    "mood": words.MOODS,
    "time": words.TIMES,
    "sky": words.SKIES,
    "colour": words.COLOURS,
    "action": words.ACTIONS,
}
"""Words that tell of no place."""
SHAPES = (*FACTS, *LOCATIONS, *FILLERS, *QUESTIONS[1], *QUESTIONS[2], CLAIM)
MOST, MOST_ROOMS = 40, 20  # facts; with rooms to be drawn from the tenth of all pairs that a small split has
TRIES = 1000


class Draw:
    """Chance that is the same on every platform: only ``random()`` is promised never to change."""

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


class Fact(NamedTuple):
    who: str
    what: str
    place: str
    room: str
    """Where the place is (empty where nobody asks)."""


def split_of(*pair: str) -> Split:
    """To which split a pair belongs: (owner, thing, place) or (place, room)."""
    bucket = crc32(" ".join(pair).encode()) % 10
    return "test" if bucket == 9 else "dev" if bucket == 8 else "train"


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
    """Stories without end; the same seed gives the same ones on every platform.

    Args:
        split: no two splits share a pair of (owner's thing, place) or (place, room).
        facts: how many owners' things are told of.
        rivals: how many of them are the same thing of another owner. (Other things are told of as often, as far as
            ``facts`` is a multiple of ``rivals + 1``.)
        hops: 1 asks for the place; 2 also says in which room each place is, and asks for the room.
        distractors: where the other facts stand: ``before`` the evidence, ``after`` it, ``around`` it (some on each
            side), or ``anywhere`` (the evidence is drawn like any other sentence).
        filler: sentences that tell of no place.
        distance: how many sentences stand between the evidence and the question (None: as drawn).
        voice: tell all facts in the active or the passive (None: in five ways); with it, `Story.paraphrase` makes
            pairs of one voice and the other.
        claim: ask whether a claim about the place is true.
        wordings: ``trained`` draws the wording of each sentence from the few that the demo model was trained on, which
            makes 15 templates with one hop. ``more`` gives each story one of the 64 templates of
            `heta_lens.data.wordings`, in turn: all its facts are told alike, and no two templates have a wording of a
            fact in common, so that evaluations do not hang on a few of them.
    """
    wanted = _Wanted(split, facts, rivals, hops, distractors, filler, distance, voice, claim, wordings)
    return _told_without_end(Draw(f"{split} {seed}"), wanted)


@dataclass(frozen=True)
class _Wanted:
    """What `stories` was asked for; what cannot be is refused."""

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
            raise ValueError(f"facts={facts} must be 2 to {most}, so that {split} stories with {hops=} can be told")
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
        """What each story, one after the other, is worded in."""
        if self.wordings == "trained":
            facts = {None: FACTS, "active": (ACTIVE,), "passive": (PASSIVE,)}[self.voice]
            return repeat(_Wording(facts, LOCATIONS, QUESTIONS[self.hops], CLAIM))
        return _in_turn(draw, [_wording(number, self.hops) for number in range(len(wordings.WORDINGS))])


class _Wording(NamedTuple):
    """What the sentences of one story are drawn from."""

    facts: tuple[str, ...]
    locations: tuple[str, ...]
    questions: tuple[str, ...]
    claim: str


def _wording(number: int, hops: int) -> _Wording:
    """One wording of each kind: of facts and their questions there are most, and the others come round again."""
    fact, question = wordings.WORDINGS[number]
    location, room, claim = (
        some[number % len(some)] for some in (wordings.LOCATIONS, wordings.ROOM_QUESTIONS, wordings.CLAIMS)
    )
    return _Wording((fact,), (location,), (question if hops == 1 else room,), claim)


def _in_turn(draw: Draw, items: Sequence[T]) -> Iterator[T]:
    """Without end: all of them in a random order, then all in another."""
    while True:
        yield from draw.shuffled(items)


def _told_without_end(draw: Draw, wanted: _Wanted) -> Iterator[Story]:
    for wording in wanted.wording_of_each(draw):
        told, other = tell(draw, wanted.split, wanted.facts, wanted.rivals, wanted.hops, swapped=wanted.claim)
        sentences = [fact_sentence(draw, fact, wording.facts) for fact in told]
        located = [location_sentence(draw, fact, wording.locations) for fact in told] if wanted.hops == 2 else []
        evidence = [sentences[0], *located[:1]]
        rest = [*sentences[1:], *located[1:]]
        blanks = [filler_sentence(draw) for _ in range(wanted.filler)]
        order = tuple(_arranged(draw, evidence, rest, blanks, wanted.distractors, wanted.distance))
        at = tuple(next(place for place, one in enumerate(order) if one is sentence) for sentence in evidence)
        yield (_claimed if wanted.claim else _asked)(draw, order, at, told, other, wording)


def tell(
    draw: Draw,
    split: Split,
    facts: int,
    rivals: int,
    hops: int,
    owners: int | None = None,
    swapped: bool = False,
) -> tuple[list[Fact], str]:
    """Facts of one story, the first of which is asked about, and what its twin answers.

    ``swapped``: the first two are still of this split with each other's place.
    """
    # Owners have several things and things several owners, so neither alone tells the place.
    owners = max(rivals + 1, facts // 2) if owners is None else owners
    for _ in range(TRIES):
        told, other = _told(draw, split, facts, rivals, hops, owners, swapped)
        if other:
            return told, other
    raise ValueError(f"{facts=} are too many for distinct places in the {split} split with {hops=}")


def _told(
    draw: Draw, split: Split, facts: int, rivals: int, hops: int, owners: int, swapped: bool
) -> tuple[list[Fact], str]:
    """One attempt; nothing where a pair of this split is wanting."""
    known = draw.some(words.NAMES, owners)
    things = iter(draw.shuffled(words.OBJECTS))
    pairs: list[tuple[str, str]] = []
    while len(pairs) < facts:
        thing = next(things)
        pairs += [(owner, thing) for owner in draw.some(known, min(rivals + 1, facts - len(pairs)))]
    told: list[Fact] = []
    places, rooms = draw.shuffled(words.PLACES), draw.shuffled(words.ROOMS)
    if swapped:
        shared = [one for one in places if all(split_of(*pair, one) == split for pair in pairs[:2])][:2]
        if len(shared) < 2:
            return [], ""
        places.sort(key=lambda one: one not in shared)
    for who, what in pairs:
        place = _fitting(places, split, who, what)
        room = _fitting(rooms, split, place) if hops == 2 else ""
        if not place or (hops == 2 and not room):
            return [], ""
        told.append(Fact(who, what, place, room))
    first = told[0]
    return told, _fitting(rooms, split, first.place) if hops == 2 else _fitting(places, split, first.who, first.what)


def _fitting(left: list[str], split: Split, *entity: str) -> str:
    """The first word left that makes a pair of this split, taken out; empty when there is none."""
    found = next((one for one in left if split_of(*entity, one) == split), "")
    if found:
        left.remove(found)
    return found


def fact_sentence(draw: Draw, fact: Fact, shapes: Sequence[str] = FACTS) -> Sentence:
    verb, shape = draw.one(words.VERBS), draw.one(shapes)
    # Without a verb of its own, what it would be told with otherwise: the paraphrase has one.
    slots = {"who": fact.who, "what": fact.what, "place": fact.place, "verb": verb if "{verb}" in shape else "put"}
    return Sentence(shape, slots | {slot: draw.one(some) for slot, some in IDLE.items() if f"{{{slot}}}" in shape})


def location_sentence(draw: Draw, fact: Fact, shapes: Sequence[str] = LOCATIONS) -> Sentence:
    return Sentence(draw.one(shapes), {"place": fact.place, "room": fact.room})


def filler_sentence(draw: Draw) -> Sentence:
    who, friend = draw.some(words.NAMES, 2)
    lists = {"what": words.OBJECTS} | IDLE
    return Sentence(draw.one(FILLERS), {"who": who, "friend": friend} | {k: draw.one(v) for k, v in lists.items()})


def question(draw: Draw, fact: Fact, shapes: Sequence[str]) -> Sentence:
    return Sentence(draw.one(shapes), {"who": fact.who, "what": fact.what})


def claim_about(fact: Fact, place: str, shape: str = CLAIM) -> Sentence:
    return Sentence(shape, {"who": fact.who, "what": fact.what, "place": place})


def _arranged(
    draw: Draw,
    evidence: Sequence[Sentence],
    rest: Sequence[Sentence],
    blanks: Sequence[Sentence],
    distractors: Where,
    distance: int | None,
) -> list[Sentence]:
    if distractors == "anywhere":
        if distance is None:
            return draw.shuffled([*evidence, *rest, *blanks])
        *early, last = draw.shuffled(evidence)
        others = draw.shuffled([*rest, *blanks])
        cut = len(others) - distance
        return [*draw.shuffled([*early, *others[:cut]]), last, *others[cut:]]
    ways = [(k, b) for k in _behind(distractors, len(rest)) for b in range(len(blanks) + 1)]
    k, b = draw.one([way for way in ways if distance in (None, sum(way))])
    rest = draw.shuffled(rest)
    before, behind = [*rest[k:], *blanks[b:]], [*rest[:k], *blanks[:b]]
    return [*draw.shuffled(before), *draw.shuffled(evidence), *draw.shuffled(behind)]


def _behind(distractors: Where, others: int) -> range:
    """How many of the other sentences may stand behind the evidence."""
    ends = {"before": (0, 0), "after": (others, others), "around": (1, others - 1), "anywhere": (0, others)}
    first, last = ends[distractors]
    return range(first, last + 1)


def _asked(
    draw: Draw, order: tuple[Sentence, ...], at: tuple[int, ...], told: Sequence[Fact], other: str, wording: _Wording
) -> Story:
    choices = [fact.room if len(at) == 2 else fact.place for fact in told]
    shown = tuple(" " + one for one in sorted(choices))
    return Story(order, question(draw, told[0], wording.questions), at, " " + choices[0], shown, other)


def _claimed(
    draw: Draw, order: tuple[Sentence, ...], at: tuple[int, ...], told: Sequence[Fact], _: str, wording: _Wording
) -> Story:
    asked, rival, *_rest = told  # the second has the same thing, where there are rivals
    true = draw.below(2) == 0
    asking = claim_about(asked, asked.place if true else rival.place, wording.claim)
    return Story(order, asking, at, " " + TRUTH[true], tuple(" " + one for one in TRUTH.values()), rival.place)
