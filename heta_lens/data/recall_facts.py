"""The facts of recall stories: who put what where, with no pair shared between splits."""

from typing import Literal, NamedTuple
from zlib import crc32

from heta_lens.data import recall_words
from heta_lens.data.portable_random import Draw

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
    known = draw.some(recall_words.NAMES, owners)
    things = iter(draw.shuffled(recall_words.OBJECTS))
    pairs: list[tuple[str, str]] = []
    while len(pairs) < facts:
        thing = next(things)
        pairs += [(owner, thing) for owner in draw.some(known, min(rivals + 1, facts - len(pairs)))]
    drawn: list[Fact] = []
    places, rooms = draw.shuffled(recall_words.PLACES), draw.shuffled(recall_words.ROOMS)
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
