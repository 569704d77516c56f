"""What the demo model is taught, in this order.

Binding an owner and a thing to a place is hard to find for a small model: with whole sentences from the first step it
stays at guessing among the places named. So it first learns to repeat what followed a name, or a thing; then the words
between are put in one after the other, until a whole sentence stands there; then owners and things together tell the
place; then questions, other wordings, rooms, claims, and long stories.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heta_lens.data.recall import (
    ACTIVE,
    FACTS,
    MOST_ROOMS,
    QUESTIONS,
    SENTENCE_LOCATIONS,
    TRUTH,
    WORDS,
    Draw,
    Fact,
    Sentence,
    claim_about,
    drawn_facts,
    filler_sentence,
    split_of,
)

ALL = 99  # rivals: everything told of is the same thing, each of another owner
CLOZE = "{who} put the {what} in the"
NEARLY = "Question : {who} put the {what} ? Answer : in the"
LOCATED = "Question : In which room is the {place} ? Answer : in the"


@dataclass(frozen=True)
class Lesson:
    """The shapes of facts and questions; pairs of numbers are ranges, ends included."""

    facts: tuple[str, ...]
    questions: tuple[str, ...]
    count: tuple[int, int] = (2, 8)
    rivals: tuple[int, int] = (0, 3)
    one_owner: float = 0.0  # the share of stories in which one owner has everything, so that only the thing decides
    things: tuple[str, str] | None = None  # the shapes of facts and questions about things, if different
    rooms: float = 0.0  # the share of stories with rooms, and of questions about rooms in these stories
    asks_room: bool = False  # facts are of places and their rooms alone
    located: float = 0.0  # the share of questions about rooms that name the place
    claims: float = 0.0  # the share of questions that are claims
    filler: tuple[int, int] = (0, 0)
    asked: int = 8  # questions a story
    tokens: int = 1500  # tokens a step, about
    enough: float = 0.93  # the running share of right answers that passes the lesson


@dataclass(frozen=True)
class Question:
    pieces: list[str]
    answer: str
    place: str  # the place of the thing, which must be found on the way to any answer


@dataclass(frozen=True)
class Page:
    """A story and questions about it, each read as if it were the only question."""

    story: list[str]
    questions: list[Question]

    def __len__(self) -> int:
        return 1 + len(self.story) + sum(2 + len(question.pieces) for question in self.questions)


def _keys(between: str, count: tuple[int, int]) -> Lesson:
    """Return a lesson of owners in half the stories, and things in the others, with words in between."""
    who, what = "{who}" + between, "{what}" + between
    things = (f"{what} {{place}} .", what)
    return Lesson((f"{who} {{place}} .",), (who,), count, (ALL, ALL), one_owner=0.5, things=things)


def _grown(cloze: str) -> Lesson:
    """Return a lesson in which owner or thing decides, in a sentence with both."""
    return Lesson((f"{cloze} {{place}} .",), (cloze,), rivals=(ALL, ALL), one_owner=0.5)


def _asking(*questions: str) -> Lesson:
    return Lesson((ACTIVE,), questions, (2, 4))


def _locations(facts: tuple[str, ...], question: str, count: tuple[int, int] = (2, 8)) -> Lesson:
    return Lesson(facts, (question,), count, asks_room=True)


_rooms = Lesson(FACTS, QUESTIONS[1], rooms=0.7, tokens=2500)
_claims = replace(_rooms, claims=0.4, filler=(0, 3))

LESSONS = {
    "two keys": _keys("", (2, 2)),
    "few keys": _keys("", (2, 4)),
    "keys": _keys("", (2, 8)),
    "key the": _keys(" the", (2, 8)),
    "key in the": _keys(" in the", (2, 8)),
    "who what in the": _grown("{who} {what} in the"),
    "who put what in the": _grown("{who} put {what} in the"),
    "sentences": _grown(CLOZE),
    "owner and thing": Lesson((ACTIVE,), (CLOZE,), (2, 4), (0, 2), one_owner=0.2),
    "owners and things": Lesson((ACTIVE,), (CLOZE,)),
    "without a verb": _asking("{who} {what} in the"),
    "with a question mark": _asking("{who} {what} in the", "Question : {who} {what} ? in the"),
    "with an answer": _asking("Question : {who} {what} ? Answer : in the", NEARLY),
    "a question": _asking(NEARLY, QUESTIONS[1][0]),
    "questions": _asking(*QUESTIONS[1]),
    "more facts": Lesson((ACTIVE,), QUESTIONS[1], tokens=2000),
    "every wording": Lesson(FACTS, QUESTIONS[1], tokens=2500),
    "place room": _locations(("{place} {room} .",), "{place}", (2, 2)),
    "places, rooms": _locations(("{place} {room} .",), "{place}"),
    "place the room": _locations(("{place} the {room} .",), "{place} the"),
    "place in the room": _locations(("{place} in the {room} .",), "{place} in the"),
    "locations": _locations(SENTENCE_LOCATIONS[:1], "The {place} is in the"),
    "every location": _locations(SENTENCE_LOCATIONS, LOCATED),
    "where places are": replace(_rooms, count=(2, 4), located=1.0),
    "two rooms": replace(_rooms, count=(2, 2), located=0.3),
    "few rooms": replace(_rooms, count=(2, 4), located=0.1),
    "rooms": _rooms,
    "two claims": replace(_claims, count=(2, 3)),
    "claims": _claims,
    "longer stories": replace(_claims, claims=0.2, count=(4, 20), filler=(0, 20), asked=16, tokens=3000, enough=0.85),
    "long stories": replace(_claims, claims=0.2, count=(4, 40), filler=(0, 80), asked=24, tokens=4096),
}
LAST = ("claims", "longer stories", "long stories")
"""The lessons that are practised at the end."""


def page(draw: Draw, lesson: Lesson) -> Page:
    """Return a story of the training split, with questions about facts drawn with replacement."""
    count = _between(draw, lesson.count)
    rivals = min(_between(draw, lesson.rivals), count - 1)
    rooms = (draw.random() < lesson.rooms and count <= MOST_ROOMS) or lesson.asks_room
    alone = draw.random() < lesson.one_owner
    facts, _ = drawn_facts(draw, "train", count, 0 if alone else rivals, 2 if rooms else 1, owners=1 if alone else None)
    fact_shapes, question_shapes = lesson.facts, lesson.questions
    if alone and lesson.things:
        fact_shapes, question_shapes = ((shape,) for shape in lesson.things)
    sentences = [
        *(_sentence(draw, fact_shapes, fact) for fact in facts),
        *(_sentence(draw, SENTENCE_LOCATIONS, fact) for fact in facts if rooms and not lesson.asks_room),
        *(filler_sentence(draw) for _ in range(_between(draw, lesson.filler))),
    ]
    story = [piece for sentence in draw.shuffled(sentences) for piece, _ in sentence.pieces]
    return Page(story, [_question(draw, facts, question_shapes, lesson, rooms) for _ in range(lesson.asked)])


def _question(draw: Draw, facts: Sequence[Fact], shapes: Sequence[str], lesson: Lesson, rooms: bool) -> Question:
    fact = draw.one(facts)
    # A claim, true or not, is of the training split; a false one is most often of the same thing.
    others = [one for one in facts if one != fact and split_of(fact.who, fact.what, one.place) == "train"]
    if draw.random() < lesson.claims and others:
        near = [one for one in others if one.what == fact.what]
        wrong = draw.one(near if near and draw.random() < 0.75 else others)
        true = draw.random() < 0.5
        return _posed(claim_about(fact, (fact if true else wrong).place), TRUTH[true], fact.place)
    if rooms and draw.random() < lesson.rooms:
        room_shapes = (LOCATED,) if draw.random() < lesson.located else QUESTIONS[2]
        return _posed(_sentence(draw, room_shapes, fact), fact.room, fact.place)
    return _posed(_sentence(draw, shapes, fact), fact.room if lesson.asks_room else fact.place, fact.place)


def _posed(sentence: Sentence, answer: str, place: str) -> Question:
    return Question([piece for piece, _ in sentence.pieces], " " + answer, " " + place)


def _sentence(draw: Draw, shapes: Sequence[str], fact: Fact) -> Sentence:
    return Sentence(draw.one(shapes), fact._asdict() | {"verb": draw.one(WORDS["verb"])})


def _between(draw: Draw, ends: tuple[int, int]) -> int:
    return ends[0] + draw.below(ends[1] - ends[0] + 1)
