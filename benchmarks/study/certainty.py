"""Why the information alone can be better than the whole formula: curvature fades as the prediction becomes certain.

    python -m benchmarks.study.certainty run      measure; an interrupted run resumes
    python -m benchmarks.study.certainty write    write docs/certainty.md and its figure

Logits are multiplied by factors from ¼ to 4, so that the same prompts are predicted with more or less certainty, and
nothing else changes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from jaxtyping import Float
from matplotlib import pyplot as plt
from torch import Tensor

import heta_lens
from benchmarks.outcomes import Outcomes
from benchmarks.report import TOY_MODELS, average, markdown
from benchmarks.study.families import FAMILIES, Case
from benchmarks.study.interventions import correlations, effects_of
from benchmarks.study.parts import COPIES
from heta_lens._util.numerics import Samples, kl
from heta_lens.methods.heta.heta import flow_gate
from heta_lens.methods.heta.score import Parts
from heta_lens.metrics import evidence_mass
from heta_lens.metrics.scores import ordinary
from heta_lens.prediction.masking import masked_copies
from heta_lens.prediction.prediction import Prediction

PAGE = Path(__file__).parents[2] / "docs" / "certainty.md"
FIGURE = PAGE.with_name("certainty.svg")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
FAMILY_SIZES: Mapping[str, int] = {"recall": 40, "two hops": 40, "copied": 40}
WAYS = {"M · S": "C0", "M · I": "C1", "M · (½ S + ½ I)": "C3", "the same, balanced": "C2"}
LINES = "o-", "s--", "^-.", "D:"  # which tell the ways apart without their colours
VISIBLE = 0.02  # differences of masses that are worth a word
BANDS = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
app = typer.Typer(add_completion=False)


def outcomes_of(family: str) -> Outcomes:
    return Outcomes(f"certainty_{family.replace(' ', '_')}")


@app.command()
def run() -> None:
    """Measure every prompt with every factor."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    for family, size in FAMILY_SIZES.items():
        cases = {case.id: case for case in FAMILIES[family].cases(family, "test", size)}
        outcomes_of(family).measure([(id,) for id in cases], lambda key, cases=cases: outcome(cases[str(key[0])]))


def outcome(case: Case) -> dict[str, Any]:
    prediction = case.prediction
    gate, places = flow_gate(heta_lens.Heta(), prediction)[0], ordinary(prediction)
    logits, moved = prediction.logits, masked_logits(prediction)
    (edges, *_), found = effects_of(case), []
    for factor in FACTORS:
        scaled = replace(prediction, target=partial(log_prob, factor, token_of(prediction)))
        curvature = heta_lens.Heta(beta=1.0, gamma=0.0, progress=False)(scaled).parts["curvature"]
        before, after = ((factor * some).double().log_softmax(-1) for some in (logits, moved))
        parts = Parts(gate, Samples.even(curvature[None]), kl(before, after).to(gate), 0.5, 0.5)
        terms = parts.terms("none")
        scores = torch.stack([terms["curvature"], terms["information"], parts.score("none"), parts.score("sum")])
        agreed = correlations(scores[:, places].double().numpy(), edges[None, places])[:, 0]
        found.append(
            {
                "p": float(before[token_of(prediction)].exp()),
                "share": float(terms["curvature"].sum() / parts.score("none").sum()),
                "mass": [evidence_mass(row, case.evidence, candidates=places) for row in scores],
                "correlation": agreed.tolist(),
            }
        )
    return {"template": case.template, "factors": found}


def token_of(prediction: Prediction) -> int:
    assert isinstance(prediction.target, int)
    return prediction.target


