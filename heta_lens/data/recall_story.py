"""A story with a question: its text, its tokens, and which of them tell the answer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

from heta_lens._util.text_spans import Span

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
