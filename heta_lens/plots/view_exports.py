"""What a view of an attribution can be saved as beside a page: a figure, LaTeX, or its numbers."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from heta_lens._util.plain_json import plain
from heta_lens.attribution import Attribution
from heta_lens.plots.figure_files import exports_of
from heta_lens.plots.latex_tokens import latex
from heta_lens.plots.score_formula import score_formula
from heta_lens.plots.token_figure import token_figure
from heta_lens.span_attribution import SpanAttribution


def exports(
    attribution: Attribution | SpanAttribution, marked: Collection[int] = (), note: str = "", *, special: bool = False
) -> dict[str, Callable[[], str | bytes]]:
    """What makes each kind of file, by its suffix."""
    return {
        **exports_of(lambda: token_figure(attribution, marked=marked, note=note, special=special)),
        ".tex": lambda: latex(attribution, marked=marked, note=note, special=special),
        **number_files(attribution),
    }


def number_files(attribution: Attribution | SpanAttribution) -> dict[str, Callable[[], str | bytes]]:
    """What makes the files that are no pictures."""
    return {
        ".csv": lambda: attribution.to_frame().to_csv(index=False),
        ".json": lambda: as_json(attribution),
    }


def as_json(attribution: Attribution | SpanAttribution) -> str:
    """The question, how to read the scores, and the rows of `to_frame`: for other programs, not to be read back."""
    return json_text({**described(attribution), "rows": attribution.to_frame().to_dict("records")})


def described(attribution: Attribution | SpanAttribution) -> dict[str, Any]:
    """The question, and how to read the scores."""
    summed = attribution.summed
    return {
        "title": attribution.title,
        "method": summed.method,
        "text": summed.text,
        "target": summed.target_text,
        "signed": summed.signed,
        "options": summed.options,
        "formula": score_formula(summed),
        "notes": attribution.notes,
    }


def json_text(content: Mapping[str, Any]) -> str:
    """As a file holds it."""
    return json.dumps(plain(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