def log_prob(factor: float, token: int, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Of a token, where all logits are multiplied by a factor."""
    return (factor * logits.double()).log_softmax(-1)[..., token].to(logits)


@torch.no_grad()
def masked_logits(prediction: Prediction) -> Float[Tensor, "pos vocab"]:
    """With each token masked by zeros."""
    logits_of, zeros = prediction.rerun().logits, torch.zeros_like(prediction.embeddings)
    with prediction.running():
        rows = [
            logits_of(masked_copies(prediction.embeddings, some, zeros[some]))
            for some in torch.arange(len(prediction)).split(COPIES)
        ]
    return torch.cat(rows)


@app.command()
def write() -> None:
    """Write the page and the figure."""
    found = {family: [*outcomes_of(family).read().values()] for family in FAMILY_SIZES}
    draw({family: [one for prompt in some for one in prompt["factors"]] for family, some in found.items()})
    tables = [part for family, some in found.items() for part in (f"## {family.capitalize()}", markdown(*table(some)))]
    PAGE.write_text("\n\n".join([TEXT.format(reading=reading(found)), *tables]) + "\n", encoding="utf-8")


def reading(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What that does on each family: which part finds more of the evidence, and which is read."""
    sentences = []
    for family, prompts in found.items():
        every = [one for prompt in prompts for one in prompt["factors"]]
        certain = [one for one in every if one["p"] > BANDS[-2]]
        curvature, information, both, balanced = np.mean([one["mass"] for one in certain], axis=0)
        share = np.mean([one["share"] for one in certain])
        sentences.append(
            f"On {family}, where p is above {BANDS[-2]:g}, the curvature is {share:.0%} of the score; it alone has a "
            f"mass of {curvature:.2f} on the evidence, the information {information:.2f}, the sum {both:.2f}, the "
            f"balanced sum {balanced:.2f}. {gains(every)}"
        )
    return "\n".join(f"- {sentence}" for sentence in sentences)


def gains(every: Sequence[Mapping[str, Any]]) -> str:
    """Where the information alone has more mass on the evidence than the sum, or less."""
    bands: dict[str, list[str]] = {"larger": [], "smaller": []}
    for low, high in pairwise(BANDS):
        inside = [one["mass"] for one in every if low < one["p"] <= high]
        if inside:
            _, information, both, _ = np.mean(inside, axis=0)
            if abs(information - both) > VISIBLE:
                bands["larger" if information > both else "smaller"].append(f"{low:g}–{high:g}")
    said = [f"{word} than with the sum at p {', '.join(where)}" for word, where in bands.items() if where]
    return f"With `kl_only`, the mass on the evidence is {' and '.join(said) or 'the same at every p'}."


def table(prompts: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], list[list[str]]]:
    rows = []
    for low, high in pairwise(BANDS):
        inside = [
            (one, prompt["template"]) for prompt in prompts for one in prompt["factors"] if low < one["p"] <= high
        ]
        if not inside:
            continue
        some, templates = zip(*inside, strict=True)
        shares = average([one["share"] for one in some], templates, (0, 1))
        masses = [average([one["mass"][way] for one in some], templates, (0, 1)) for way in range(len(WAYS))]
        agreed = [average([one["correlation"][way] for one in some], templates, (-1, 1)) for way in range(len(WAYS))]
        cells = (f"{mass}; {rank}" for mass, rank in zip(masses, agreed, strict=True))
        rows.append([f"{low:g} to {high:g}", str(len(some)), shares, *cells])
    return ["p", "n", "share of S", *WAYS], rows


def draw(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The share of curvature, and the mass on known evidence, over how uncertain the prediction is."""
    with plt.rc_context({"svg.hashsalt": "heta_lens", "font.size": 8}):
        figure, rows = plt.subplots(2, len(found), figsize=(3.2 * len(found), 5), squeeze=False, sharex=True)
        for (family, some), (above, below) in zip(found.items(), rows.T, strict=True):
            doubt = np.array([max(1 - one["p"], 1e-9) for one in some])
            above.scatter(doubt, [one["share"] for one in some], s=6, color="C0", alpha=0.4, linewidths=0)
            above.set(title=family, xscale="log", ylim=(-0.03, 1.03))
            for way, ((name, colour), line) in enumerate(zip(WAYS.items(), LINES, strict=True)):
                masses = np.array([one["mass"][way] for one in some])
                below.plot(*by_band(doubt, masses), line, ms=3, color=colour, label=name)
            below.set(ylim=(0, 1), xlabel="1 - p(target), more certain to the left")
        rows[0, 0].set_ylabel("share of the curvature in the score")
        rows[1, 0].set_ylabel("mass on the evidence")
        rows[1, -1].legend(frameon=False)
        figure.tight_layout()
        figure.savefig(FIGURE, metadata={"Date": None})
        plt.close(figure)


def by_band(
    doubt: Float[np.ndarray, "n"], values: Float[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "band"], Float[np.ndarray, "band"]]:
    """Means within a factor of ten of doubt, where there are five prompts at least."""
    decades = np.floor(np.log10(doubt)).astype(int)
    kept = [decade for decade in np.unique(decades) if (decades == decade).sum() >= 5]
    centres = np.array([10.0 ** (decade + 0.5) for decade in kept])
    return centres, np.array([values[decades == decade].mean() for decade in kept])


TEXT = f"""# Certain predictions

{TOY_MODELS}

Written by `python -m benchmarks.study.certainty write`.

On some prompts `variant="kl_only"` finds the evidence better than the whole formula. The figure shows why. Logits were
multiplied by factors from ¼ to 4, so that the same prompts are predicted with more or less certainty.

![The share of the curvature in the score, and the mass on the evidence, over 1 - p](certainty.svg)

*Above*: the curvature's share of the score `M (½ S + ½ I)`. *Below*: the mass of the scores on known evidence.

`log p` is flat where p is 1: its gradient and its Hessian both shrink with `1 - p`. S sums absolute values over all
dimensions of an embedding and is large to begin with; I is a divergence, and stays in the order of nats. So the sum
is rarely a mixture of the two: uncertain predictions are scored by the curvature, and certain ones by the information,
as by `kl_only`. Which of the two dominates depends on p, and not on which of them finds the evidence:

{{reading}}

**What to do.** Look at `attribution.diagnostics.share`: it says how much of the score comes from each part. If it is
near 0 or 1 and both parts are meant to count, give `balance="sum"`, which divides each by its total first (the line
*balanced*). Then both count at every p, which is not better in itself: it helps where the part that counts
for little in the sum finds more of the evidence, and hurts where it finds less ([Results](results.md) has both). If one
part is enough, `variant="kl_only"` needs no HVP.

In the tables: the mean share, and for each score the mass on the evidence, then Spearman's correlation with the
effects of patching the values that the last position reads; 95 % intervals over templates."""


if __name__ == "__main__":
    app()
