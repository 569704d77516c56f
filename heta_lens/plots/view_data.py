"""What the script of a page knows: values of every token as packed numbers, and which tokens belong together."""

import json
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from heta_lens._util.printable_text import single_line
from heta_lens.attribution import Attribution
from heta_lens.grouped_scores import Scored, ScoredMessage
from heta_lens.plots.score_formula import score_formula
from heta_lens.plots.token_cells import Cell

MEANINGS = {
    "score": "how much each token mattered",
    "gate": "the share of the attention-weighted value flow that comes from this token (M)",
    "curvature": "how strongly the second derivatives of the prediction depend on this embedding (S)",
    "information": "how far the prediction moves when this embedding is masked, in nats (I)",
}


class Shown(NamedTuple):
    """Values that a page can colour tokens by."""

    name: str
    values: Float[Tensor, "pos"]
    errors: Float[Tensor, "pos"] | None = None
    what: str = ""


def shown(attribution: Attribution) -> list[Shown]:
    """The scores, and the parts that they are made of, with their standard errors."""
    errors = attribution.standard_errors
    parts = [Shown(name, part, errors.get(name), MEANINGS.get(name, "")) for name, part in attribution.parts.items()]
    signs = "blue speaks for the target, orange against it" if attribution.signed else ""
    spread = "± is one standard error" if any(error is not None for error in errors.values()) else ""
    what = "; ".join(filter(None, [MEANINGS["score"], signs, spread, score_formula(attribution)]))
    return [Shown("score", attribution.scores, errors.get("scores"), what), *parts]


def page_data(
    attribution: Attribution,
    cells: Sequence[Cell],
    values: Sequence[Shown],
    hidden: Bool[Tensor, "pos"],
    marked: Collection[int] = (),
) -> dict[str, Any]:
    """What the script needs beside the tokens, which are on the page already."""
    positions = attribution.positions.tolist()
    return {
        "count": len(attribution),
        "positions": None if positions == [*range(len(positions))] else positions,
        "cells": None if len(cells) == len(attribution) else packed_counts([len(cell.rows) for cell in cells]),
        "values": [*map(_colouring, values)],
        "units": units(attribution),
        "first": [0] if positions[0] == 0 and not hidden[0] else [],
        "hidden": hidden.nonzero()[:, 0].tolist(),
        "hidden_name": "the chat template" if (hidden & attribution.template).any() else "special tokens",
        "marked": [row for row, position in enumerate(positions) if position in marked],
    }


def _colouring(own: Shown) -> dict[str, Any]:
    packs = {"values": _floats(own.values), "errors": _floats(own.errors)}
    return {"name": single_line(own.name), "what": own.what, **packs}


def units(attribution: Attribution) -> dict[str, dict[str, Any]]:
    """Of words, sentences and messages: which of them each token belongs to, and whose the messages are."""
    groups: dict[str, Sequence[Scored | ScoredMessage]] = {
        "words": attribution.by_word(),
        "sentences": attribution.by_sentence(),
    }
    if attribution.messages is not None:
        groups["messages"] = attribution.by_message()
    row_at = {position: row for row, position in enumerate(attribution.positions.tolist())}
    return {name: _unit(group, row_at) for name, group in groups.items() if name == "messages" or len(group) > 1}


def _unit(group: Sequence[Scored | ScoredMessage], row_at: Mapping[int, int]) -> dict[str, Any]:
    owners = np.zeros(len(row_at), int)
    for number, member in enumerate(group):
        owners[[row_at[position] for position in member.positions]] = number
    roles = [single_line(member.role) for member in group if isinstance(member, ScoredMessage)]
    return {"of": packed_counts(owners)} | ({"roles": roles} if roles else {})


def packed(values: Any) -> str:
    """Numbers in 32 bits each as text, of which a page makes the same numbers again."""
    return b64encode(np.asarray(values, np.dtype("<f4")).tobytes()).decode()


def packed_counts(values: Sequence[int] | NDArray[np.int_]) -> str:
    """Whole numbers in 16 bits each, or in 32 if any is larger."""
    counts = np.asarray(values)
    return b64encode(counts.astype("<u2" if counts.max(initial=0) < 2**16 else "<u4").tobytes()).decode()


def packed_halves(values: Any) -> str:
    """The same in 16 bits: three digits, which is what a page shows."""
    return b64encode(np.asarray(values, np.dtype("<f2")).tobytes()).decode()


def _floats(values: Float[Tensor, "pos"] | None) -> str | None:
    return None if values is None else packed(values.detach().cpu().float())


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script that it is in."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
