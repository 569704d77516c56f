"""Tokens as coloured text, with a title, an answer and notes, for `figures` and `latex`; and folds of long texts.

Sentences that hold most of the score are shown, and the stretches between are folded, in `terminal` and pages too.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from heta_lens.attribution import Attribution
from heta_lens.plots.scales import ColouredScores, Shade, percent_of, shade_of, share_note, tint
from heta_lens.plots.titles_and_notes import headline, in_vain, kicker, predicted, scale_name, search_note
from heta_lens.span_attribution import SpanAttribution


@dataclass(frozen=True)
class ColouredText(ColouredScores):
    """A text to colour, and the tokens of a span's answer, ``written``, which follow.

    ``scale`` names the numbers that the colours stand for, ``marked`` are rows of evidence, ``note`` is a line on the
    evidence, and ``framed`` are the numbers of the tokens that are explained, among those of the text and the answer.
    """

    title: str
    scale: str
    written: tuple[str, ...]
    marked: frozenset[int]
    note: str
    framed: frozenset[int]

    @classmethod
    def of(
        cls,
        result: Attribution | SpanAttribution,
        marked: Collection[int] = (),
        note: str = "",
        *,
        special: bool = False,
    ) -> "ColouredText":
        """Return the coloured text of a result with evidence at the ``marked`` positions and a note on the evidence."""
        scored = result.summed
        title = f"{headline(scored)}   {kicker(scored)}"
        written, framed = (), frozenset[int]()
        if isinstance(result, SpanAttribution):
            written = tuple(result.tokens[result.start :])
            framed = frozenset(len(scored) + len(step) - result.start for step in result.steps)
        rows = frozenset(row for row, position in enumerate(scored.positions.tolist()) if position in marked)
        signs = "blue for the target, orange against it"
        signs = "blue above 0, orange below; the sign predicts no effect" if in_vain(scored) else signs
        meaning = signs if scored.signed else "no direction"
        scale, note = f"{scale_name(result)}, {meaning}", note or ("underlined: evidence" if rows else "")
        return cls(scored, special, title, scale, written, rows, note, framed)

    @cached_property
    def folds(self) -> dict[range, str]:
        return folds(self.attribution, self.marked, special=self.special)

    @property
    def tints(self) -> list[Shade]:
        """The light colour of each token, under black text."""
        folded = {row for rows in self.folds for row in rows}
        return [tint(shade_of(0.0 if row in folded else depth)) for row, depth in enumerate(self.depths)]

    @property
    def notes(self) -> list[str]:
        """Lines on facts that the colours do not show: a score beyond the scale, and the frame."""
        scored, framed = self.attribution, "framed: the answer that is explained" if self.written else ""
        known = share_note(scored), search_note(scored), scored.diagnostics.note
        return [*filter(None, [self.beyond, framed, *known, self.note])]

    @property
    def all_tokens(self) -> tuple[str, ...]:
        """The tokens, with a note for each folded stretch, and the tokens of the answer."""
        tokens = [*self.attribution.tokens]
        for rows, line in self.folds.items():
            tokens[rows.start : rows.stop] = [f" [{line}]", *[""] * (len(rows) - 1)]
        return (*tokens, *self.written)

    @property
    def answer(self) -> str:
        """The target after the text, with the target's probability; empty for a span, which ends with the targets."""
        sides = [" ".join(filter(None, side)) for side in predicted(self.attribution).targets]
        return "" if self.written else f" → {' rather than '.join(sides)}"


def without_space(text: str) -> str:
    """Return a text without the spaces before it, which no view colours; spaces alone stay."""
    return text.lstrip(" ") or text


# ----------------------------------------------------------------------------------------------------------- long texts
LONG = 300  # tokens: a shorter text is shown whole
PIECE = 60  # tokens of a sentence: a longer one is cut
ENOUGH, MOST = 0.8, 12  # of the score, and of pieces, that are shown
FEW = 20  # tokens: a shorter stretch is not folded


def pieces(attribution: Attribution) -> list[int]:
    """Return for every row the number of its sentence, or of a part of a long sentence, in the order of the text."""
    sentence_at = {
        position: number for number, sentence in enumerate(attribution.by_sentence()) for position in sentence.positions
    }
    sentences, found, start, piece = [sentence_at[place] for place in attribution.positions.tolist()], list[int](), 0, 0
    for row, token in enumerate(attribution.tokens):
        if token.strip() and (sentences[row] != sentences[start] or row - start >= PIECE):  # white space ends a piece
            start, piece = row, piece + 1
        found.append(piece)
    return found


def folds(attribution: Attribution, marked: Collection[int] = (), *, special: bool = False) -> dict[range, str]:
    """Return the rows that a still view of a long text leaves out, and what it says in their place.

    The pieces with the largest sums of sizes are shown, the last piece, and those of ``marked`` rows; hidden tokens do
    not count.
    """
    if len(attribution) <= LONG:
        return {}
    owners, sizes = pieces(attribution), dict[int, float]()
    shown = (attribution.scores.abs() * (~attribution.hidden | special)).tolist()
    for owner, size in zip(owners, shown, strict=True):
        sizes[owner] = sizes.get(owner, 0.0) + size
    opened, held = {owners[-1], *(owners[row] for row in marked)}, 0.0
    for piece in sorted(sizes, key=lambda piece: -sizes[piece])[:MOST]:
        if held < ENOUGH * sum(shown):
            opened.add(piece)
            held += sizes[piece]
    found = dict[range, str]()
    for is_open, own in groupby(range(len(owners)), key=lambda row: owners[row] in opened):
        rows = [*own]
        if not is_open and len(rows) >= FEW:
            share = percent_of(attribution.scores, sum(shown[row] for row in rows))
            found[range(rows[0], rows[-1] + 1)] = f"… {len(rows):,} tokens, {share}"
    return found
