"""Long texts: sentences that hold most of the score are shown, and the stretches between are folded."""

from itertools import groupby

from heta_lens.attribution import Attribution
from heta_lens.plots.scales import percent

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


def folds(attribution: Attribution, *, special: bool = False) -> dict[range, str]:
    """Return the rows that a still view of a long text leaves out, and what it says in their place.

    The pieces with the largest sums of sizes are shown, and the last piece; hidden tokens do not count.
    """
    if len(attribution) <= LONG:
        return {}
    owners, sizes = pieces(attribution), dict[int, float]()
    shown = (attribution.scores.abs() * (~attribution.hidden | special)).tolist()
    for owner, size in zip(owners, shown, strict=True):
        sizes[owner] = sizes.get(owner, 0.0) + size
    whole, opened, held = sum(shown) or 1.0, {owners[-1]}, 0.0
    for piece in sorted(sizes, key=lambda piece: -sizes[piece])[:MOST]:
        if held < ENOUGH * whole:
            opened.add(piece)
            held += sizes[piece]
    found = dict[range, str]()
    for is_open, own in groupby(range(len(owners)), key=lambda row: owners[row] in opened):
        rows = [*own]
        if not is_open and len(rows) >= FEW:
            share = percent(sum(shown[row] for row in rows) / whole)
            found[range(rows[0], rows[-1] + 1)] = f"… {len(rows):,} tokens, {share}"
    return found
