"""How well scores agree with interventions on a prompt: ten measures, none of which knows the evidence."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.stats import rankdata
from torch import Tensor

from benchmarks.study.families import Case
from heta_lens.metrics import evidence_mass
from heta_lens.metrics.curves import TENTHS, Curve, abpc, counted
from heta_lens.metrics.evidence import highest, ranked
from heta_lens.metrics.scores import ordinary
from heta_lens.prediction.coalitions import nothing_left, removed
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
"""The first four: Spearman with the effects of patching each token: the values that the last position reads, by those
without the token; its embedding, by the mean one; its stream in the middle layer, by the one without it; its embedding,
by the counterfactual's. The next four: the mean effect of the tokens with the highest scores, in nats. The last two:
area between the perturbation curves from the highest and from the lowest score."""


def evaluated(case: Case, scores: Float[Tensor, "row pos"]) -> dict[str, Any]:
    """What is known of a prompt, and each row's measures, also those by its known evidence."""
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
    ways = {
        "edge": effects(prediction),
        "input": effects(prediction, how="input", mask="mean"),
        "residual": effects(prediction, how="resid_patch", layer=middle),
        "counterfactual": effects(prediction, how="input", reference=case.other),
    }
    return np.stack([ways[reference].cpu().double().numpy() for reference in REFERENCES])


def measures(case: Case, scores: Float[Tensor, "candidate pos"]) -> Float[np.ndarray, "candidate measure"]:
    """All ten of each candidate, on the tokens that are not special."""
    places, scores = ordinary(case.prediction), scores.cpu().double()
    moved = effects_of(case)
    first = [highest(row, TOP, places) for row in scores]
    strongest = np.array([moved[:, some].mean(1) for some in first])
    return np.concatenate(
        [correlations(scores.numpy()[:, places], moved[:, places]), strongest, areas(case, scores)], 1
    )


def correlations(
    scores: Float[np.ndarray, "candidate pos"], moved: Float[np.ndarray, "reference pos"]
) -> Float[np.ndarray, "candidate reference"]:
    """Spearman's; 0 where all scores, or all effects, are equal, which order nothing."""
    own, theirs = (rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (scores, moved))
    sizes = np.sqrt((own**2).sum(1))[:, None] * np.sqrt((theirs**2).sum(1))[None]
    return np.divide(own @ theirs.T, sizes, out=np.zeros_like(sizes), where=sizes > 0)


def areas(case: Case, scores: Float[Tensor, "candidate pos"]) -> Float[np.ndarray, "candidate 2"]:
    """Rows that candidates share are run once."""
    prediction, places = case.prediction, ordinary(case.prediction)
    shares, counts = counted(TENTHS, len(places))
    gone = torch.stack([rows(row, places, counts) for row in scores])
    distinct, which = torch.unique(gone.flatten(0, 2), dim=0, return_inverse=True)
    batches, done = prediction.prompt.batches("auto", len(prediction)), lambda _: None
    run = {"scale": "prob", "batches": batches, "done": done}
    with prediction.running():
        likelihoods = [
            ablated(prediction, ~distinct, prediction.mask_vector("zero"), **run),
            removed(prediction, ~distinct, nothing_left(prediction), **run),
        ]
    values = [likelihood.cpu().double()[which].reshape(gone.shape[:3]) for likelihood in likelihoods]
    area = partial(_area, shares)
    return np.array([[area(one[candidate]) for one in values] for candidate in range(len(scores))])


def rows(scores: Float[Tensor, "pos"], places: Sequence[int], counts: Sequence[int]) -> Bool[Tensor, "order share pos"]:
    """What is gone of the text, from the highest score and from the lowest."""
    gone = torch.zeros(2, len(counts), len(scores), dtype=torch.bool)
    for order, name in enumerate(("morf", "lerf")):
        by_score = ranked(scores, places, name)
        for share, count in enumerate(counts):
            gone[order, share, by_score[:count]] = True
    return gone


def _area(shares: Sequence[float], values: Float[Tensor, "order share"]) -> float:
    morf, lerf = (Curve(tuple(shares), tuple(row.tolist())) for row in values)
    return abpc(morf, lerf)
