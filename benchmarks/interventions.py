"""How well scores agree with interventions on a prompt: ten measures, none of which knows the evidence."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.stats import rankdata
from torch import Tensor

from benchmarks.prompts import Case
from heta_lens._util.numerics import token_count
from heta_lens.metrics import evidence_mass
from heta_lens.metrics.curves import TENTHS, Curve, abpc
from heta_lens.metrics.evidence import highest, ranked
from heta_lens.metrics.scores import ordinary
from heta_lens.prediction.coalitions import removed
from heta_lens.prediction.masking import ablated
from heta_lens.prediction.patching import effects

TOP, DIGITS = 5, 5
REFERENCES = ("edge", "input", "residual", "counterfactual")
MEASURES = (
    *(f"{reference}, rank correlation" for reference in REFERENCES),
    *(f"{reference}, mean effect of the first {TOP}" for reference in REFERENCES),
    "ABPC, masked",
    "ABPC, removed",
)
"""Spearman's correlation of the scores with the effects of patching each token: the values that the last position
reads, the embedding (by the mean), the stream in the middle layer, and the embedding (by the counterfactual's). Then
the mean effect of the tokens with the highest scores, in nats. Then areas between the perturbation curves.
"""


def evaluated(case: Case, scores: Float[Tensor, "row pos"]) -> dict[str, Any]:
    """Return the facts of a prompt, and each row's measures and values on known evidence."""
    places = ordinary(case.prediction)
    evidence = [
        (float(highest(row, 1, places)[0] in case.evidence), evidence_mass(row, case.evidence, candidates=places))
        for row in scores
    ]
    return {
        "template": case.template,
        "tokens": len(case.prediction),
        "p": round(float(case.prediction.log_probs.max().exp()), DIGITS),
        "measures": measures(case, scores).round(DIGITS).tolist(),
        "evidence": [[round(value, DIGITS) for value in pair] for pair in evidence],
    }


def effects_of(case: Case) -> Float[np.ndarray, "reference pos"]:
    prediction, middle = case.prediction, case.prediction.adapter.layers // 2
    ways = [  # in the order of the references
        effects(prediction),
        effects(prediction, how="input", mask="mean"),
        effects(prediction, how="resid_patch", layer=middle),
        effects(prediction, how="input", reference=case.other),
    ]
    return torch.stack(ways).cpu().double().numpy()


def measures(case: Case, scores: Float[Tensor, "candidate pos"]) -> Float[np.ndarray, "candidate measure"]:
    """Return the ten measures of each candidate, on the tokens that are not special."""
    places, scores = ordinary(case.prediction), scores.cpu().double()
    moved = effects_of(case)
    strongest = np.array([moved[:, highest(row, TOP, places)].mean(1) for row in scores])
    agreed = correlations(scores.numpy()[:, places], moved[:, places])
    return np.concatenate([agreed, strongest, areas(case, scores)], 1)


def correlations(
    scores: Float[np.ndarray, "candidate pos"], moved: Float[np.ndarray, "reference pos"]
) -> Float[np.ndarray, "candidate reference"]:
    """Return Spearman's correlations, 0 for scores or effects without an order."""
    own, theirs = (rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (scores, moved))
    sizes = np.sqrt((own**2).sum(1))[:, None] * np.sqrt((theirs**2).sum(1))[None]
    return np.divide(own @ theirs.T, sizes, out=np.zeros_like(sizes), where=sizes > 0)


def areas(case: Case, scores: Float[Tensor, "candidate pos"]) -> Float[np.ndarray, "candidate 2"]:
    """Return the areas of each candidate; equal ablations are run once."""
    prediction, places = case.prediction, ordinary(case.prediction)
    counts = [token_count(share, len(places)) for share in TENTHS]
    gone = torch.stack([rows(row, places, counts) for row in scores])
    distinct, which = torch.unique(gone.flatten(0, 2), dim=0, return_inverse=True)
    batches = prediction.prompt.batches("auto", len(prediction))
    with prediction.running():
        likelihoods = [
            ablated(prediction, ~distinct, prediction.mask_vector("zero"), "prob", batches),
            removed(prediction, ~distinct, partial(prediction.read, scale="prob"), batches),
        ]
    both = torch.stack(likelihoods, -1).cpu().double()[which].reshape(*gone.shape[:3], 2)

    def area(values: Float[Tensor, "order share"]) -> float:
        morf, lerf = (Curve(TENTHS, tuple(row.tolist())) for row in values)
        return abpc(morf, lerf)

    return np.array([[area(values) for values in candidate.unbind(-1)] for candidate in both])


def rows(scores: Float[Tensor, "pos"], places: Sequence[int], counts: Sequence[int]) -> Bool[Tensor, "order share pos"]:
    """Return the masks of removed tokens, from the highest score and from the lowest."""
    gone = torch.zeros(2, len(counts), len(scores), dtype=torch.bool)
    for order, name in enumerate(("morf", "lerf")):
        by_score = ranked(scores, places, name)
        for share, count in enumerate(counts):
            gone[order, share, by_score[:count]] = True
    return gone
