"""Diagnostics of a score: its parts, and its distance from the effects of masking."""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

from heta_lens._util.target_kinds import kind_of
from heta_lens.diagnostics import Diagnostics, term_shares
from heta_lens.methods.base import SAME_FOR_EVERY_TARGET
from heta_lens.methods.heta.curvature import Curvature
from heta_lens.methods.heta.options import HetaOptions
from heta_lens.methods.heta.score import Parts, divisor
from heta_lens.prediction.masking import MaskedEffects, mask_vector
from heta_lens.prediction.prediction import Prediction

# Options that make it another score, where they are not the default.
IN_TITLE = {"variant", "combine", "gate", "information", "balance", "support", "norm", "flow"}


def score_facts(
    options: HetaOptions,
    prediction: Prediction,
    parts: Parts,
    curvature: Curvature | None,
    masked: MaskedEffects | None,
    whole_drop: float,
    gate_facts: Mapping[str, Any],
) -> Diagnostics:
    """Return the diagnostics of a score: its parts, and its distance from the effects of masking."""
    score, balance = parts.score(options.balance), options.balance
    for name, part in parts.values.items():
        prediction.check_finite(name, part)
    titled, product = IN_TITLE - options.without_effect.keys(), options.combine == "geometric"
    errors, own = parts.standard_errors(balance), {**gate_facts}
    if masked is not None and parts.information is not None:
        own["drop"], gain = masked.drop, masked.drop.clamp(min=0)  # the paper's bound on the information
        if not product:
            change = (gain - parts.information) / divisor(parts.information, balance)
            own["envelope"] = score + parts.gate * parts.gamma * change
        if options.kl == "orig_masked":
            own["envelope_share"] = int((masked.divergence <= gain).sum()) / len(gain)
    if curvature is not None:
        if curvature.pairs is not None:
            errors["interactions"] = curvature.pairs.standard_errors
        if curvature.energy is not None:
            own |= curvature.energy.facts
    return Diagnostics(
        standard_errors=errors,
        probes=None if "probes" in options.without_effect else options.probes,
        chosen={name: value for name, value in options.chosen.items() if name in titled},
        additivity_gap=abs(float(score.sum()) - whole_drop),
        note="; ".join(_notes(options, prediction, parts)) or None,
        share=None if product else term_shares(parts.terms(balance)),
        balanced=None if product else parts.score("sum"),
        cross_talk=curvature.cross_talk if curvature is not None and curvature.cross_talk.any() else None,
        of_method=own,
    )


def _notes(options: HetaOptions, prediction: Prediction, parts: Parts) -> Iterator[str]:
    """Yield notes on the score: the part that ignores the target, and the factors of a product."""
    kind = kind_of(prediction.target)
    likeliest = kind == "activation" or prediction.target == int(prediction.log_probs.argmax())
    if options.ignores_target:
        yield SAME_FOR_EVERY_TARGET
    elif parts.information is not None and options.information == "divergence" and not likeliest:
        about = f"information is about the whole next-token distribution, not about the {kind}"
        if options.combine == "sum":
            same = term_shares(parts.terms(options.balance))["information"]
            about += f": {same:.1%} of the score is the same for every target"
        yield about
    if parts.information is None or options.combine == "sum":
        return
    if not isnan(alike := parts.rank_correlation):
        yield f"rank correlation of the score's two signals: {alike:.2f}"
    masked = (prediction.embeddings == mask_vector(prediction, options.mask)).all(-1)
    if equal := int(masked.sum()):
        yield f"{equal} of {len(masked)} tokens equal the mask already: their information is 0"
    if options.forwards is not None and (chat := prediction.prompt.chat):  # a search does not mask a template's tokens
        masked |= chat.template[: len(masked)].to(masked.device)
    if rounded := int(((parts.information == 0) & ~masked).sum()):
        yield f"masking {rounded} of {len(masked)} tokens changes no more than rounding does: counted as 0"
