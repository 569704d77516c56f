"""Diagnostics of a score: its parts, its additivity under masking, and the distance of an approximation from full."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import isnan
from typing import Any, Literal

import numpy as np
import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.python import warn
from heta_lens._util.target_kinds import kind_of
from heta_lens._util.work import Done, Work, counting
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import agreement, term_shares
from heta_lens.methods.base import SAME_FOR_EVERY_TARGET
from heta_lens.methods.heta.options import HetaOptions
from heta_lens.methods.heta.score import Parts
from heta_lens.methods.heta.windows import edge_gap, most_central
from heta_lens.model.mask import Mask
from heta_lens.prediction.masking import MaskedEffects, ablated
from heta_lens.prediction.prediction import Prediction, prompt_generator

SUBSETS = 32  # random ones, beside every single token


def subsets(generator: np.random.Generator, length: int, count: int = SUBSETS) -> Bool[Tensor, "subset pos"]:
    """Draw all single positions, and ``count`` random sets of positions, with all sizes equally likely."""
    chosen = torch.zeros(count, length, dtype=torch.bool)
    for row in chosen:
        size = generator.integers(1, length, endpoint=True)
        row[generator.choice(length, size, replace=False)] = True
    return torch.cat([torch.eye(length, dtype=torch.bool), chosen])


def drops(
    prediction: Prediction,
    mask: Mask,
    members: Bool[Tensor, "subset pos"],
    batch: int | Literal["auto"],
    done: Done,
) -> Float[Tensor, "subset"]:
    """Return ``g(X) - g(X with a set of tokens masked)`` for every set."""
    batches = prediction.prompt.batches(batch, len(prediction))
    left = ablated(prediction, ~members, prediction.mask_vector(mask), "log_prob", batches, done)
    return prediction.value - left


@torch.no_grad()
def whole_drops(targets: Sequence[Prediction], mask: Mask, done: Done) -> list[float]:
    """Return the drop of g for every target when the whole context is masked: the sum of additive scores.

    A single run serves all targets, which are of one prompt, the longest context last.
    """
    longest = targets[-1]
    rerun = longest.rerun(read=[len(target) - 1 for target in targets])
    masked = rerun.logits(repeat(longest.mask_vector(mask), "d -> 1 pos d", pos=len(longest)))[0]
    done(1)
    return [float(target.value - target.objective(after)) for target, after in zip(targets, masked, strict=True)]


def shuffled(generator: np.random.Generator, sets: Bool[Tensor, "subset pos"]) -> Int[Tensor, "subset"]:
    """Draw the order in which the first half of the sets fits a scale and the second half evaluates the fit."""
    return torch.from_numpy(generator.permutation(len(sets)))


def faithfulness(
    dropped: Float[Tensor, "subset"], sums: Float[Tensor, "subset"], order: Int[Tensor, "subset"]
) -> dict[str, Any]:
    """Return the mean of ``|drop - sum of scores|``, for the scores (``raw``) and for scaled scores (``calibrated``).

    The scale, at least 0, is fitted to the first half of the sets in this order and evaluated on the second half.
    ``nothing`` is the error of scores of 0.
    """
    fitted, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    scale = best_scale(dropped[fitted], sums[fitted])
    calibrated = (dropped - scale * sums)[held_out].abs()
    return {
        "raw": float((dropped - sums).abs().mean()),
        "calibrated": float(calibrated.mean()),
        "calibrated_standard_error": float(calibrated.std() / len(held_out) ** 0.5),
        "nothing": float(dropped[held_out].abs().mean()),
        "scale": scale,
        "subsets": len(dropped),
    }


def best_scale(dropped: Float[Tensor, "subset"], sums: Float[Tensor, "subset"]) -> float:
    """Return the factor ≥ 0 that fits the sums to the drops by least squares."""
    square = float(sums @ sums)
    return max(0.0, float(dropped @ sums) / square) if square else 0.0


def envelope(information: Float[Tensor, "pos"], drop: Float[Tensor, "pos"]) -> tuple[Float[Tensor, "pos"], float]:
    """Return ``max(0, Δ)`` of every drop Δ, and the share of tokens whose information is within this bound."""
    gain = drop.clamp(min=0)
    return gain, int((information <= gain).sum()) / len(gain)


# --------------------------------------------------------------------------------------------------------------- audit
# The audit: how well scores add up to the effects of masking, and how far an approximation is from ``full``.


def audited(
    options: HetaOptions,
    prediction: Prediction,
    score: Float[Tensor, "pos"],
    work: Work,
    explain_fully: Callable[[], Attribution],
) -> dict[str, Any]:
    """Measure ``faithfulness`` on sets of tokens; for an approximation also ``against_full``."""
    generator = prompt_generator(options.seed, prediction.ids)
    members = subsets(generator, len(prediction)).to(score.device)
    order = shuffled(generator, members)
    with counting(Counter()):  # every set is a row, and reported as audited
        dropped = drops(prediction, options.mask, members, options.batch, partial(work.add, "audit"))
    facts: dict[str, Any] = {"faithfulness": faithfulness(dropped, members.to(score) @ score, order)}
    if options.recipe.approximate:
        facts["against_full"] = _against_full(options, prediction, score, explain_fully())
    return facts


def _against_full(
    options: HetaOptions, prediction: Prediction, score: Float[Tensor, "pos"], full: Attribution
) -> dict[str, Any]:
    """Measure the distance of the scores from the full method's scores, and report the cost of the full method."""
    scores, known = full.scores.to(score), full.diagnostics
    facts = agreement(score, scores) | {name: known[name] for name in ("forwards", "backwards", "hvps")}
    facts["checks"] = {name: ran for name, ran in known["checks"].items() if name == "second_derivative"}
    if options.recipe.windowed:
        facts["near_edges"] = edge_gap(scores, score, seams(options, prediction))
    return facts


