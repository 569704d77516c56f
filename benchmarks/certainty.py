"""The curvature's share of the score as predictions become certain: docs/certainty.md.

Logits are multiplied by factors from ¼ to 4, so that the same prompts are predicted with more or less certainty, and
nothing else changes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib import pyplot as plt
from torch import Tensor

import heta_lens
from benchmarks import pages
from benchmarks.interventions import correlations, effects_of
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, average
from benchmarks.prompts import Case, measure_family
from heta_lens._util.numerics import Samples, kl
from heta_lens.methods.heta.heta import flow_gate
from heta_lens.methods.heta.score import Parts
from heta_lens.metrics import evidence_mass
from heta_lens.metrics.scores import ordinary
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.prediction import Prediction

FIGURE = pages.PAGES["certainty"].with_suffix(".png")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
FAMILY_SIZES: Mapping[str, int] = {"recall": 40, "two hops": 40, "copied": 40}
WAYS = {"M · S": "C0", "M · I": "C1", "M · (½ S + ½ I)": "C3", "the same, balanced": "C2"}
LINES = "o-", "s--", "^-.", "D:"  # which tell the ways apart without their colours
BANDS = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
COPIES = 32  # of a context at once


def outcomes_of(family: str) -> Outcomes:
    return Outcomes(f"certainty_{family.replace(' ', '_')}")


def run() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    for family, size in FAMILY_SIZES.items():
        measure_family(outcomes_of(family), family, size, outcome)


def outcome(case: Case) -> dict[str, Any]:
    prediction, token = case.prediction, case.prediction.target
    assert isinstance(token, int)
    gate, places = flow_gate(heta_lens.Heta(), prediction)[0], ordinary(prediction)
    moved = masked_logits(prediction)
    (edges, *_), found = effects_of(case), []
    for factor in FACTORS:
        scaled = replace(prediction, target=partial(log_prob, factor, token))
        curvature = heta_lens.Heta(beta=1.0, gamma=0.0, progress=False)(scaled).parts["curvature"]
        before, after = ((factor * some).double().log_softmax(-1) for some in (prediction.logits, moved))
        parts = Parts(gate, Samples.even(curvature[None]), kl(before, after).to(gate), 0.5, 0.5)
        terms = parts.terms("none")
        scores = torch.stack([terms["curvature"], terms["information"], parts.score("none"), parts.score("sum")])
        agreed = correlations(scores[:, places].double().numpy(), edges[None, places])[:, 0]
        found.append(
            {
                "p": float(before[token].exp()),
                "share": float(terms["curvature"].sum() / parts.score("none").sum()),
                "mass": [evidence_mass(row, case.evidence, candidates=places) for row in scores],
                "correlation": agreed.tolist(),
            }
        )
    return {"template": case.template, "factors": found}


@torch.no_grad()
def masked_logits(prediction: Prediction) -> Float[Tensor, "pos vocab"]:
    """Return the logits as each token's embedding is replaced by zeros."""
    logits_of, rows, zeros = prediction.rerun().logits, list[Tensor](), torch.zeros_like(prediction.embeddings)
    with prediction.running():
        for some in torch.arange(len(prediction)).split(COPIES):
            rows.append(logits_of(masked_copies(prediction.embeddings, some, zeros[some])))
    return torch.cat(rows)


def log_prob(factor: float, token: int, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Return the log-probability of a token, with all logits multiplied by a factor."""
    return (factor * logits.double()).log_softmax(-1)[..., token].to(logits)


def write() -> None:
    found = {family: [*outcomes_of(family).read().values()] for family in FAMILY_SIZES}
    draw({family: [one for prompt in some for one in prompt["factors"]] for family, some in found.items()})
    pages.write("certainty", [table(family, some) for family, some in found.items()])


def table(family: str, prompts: Sequence[Mapping[str, Any]]) -> Table:
    rows, every = [], [(one, prompt["template"]) for prompt in prompts for one in prompt["factors"]]
    for low, high in pairwise(BANDS):
        inside = [(one, template) for one, template in every if low < one["p"] <= high]
        if not inside:
            continue
        some, templates = zip(*inside, strict=True)
        shares = average([one["share"] for one in some], templates, (0, 1))
        masses = [average(column, templates, (0, 1)) for column in zip(*(one["mass"] for one in some), strict=True)]
        ranks = zip(*(one["correlation"] for one in some), strict=True)
        agreed = [average(column, templates, (-1, 1)) for column in ranks]
        cells = (f"{mass}; {rank}" for mass, rank in zip(masses, agreed, strict=True))
        rows.append([f"{low:g} to {high:g}", str(len(some)), shares, *cells])
    columns = ["p", "n", "share of S", *WAYS]
    return Table(family.capitalize(), columns, rows, FAMILY_SIZES[family] - len(prompts))


def draw(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw the share of the curvature, and the mass on known evidence, over the doubt of the prediction."""
    with plt.rc_context({"font.size": 8}):
        figure, rows = plt.subplots(2, len(found), figsize=(3.2 * len(found), 5), squeeze=False, sharex=True)
        for (family, some), (above, below) in zip(found.items(), rows.T, strict=True):
            doubt = np.array([max(1 - one["p"], 1e-9) for one in some])
            shares = [one["share"] for one in some]
            above.scatter(doubt, shares, s=6, color="C0", alpha=0.4, linewidths=0)
            above.set(title=family, xscale="log", ylim=(-0.03, 1.03))
            for way, ((name, colour), line) in enumerate(zip(WAYS.items(), LINES, strict=True)):
                masses = np.array([one["mass"][way] for one in some])
                below.plot(*by_band(doubt, masses), line, ms=3, color=colour, label=name)
            below.set(ylim=(0, 1), xlabel="1 - p(target), more certain to the left")
        rows[0, 0].set_ylabel("share of the curvature in the score")
        rows[1, 0].set_ylabel("mass on the evidence")
        rows[1, -1].legend(frameon=False)
        figure.tight_layout()
        pages.save_figure(figure, FIGURE)
        plt.close(figure)


def by_band(
    doubt: Float[np.ndarray, "n"], values: Float[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "band"], Float[np.ndarray, "band"]]:
    """Return means within a factor of ten of doubt, for at least five prompts."""
    decades = np.floor(np.log10(doubt)).astype(int)
    kept = [decade for decade in np.unique(decades) if (decades == decade).sum() >= 5]
    centres = np.array([10.0 ** (decade + 0.5) for decade in kept])
    return centres, np.array([values[decades == decade].mean() for decade in kept])
