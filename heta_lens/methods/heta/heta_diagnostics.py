"""What is known of a score beside it: its parts, how far it is from adding up, and what is worth a warning."""

from collections.abc import Sequence
from math import isnan
from typing import Any

from heta_lens._util.caller_warnings import warn
from heta_lens._util.target_kinds import kind_of
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import shares
from heta_lens.methods.base import SAME_FOR_EVERY_TARGET
from heta_lens.methods.heta.additivity import envelope
from heta_lens.methods.heta.heta_options import HetaOptions
from heta_lens.methods.heta.information import Information
from heta_lens.methods.heta.score import Parts
from heta_lens.prediction.prediction import Prediction

# Options that make it another score, where they are not the default.
IN_TITLE = {"variant", "combine", "gate", "information", "balance", "support", "norm", "flow"}


def score_facts(
    options: HetaOptions, prediction: Prediction, parts: Parts, information: Information | None, whole_drop: float
) -> dict[str, Any]:
    """What there is to say about a score: its parts, and how far it is from the effects of masking."""
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
    """How to read the score: what does not depend on the target, and what a product's factors say."""
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


def _masking_facts(options: HetaOptions, parts: Parts, information: Information | None) -> dict[str, Any]:
    """How each token's information compares with its effect on g, where it was computed."""
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
    """How much of the score is the same for every target, where another one than the model's own was asked for."""
    if options.ignores_target:
        return SAME_FOR_EVERY_TARGET
    own = prediction.target == int(prediction.log_probs.argmax())
    if own or parts.information is None or options.information == "target":
        return ""
    about = f"information is about the whole next-token distribution, not about the {kind_of(prediction.target)}"
    if options.combine == "geometric":
        return about
    same = shares(parts.terms(options.balance))["information"]
    return f"{about}: {same:.1%} of the score is the same for every target"


def warn_of_doubts(options: HetaOptions, results: Sequence[Attribution]) -> None:
    """Warn of scores that need more probes."""
    if unsure := sum(result.diagnostics.get("unsure", 0) for result in results):
        warn(
            f"probes={options.probes} were too few for {unsure} of {sum(map(len, results))} scores to be within "
            f"tolerance={options.tolerance} of the largest: interval() says how sure each is"
        )
