"""The sentences of recall stories: their shapes, and how words are drawn for them."""

from collections.abc import Sequence

from heta_lens.data import recall_words
from heta_lens.data.portable_random import Draw
from heta_lens.data.recall_facts import Fact
from heta_lens.data.recall_story import ACTIVE, CLAIM, PASSIVE, Sentence

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
    "mood": recall_words.MOODS,
    "time": recall_words.TIMES,
    "sky": recall_words.SKIES,
    "colour": recall_words.COLOURS,
    "action": recall_words.ACTIONS,
}
"""Words that name no place."""
SHAPES = (*FACTS, *LOCATIONS, *FILLERS, *QUESTIONS[1], *QUESTIONS[2], CLAIM)


def fact_sentence(draw: Draw, fact: Fact, shapes: Sequence[str] = FACTS) -> Sentence:
    verb, shape = draw.one(recall_words.VERBS), draw.one(shapes)
    # A shape without a verb gets the default one: its paraphrase has a verb.
    slots = {"who": fact.who, "what": fact.what, "place": fact.place, "verb": verb if "{verb}" in shape else "put"}
    return Sentence(shape, slots | {slot: draw.one(words) for slot, words in IDLE.items() if f"{{{slot}}}" in shape})


def location_sentence(draw: Draw, fact: Fact, shapes: Sequence[str] = LOCATIONS) -> Sentence:
    return Sentence(draw.one(shapes), {"place": fact.place, "room": fact.room})


def filler_sentence(draw: Draw) -> Sentence:
    who, friend = draw.some(recall_words.NAMES, 2)
    lists = {"what": recall_words.OBJECTS} | IDLE
    return Sentence(
        draw.one(FILLERS), {"who": who, "friend": friend} | {slot: draw.one(words) for slot, words in lists.items()}
    )


def question(draw: Draw, fact: Fact, shapes: Sequence[str]) -> Sentence:
    return Sentence(draw.one(shapes), {"who": fact.who, "what": fact.what})


def claim_about(fact: Fact, place: str, shape: str = CLAIM) -> Sentence:
    return Sentence(shape, {"who": fact.who, "what": fact.what, "place": place})
