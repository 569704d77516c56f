"""Questions about a paragraph that had no part in the study: where scores rank the answer.

`python -m benchmarks.held_back` measures (resumable). The study to come replaces this file.
"""

from bisect import bisect_right
from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import torch

from benchmarks import real_study
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, written
from benchmarks.real_study import LONGEST, MODELS, masked, model_of, short
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.statistics import Difference, Estimate, difference, estimate
from heta_lens.methods.registry import method_of
from heta_lens.metrics.evidence import highest, reciprocal_rank
from heta_lens.metrics.scores import evidence_positions

STARTS = (  # the paragraph that begins each of the file's articles
    *(0, 31, 64, 97, 118, 138, 174, 216, 251, 267, 283, 301, 324, 349, 353, 364, 383, 394, 409, 423, 447, 470, 486),
    *(525, 558, 593, 636, 654, 675, 716, 748, 785, 817, 859, 877),
)
STEPS = {MODELS[0]: 1, MODELS[1]: 3}  # a question of every article, and of every third on Gemma
METHODS = ("attn_lrp", "fast", "gradient_norm", "random")
SIGNED = "√(G·|Δ|) with the sign of Δ"
OUTCOMES = Outcomes("held_back")


# --------------------------------------------------------------------------------------------------------- measurement
def paragraph(instance: Instance) -> int:
    return int(instance.template.split()[-1])


@cache
def questions() -> list[list[Instance]]:
    """Return the questions by article, in a fixed order: of paragraphs of which the study asked no question.

    Every fourth paragraph keeps a neighbour on each side of the answer's sentence.
    """
    used = {
        real_study.prompts(family, split)[number].template
        for model in MODELS
        for family, split, number in Outcomes(f"real_study-{model}").stored()
        if family == "squad"
    }
    path = str(real_study.FILES / "squad_subset.json")
    with_neighbours = [suite("squad", path, neighbours=neighbours) for neighbours in (0, 1)]
    found = [list[Instance]() for _ in STARTS]
    for both in zip(*with_neighbours, strict=True):
        one = both[paragraph(both[0]) % 4 == 0]
        if one.template not in used:
            found[bisect_right(STARTS, paragraph(one)) - 1].append(one)
    return [sorted(own, key=lambda one: crc32(one.id.encode())) for own in found]


def measured(model: str, article: int, number: int) -> dict[str, Any]:
    """Return the scores of the context's tokens, or why a question does not count."""
    instance = questions()[article][number]
    if model_of(model).to_tokens(instance.text).shape[1] > LONGEST:
        return {"id": instance.id, "left out": "long"}
    prediction = ask(model_of(model), instance)
    known: dict[str, Any] = {"id": instance.id, "tokens": len(prediction)}
    assert isinstance(prediction.target, int)
    first_word = replace(instance, support=[(0, len(instance.text.split()[0]))])
    eligible, gold, first = (
        evidence_positions(one, prediction, part)
        for one, part in ((instance, "eligible"), (instance, "gold"), (first_word, "support"))
    )
    log_probs = prediction.log_probs
    if log_probs[prediction.target] < log_probs[prediction.ids[eligible]].max():
        return known | {"left out": "wrong"}
    known |= {"strict": int(log_probs.argmax()) == prediction.target, "eligible": eligible, "gold": gold}
    zero = masked(prediction, "zero", eligible)
    squared = method_of("heta", {"variant": "gs", "gamma": 0, "progress": False})(prediction).parts["curvature"]
    scores = {name: short(method_of(name, {"progress": False})(prediction).scores[eligible]) for name in METHODS}
    parts = {"drop": zero["drop"], "information": zero["orig||masked"], "squared gradient": short(squared[eligible])}
    return known | {"first word": first, "parts": parts, "scores": scores}


