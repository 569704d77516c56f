"""Effects of masking every token of a long context with few runs: spans are masked as wholes, and the spans that matter
are divided.

Inside a span, tokens for and against the target cancel each other. So the search goes by how far masking a span moves
the whole prediction, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import Divergence
from heta_lens._util.text import members, sentences
from heta_lens.model.batching import Batches
from heta_lens.prediction.masking import Mask, MaskedEffects, masked_effects
from heta_lens.prediction.prediction import Prediction

# Chosen against exact effects on prompts of benchmarks/long_prompts.py, of the split dev. Equal shares leave sums over
# sentences as they were measured.
FIRST = 1 / 3  # of the runs are for the first spans, at most
TOGETHER = 1 / 16  # of the runs that are left: how many spans are divided at once, so that batches stay full
SHORT = 4  # tokens: shorter spans are divided into single tokens at once


@dataclass(frozen=True, eq=False)
class TokenEffects:
    """The effects of masking each token: of a token that was masked alone its own, else an equal share of its span's.

    The spans ``together`` were masked as wholes and not divided: their start and stop, and how far masking them moves
    the prediction. None: there was no search.
    """

    effects: MaskedEffects
    together: tuple[tuple[int, int, float], ...] | None


def effects_of_tokens(
    predictions: Sequence[Prediction],
    mask: Mask,
    divergence: Divergence,
    batches: Batches,
    forwards: int | None,
    *,
    floor: bool = False,
) -> list[TokenEffects]:
    """Mask every token alone, or with fewer ``forwards`` the tokens of the spans that move a prediction most.

    ``predictions`` are of one prompt, shorter contexts first, and share the runs. With a ``floor``, effects that are no
    larger than rounding are 0, of spans as well.
    """
    longest = predictions[-1]
    if forwards is None or (forwards >= len(longest) and longest.prompt.chat is None):
        every = masked_effects(predictions, mask, divergence, batches=batches, floor=floor)
        rows = zip(predictions, *every, strict=True)
        return [TokenEffects(MaskedEffects(*(own[: len(one)] for own in rest)), None) for one, *rest in rows]
    found: dict[range, Float[Tensor, "kind target"]] = {}

    def measure(parts: Sequence[range]) -> None:
        parts = sorted(parts, key=attrgetter("start"))
        effects = masked_effects(predictions, mask, divergence, batches=batches, parts=parts)
        found.update(zip(parts, torch.stack(effects).unbind(-1), strict=True))

    def priority(part: range) -> tuple[bool, float]:  # the prompt first, and then what was written before later targets
        return part.start < len(predictions[0]), float(found[part].abs().max()) / len(part) ** 0.5

    nothing, first = range(0), first_spans(longest, int(FIRST * forwards))  # masking nothing shows the rounding
    if sum(map(len, first)) + floor <= forwards:  # of a chat, without its template
        first = [range(place, place + 1) for part in first for place in part]
    measure([nothing] * floor + first)
    left = forwards - len(found)
    rounding = found.pop(nothing).abs() if floor else None
    while left > 1 and (whole := sorted((part for part in found if len(part) > 1), key=priority, reverse=True)):
        divided = list[range]()
        for part in whole[: max(1, int(TOGETHER * left))]:
            if left - len(divided) > 1:
                divided += pieces(part, left - len(divided))
                del found[part]
        measure(divided)
        left -= len(divided)
    if rounding is not None:
        found = {part: own.masked_fill(own.abs() <= rounding, 0) for part, own in found.items()}
    return [shared_out(found, number, prediction) for number, prediction in enumerate(predictions)]


def shared_out(found: Mapping[range, Tensor], target: int, prediction: Prediction) -> TokenEffects:
    """Share the effects of spans on a target out to the tokens of its context."""
    length, together = len(prediction), list[tuple[int, int, float]]()
    each = prediction.logits.new_zeros(len(MaskedEffects._fields), length)
    for start, stop, own in sorted((part.start, min(part.stop, length), own[:, target]) for part, own in found.items()):
        each[:, start:stop] = own[:, None] / max(1, stop - start)
        together += [(start, stop, float(own[0]))] * (stop - start > 1)
    return TokenEffects(MaskedEffects(*each), tuple(together))


def pieces(part: range, most: int) -> list[range]:
    """Divide a span into single tokens if it is short, and else into halves, which are two pieces at least."""
    middle = (part.start + part.stop) // 2
    alone = [range(place, place + 1) for place in part]
    return alone if len(part) <= min(SHORT, most) else [range(part.start, middle), range(middle, part.stop)]


def first_spans(prediction: Prediction, most: int) -> list[range]:
    """Return the sentences and lines of a context as spans of positions, joined to ``most`` spans if possible.

    Special tokens stand alone, no span goes beyond a chat's message, and a chat template's tokens are in no span. A
    text that is one sentence is divided into equal pieces.
    """
    (text, offsets), chat, length = prediction.located, prediction.prompt.chat, len(prediction)
    special = np.array(prediction.tokenizer.special(prediction.ids.tolist()))
    messages = np.zeros(length, dtype=int) if chat is None else np.array(chat.owners[:length])
    apart = np.where(special & (messages >= 0), length + np.arange(length), messages)
    ends = sentences(text)
    if len(ends) < 2:
        ends = [*pairwise(np.linspace(0, len(text), max(1, most) + 1, dtype=int).tolist())]
    owners = members(text, offsets, ends, np.zeros(length, dtype=bool)).argmax(0)
    changes = np.flatnonzero((np.diff(apart) != 0) | (np.diff(owners) != 0)) + 1
    spans = [range(*ends) for ends in pairwise([0, *changes.tolist(), length]) if apart[ends[0]] >= 0]
    size = length / max(1, most)
    while len(spans) > most and size < 2 * length:
        size *= 1.25
        joined = spans[:1]
        for span in spans[1:]:
            before = joined[-1]
            touches = before.stop == span.start and apart[before.start] == apart[span.start]
            if touches and span.stop - before.start <= size:
                joined[-1] = range(before.start, span.stop)
            else:
                joined.append(span)
        spans = joined
    return spans


def check_forwards(prediction: Prediction, forwards: int | None, *, floor: bool = False) -> None:
    """Refuse fewer runs than there are spans that cannot be joined; a ``floor`` takes another run."""
    if forwards is None or forwards >= len(prediction):
        return
    least = len(first_spans(prediction, 1)) + floor
    if forwards < least:
        raise ValueError(f"forwards={forwards} are too few for the messages and special tokens: give {least} or more")
