"""Short stories with a question whose answer, and its place in the story, are known.

    Nina put the key in the drawer. Karl put the key in the trunk. Question: Where did Nina put the key? Answer: in the

Every fact is stated once, every place is named once, and the evidence is drawn and placed like every other sentence. So
owner and thing together determine the answer, and no position, wording or number of mentions does. (Options can give it
away: without rivals the thing alone determines it, with rivals only the owner, and ``distractors`` and ``distance`` fix
where the evidence stands.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, NamedTuple, TypeVar, get_args

from heta_lens.data import recall_wordings
from heta_lens.data.portable_random import Draw
from heta_lens.data.recall_facts import Fact, Split, drawn_facts
from heta_lens.data.recall_sentences import (
    FACTS,
    LOCATIONS,
    QUESTIONS,
    claim_about,
    fact_sentence,
    filler_sentence,
    location_sentence,
    question,
)
from heta_lens.data.recall_story import ACTIVE, CLAIM, PASSIVE, TRUTH, Sentence, Story

Where = Literal["anywhere", "before", "after", "around"]
Voice = Literal["active", "passive"]
Wordings = Literal["trained", "more"]
T = TypeVar("T")

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
            `heta_lens.data.recall_wordings`, in turn: all its facts have one wording, and no two templates share a
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
            return repeat(_Wording(facts, LOCATIONS, QUESTIONS[self.hops], CLAIM))
        return _in_turn(draw, [_wording(number, self.hops) for number in range(len(recall_wordings.WORDINGS))])


class _Wording(NamedTuple):
    """The shapes that the sentences of one story are drawn from."""

    facts: tuple[str, ...]
    locations: tuple[str, ...]
    questions: tuple[str, ...]
    claim: str


def _wording(number: int, hops: int) -> _Wording:
    """One wording of each kind; there are most of facts and their questions, so that the others repeat."""
    fact, question = recall_wordings.WORDINGS[number]
    location, room, claim = (
        wordings[number % len(wordings)]
        for wordings in (recall_wordings.LOCATIONS, recall_wordings.ROOM_QUESTIONS, recall_wordings.CLAIMS)
    )
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
