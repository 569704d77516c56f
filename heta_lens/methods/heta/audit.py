"""The audit: how well scores add up to the effects of masking, and how far an approximation is from ``full``."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.work_counting import Work, counting
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import agreement
from heta_lens.methods.heta.additivity import drops, faithfulness, shuffled, subsets
from heta_lens.methods.heta.heta_options import HetaOptions
from heta_lens.methods.heta.windows import Window, edge_gap, most_central
from heta_lens.prediction.prediction import Prediction, prompt_generator


def audited(
    options: HetaOptions,
    prediction: Prediction,
    score: Float[Tensor, "pos"],
    work: Work,
    explain_fully: Callable[[], Attribution],
) -> dict[str, Any]:
    """``faithfulness`` on sets of tokens; for an approximation also ``against_full``."""
    generator = prompt_generator(options.seed, prediction.ids)
    members = subsets(generator, len(prediction)).to(score.device)
    order = shuffled(generator, members)
    with counting(Counter()):  # each set is a row, and reported as audited
        dropped = drops(prediction, options.mask, members, options.batch, partial(work.add, "audit"))
    facts: dict[str, Any] = {"faithfulness": faithfulness(dropped, members.to(score) @ score, order)}
    if options.recipe.approximate:
        facts["against_full"] = _against_full(options, prediction, score, explain_fully())
    return facts


def _against_full(
    options: HetaOptions, prediction: Prediction, score: Float[Tensor, "pos"], full: Attribution
) -> dict[str, Any]:
    """How far the scores are from the full method's, and what those cost."""
    scores, known = full.scores.to(score), full.diagnostics
    facts = agreement(score, scores) | {name: known[name] for name in ("forwards", "backwards", "hvps")}
    facts["checks"] = {name: ran for name, ran in known["checks"].items() if name == "second_derivative"}
    if options.recipe.windowed:
        facts["near_edges"] = edge_gap(scores, score, seams(options, prediction))
    return facts


def seams(options: HetaOptions, prediction: Prediction) -> list[Window]:
    """Windows at whose edges a part of the score may jump."""
    spans = options.windows_over(prediction)
    if options.window_mode != "frozen":
        return spans
    return most_central(spans) + (spans if options.window_gate == "per_window" else [])
