"""The highest scores as bars with their confidence intervals, for a paper."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.extras import check_extra, extra
from heta_lens._util.html_view import View
from heta_lens._util.options import check_at_least, check_choice
from heta_lens.attribution import Attribution
from heta_lens.plots.colours import BLUE, ORANGE
from heta_lens.plots.figure_files import INK, NEEDED_BY, QUIET, drawable, looks, named, picture
from heta_lens.plots.score_formula import score_terms
from heta_lens.plots.shares import held, scaling
from heta_lens.span_attribution import SpanAttribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # slow to import, and an extra

BarOrder: TypeAlias = Literal["score", "text"]

WIDTH, ROW = 5.6, 0.2  # inches
LEAST_SHARE = 0.01  # of the score: a part that makes up less has no bar to be seen
PART_COLOURS = {"curvature": "#2f6f62", "information": "#b9d9cf"}


def bars(
    attribution: Attribution | SpanAttribution,
    top: int = 20,
    confidence: float = 0.95,
    *,
    order: BarOrder = "score",
    special: bool = False,
) -> View:
    """The scores of largest size as bars, the highest on top; a notebook shows it, and ``.save("bars.pdf")`` keeps it.

    ``order="text"`` has the same tokens as they come in the text. Scores that have standard errors are drawn with
    their confidence intervals. A score that is M·(βS + γI) with two parts that count is shown with the share of each.
    A span has the scores of all of its targets together. Special tokens and a chat template's are left out, except with
    ``special=True``. Files: SVG, PNG, PDF, and CSV of all tokens.
    """
    check_at_least("top", top, 1, whole=True)
    check_choice("order", order, get_args(BarOrder))
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be between 0 and 1")
    check_extra("matplotlib", NEEDED_BY)
    shown = attribution.summed
    csv = {".csv": lambda: attribution.to_frame().to_csv(index=False)}
    rows = _rows(shown, top, order, ~shown.hidden | special)
    return picture(attribution.title, lambda: _figure(shown, rows, confidence, special=special), csv)


def _rows(attribution: Attribution, top: int, order: BarOrder, shown: Bool[Tensor, "pos"]) -> list[int]:
    """Which tokens have a bar, from the top down."""
    largest = attribution.scores.abs().argsort(descending=True, stable=True)
    largest = largest[shown[largest]][:top].sort().values
    if order == "score":
        largest = largest[attribution.scores[largest].argsort(descending=True, stable=True)]
    return largest.tolist()


def _figure(attribution: Attribution, rows: Sequence[int], confidence: float, *, special: bool) -> Figure:
    labels, title = [named(attribution.tokens[row]) for row in rows], drawable(attribution.title)
    terms = terms_of(attribution)
    with looks([title, *labels]):
        size = (WIDTH, ROW * len(rows) + (1.3 if terms else 1.05))
        figure = extra("matplotlib.figure", NEEDED_BY).Figure(figsize=size, layout="constrained")
        widths = [3, 1] if terms else [1]
        left, *right = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
        figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
        _tokens(left, labels, attribution.positions[rows].tolist())
        _bars(left, attribution, rows, confidence)
        _scale(left, attribution, rows, scaling(attribution, special=special)[rows])
        for axes in right:
            _shares(axes, terms, rows)
        count = len(attribution) if special else int((~attribution.hidden).sum())
        note = drawable("; ".join(filter(None, [_note(len(rows), count), held(attribution)])))
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=QUIET)
    return figure


def _note(shown: int, count: int) -> str:
    return f"the {shown} of {count} tokens with the largest scores" if shown < count else f"all {count} tokens"


def _scale(axes: Axes, attribution: Attribution, rows: Sequence[int], inside: Bool[Tensor, "row"]) -> None:
    """An axis up to the largest score ``inside``, where there is one; a bar that goes beyond ends in its number."""
    scores = attribution.scores[rows]
    if inside.all() or not inside.any():
        return
    ends = scores[inside].tolist()
    low, high = min(0.0, *ends) * 1.15, max(0.0, *ends) * 1.15
    axes.set_xlim(low, high)
    for row in (~inside).nonzero()[:, 0].tolist():
        score = float(scores[row])
        where, side = (high, "right") if score > 0 else (low, "left")
        axes.text(where, row, f"{score:.3g}", ha=side, va="center", color="white", fontsize=7)


def _tokens(axes: Axes, labels: Sequence[str], places: Sequence[int]) -> None:
    """Each token by its bar, and between them where it is in the text: apart, so that no script turns it around."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, pad=10 + 5 * len(str(max(places))))
    where = axes.get_yaxis_transform()
    for row, place in enumerate(places):
        axes.annotate(
            str(place), (0, row), (-5, 0), where, "offset points", ha="right", va="center", color=QUIET, fontsize=7
        )


def _bars(axes: Axes, attribution: Attribution, rows: Sequence[int], confidence: float) -> None:
    scores = attribution.scores[rows].tolist()
    colours = [[part / 255 for part in (ORANGE if score < 0 else BLUE)] for score in scores]
    axes.barh(range(len(rows)), scores, height=0.7, color=colours)
    sure = attribution.standard_errors.get("scores") is None
    if not sure:
        low, high = (end[rows].tolist() for end in attribution.interval(confidence))
        axes.hlines(range(len(rows)), low, high, color=INK, linewidth=0.9, label="interval")
        axes.plot([*low, *high], [*range(len(rows))] * 2, linestyle="none", marker="|", markersize=4, color=INK)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_xlabel("score" if sure else f"score, with its {100 * confidence:.3g}% confidence interval")


# -------------------------------------------------------------------------------------------------------------- parts
def terms_of(attribution: Attribution) -> dict[str, Float[Tensor, "pos"]]:
    """Eq. 4 before its sum, ``M β S`` and ``M γ I``, where the score is this sum and both count; or else nothing."""
    terms, shares = score_terms(attribution) or [], (attribution.diagnostics.share or {}).values()
    if len(terms) < len(PART_COLOURS) or min(shares, default=1) < LEAST_SHARE:
        return {}
    return {term.part: term.of(attribution.parts) for term in terms}


def _shares(axes: Axes, terms: dict[str, Float[Tensor, "pos"]], rows: Sequence[int]) -> None:
    """How much of each score comes from each part."""
    whole = torch.stack([*terms.values()]).sum(0)
    left = [0.0] * len(rows)
    for name, term in terms.items():
        shares = (term / whole.where(whole != 0, 1.0))[rows].tolist()
        axes.barh(range(len(rows)), shares, left=left, height=0.7, color=PART_COLOURS[name], label=name)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50%", "100%"])
    axes.set_xlabel("share of the score")
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.1, 1), frameon=False, fontsize=7, handlelength=1, borderpad=0)