def seams(options: HetaOptions, prediction: Prediction) -> list[range]:
    """Return the windows at whose edges a part of the score may jump."""
    spans = options.spans(prediction)
    if options.window_mode != "frozen":
        return spans
    return most_central(spans) + (spans if options.window_gate == "per_window" else [])


# ---------------------------------------------------------------------------------------------------- heta diagnostics
# What is known of a score beside it: its parts, how far it is from adding up, and what is worth a warning.


# Options that make it another score, where they are not the default.
IN_TITLE = {"variant", "combine", "gate", "information", "balance", "support", "norm", "flow"}


def score_facts(
    options: HetaOptions, prediction: Prediction, parts: Parts, information: MaskedEffects | None, whole_drop: float
) -> dict[str, Any]:
    """Return the diagnostics of a score: its parts, and its distance from the effects of masking."""
    score = parts.score(options.balance)
    for name, part in {**parts.means, "the score": score}.items():
        prediction.check_finite(name, part)
    titled = IN_TITLE - options.without_effect.keys()
    return {
        **parts.diagnostics(options.balance),
        "probes": options.probes,
        "chosen": {name: value for name, value in options.chosen.items() if name in titled},
        "unused_options": options.unused_options,
        "additivity_gap": abs(float(score.sum()) - whole_drop),
        **_masking_facts(options, parts, information),
        "note": "; ".join(_notes(options, prediction, parts)) or None,
    }


def _notes(options: HetaOptions, prediction: Prediction, parts: Parts) -> list[str]:
    """Return notes on the score: the part that ignores the target, and the factors of a product."""
    found = [*filter(None, [_target_note(options, prediction, parts)])]
    if parts.information is None or options.combine == "sum":
        return found
    if not isnan(alike := parts.rank_correlation):
        found.append(f"curvature and information rank tokens alike at ρ = {alike:.2f}")
    masked = (prediction.embeddings == prediction.mask_vector(options.mask)).all(-1)
    if equal := int(masked.sum()):
        found.append(f"{equal} of {len(masked)} tokens equal the mask already: their information is 0")
    if rounded := int(((parts.information == 0) & ~masked).sum()):
        found.append(f"masking {rounded} of {len(masked)} tokens changes no more than rounding does: counted as 0")
    return found


def _masking_facts(options: HetaOptions, parts: Parts, information: MaskedEffects | None) -> dict[str, Any]:
    """Compare the information of every token with the token's effect on g."""
    if information is None:
        return {}
    gain, share = envelope(information.divergence, information.drop)
    facts: dict[str, Any] = {"drop": information.drop}
    if options.combine == "sum":
        facts["envelope"] = parts.envelope(options.balance, gain)
    if options.kl == "orig_masked":
        facts["envelope_share"] = share
    return facts


def _target_note(options: HetaOptions, prediction: Prediction, parts: Parts) -> str:
    """Return a note on the share of the score that is the same for every target, if the target is not the likeliest."""
    if options.ignores_target:
        return SAME_FOR_EVERY_TARGET
    own = prediction.target == int(prediction.log_probs.argmax())
    if own or parts.information is None or options.information == "target":
        return ""
    about = f"information is about the whole next-token distribution, not about the {kind_of(prediction.target)}"
    if options.combine == "geometric":
        return about
    same = term_shares(parts.terms(options.balance))["information"]
    return f"{about}: {same:.1%} of the score is the same for every target"


def warn_of_doubts(options: HetaOptions, results: Sequence[Attribution]) -> None:
    """Warn if some scores need more probes to reach the tolerance."""
    if unsure := sum(result.diagnostics.get("unsure", 0) for result in results):
        warn(
            f"probes={options.probes} were too few for {unsure} of {sum(map(len, results))} scores to be within "
            f"tolerance={options.tolerance} of the largest: interval() says how sure each is"
        )