def run() -> None:
    torch.set_num_threads(1)
    for model, step in STEPS.items():
        for article in range(0, len(STARTS), step):
            for number in range(len(questions()[article])):
                OUTCOMES.measure([(model, article, number)], measured)
                if "left out" not in OUTCOMES.read()[model, article, number]:
                    break
    OUTCOMES.pack()


# --------------------------------------------------------------------------------------------------------------- table
@cache
def ranks(model: str) -> pd.DataFrame:
    """Return, of every question and score, the answer's reciprocal rank, and whether the first word is on top."""
    rows = list[dict[str, Any]]()
    for (name, article, _), row in OUTCOMES.stored().items():
        if name == model and "left out" not in row:
            gold, first = ([row["eligible"].index(place) for place in row[part]] for part in ("gold", "first word"))
            asked = {"article": article, "tokens": row["tokens"], "strict": row["strict"]}
            for setting, values in scores_of(row).items():
                scores = torch.tensor(values, dtype=torch.float64)
                top = float(highest(scores, 1)[0] in first)
                rows.append(asked | {"setting": setting, "rank": reciprocal_rank(scores, gold), "first word": top})
    return pd.DataFrame(rows)


def scores_of(row: dict[str, Any]) -> dict[str, Any]:
    drop, information, squared = (np.array(row["parts"][name]) for name in ("drop", "information", "squared gradient"))
    return row["scores"] | {
        "leave_one_out": drop,
        "careful": np.sqrt(squared * information),
        "I": information,
        SIGNED: np.sign(drop) * np.sqrt(squared * np.abs(drop)),
    }


def mean_of(model: str, setting: str, measure: str) -> Estimate:
    every = ranks(model)
    rows = every[every["setting"] == setting]
    return estimate([*rows[measure]], [*rows["article"]], bounds=(0, 1))


def paired(model: str) -> tuple[Difference, int, int, int]:
    """Return `careful` − `leave_one_out`, and how often `leave_one_out` ranks the answer higher, equally, lower."""
    both = ranks(model).pivot(index="article", columns="setting", values="rank")
    ours, theirs = both["careful"], both["leave_one_out"]
    found = difference([*ours], [*theirs], [*both.index], bounds=(0, 1))
    return found, int((theirs > ours).sum()), int((theirs == ours).sum()), int((theirs < ours).sum())


def table() -> Table:
    means = {setting: mean_of(MODELS[0], setting, "rank") for setting in ranks(MODELS[0])["setting"].unique()}
    rows = [
        [f"`{setting}`", *(written(mean_of(model, setting, of)) for model in MODELS for of in ("rank", "first word"))]
        for setting in sorted(means, key=lambda setting: -means[setting].value)
    ]
    counts = [ranks(model)["article"].nunique() for model in MODELS]
    apart = [written(paired(model)[0], "+") for model in MODELS]
    gradient, careful, removal = (
        f"{100 * mean_of(MODELS[0], setting, 'first word').value:.0f} %"
        for setting in ("gradient_norm", "careful", "leave_one_out")
    )
    note = (
        "Questions of SQuAD that had no part in the study, about the answer's sentence and sometimes its neighbours:\n"
        "the reciprocal rank of the answer in the text by signed scores, and how often the highest score is on the\n"
        f"text's first word. {counts[0]} questions on SmolLM2 and {counts[1]} on Gemma, one per article; the answer's\n"
        "first token is the likeliest of the text's tokens. 95 % intervals over articles.\n\n"
        f"`careful` − `leave_one_out` is {apart[0]} on SmolLM2, and {apart[1]} on Gemma.\n"
        f"On SmolLM2 the gradient points at the text's first word: it has the highest score in {gradient} of the\n"
        f"questions by `gradient_norm`, in {careful} by `careful` and in {removal} by `leave_one_out`."
    )
    columns = [f"{name}, {of}" for name in ("SmolLM2", "Gemma") for of in ("reciprocal rank", "first word")]
    return Table("Questions about a paragraph", ["setting", *columns], rows, note=note)


if __name__ == "__main__":
    run()
