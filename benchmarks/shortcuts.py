"""AttriBoT's shortcuts against leaving out every sentence: errors and costs.

The prompts are stories of the demo model with six facts and six sentences of filler. The proxy is the model of
`reasoning_model`, which has the same tokens and was trained further on other questions.
"""

import warnings
from collections.abc import Mapping
from functools import partial
from itertools import islice, product
from time import process_time
from typing import Any

import numpy as np
import torch

import heta_lens
from benchmarks import pages, reasoning_model
from benchmarks.models import told
from benchmarks.outcomes import Outcomes
from benchmarks.pages import average, proportion
from heta_lens.data.recall import Story, stories
from heta_lens.diagnostics import rank_correlation
from heta_lens.methods.attribot import AttriBot
from heta_lens.prediction.coalitions import removed
from heta_lens.prediction.prediction import Prediction

PROMPTS, OUTCOMES = 100, Outcomes("shortcuts")
WAYS: Mapping[str, Mapping[str, Any]] = {
    "exact": {},
    **{f"the best {k} of paragraphs of three": {"prune_to": k, "paragraph": 3} for k in (1, 2, 3)},
    "a proxy's scores": {"proxy": True},
    **{f"the best {k} by a proxy": {"proxy": True, "prune_to": k} for k in (2, 4)},
}
COLUMNS = ["way", "same first sentence", "ρ", "largest error, nats", "forwards", "s, of exact"]


def run() -> None:
    torch.set_num_threads(1)  # more only slow down a model of this size
    warnings.simplefilter("ignore", UserWarning)
    prompts = {str(number): story for number, story in enumerate(islice(stories("test", facts=6, filler=6), PROMPTS))}
    model, proxy = heta_lens.load_demo_model(), reasoning_model.load()
    OUTCOMES.measure(product(prompts), lambda id: outcome(model, proxy, prompts[id]))


def outcome(model: Any, proxy: Any, story: Story) -> dict[str, Any]:
    prediction = told(model, story)
    prediction.prompt.prefix()
    ways = {name: timed(partial(explained, prediction, proxy, options)) for name, options in WAYS.items()}
    alone = {
        "from the sentence on": timed(partial(explained, prediction, proxy, {"batch": 1})),
        "whole": timed(partial(one_by_one, prediction)),
    }
    return {"template": story.template, "ways": ways, "alone": alone}


def timed(run: Any) -> dict[str, Any]:
    begun = process_time()
    scores, forwards = run()
    return {"scores": scores, "forwards": forwards, "seconds": process_time() - begun}


def explained(prediction: Prediction, proxy: Any, options: Mapping[str, Any]) -> tuple[list[float], int]:
    given = {**options, "proxy": proxy} if options.get("proxy") else options
    facts = AttriBot(progress=False, **given)(prediction).diagnostics
    return facts["source_scores"], facts["forwards"]


def one_by_one(prediction: Prediction) -> tuple[list[float], int]:
    """Return the exact scores by one whole run after another."""
    own = AttriBot().sources(prediction)
    batches = prediction.prompt.batches(1, len(prediction))
    with prediction.running():
        read = partial(prediction.read, scale="log_prob")
        left = removed(prediction, ~torch.from_numpy(own), read, batches)
    return (prediction.value - left).tolist(), len(own)


def write() -> None:
    outcomes = [*OUTCOMES.read().values()]
    templates = [one["template"] for one in outcomes]
    rows = [row(name, outcomes, templates) for name in WAYS]
    pages.write("shortcuts", [pages.Table("Shortcuts", COLUMNS, rows, PROMPTS - len(outcomes), note(outcomes))])


def row(name: str, outcomes: list[dict[str, Any]], templates: list[str]) -> list[str]:
    exact, own = ([np.array(one["ways"][way]["scores"]) for one in outcomes] for way in ("exact", name))
    pairs = [*zip(exact, own, strict=True)]
    first = [float(one.argmax() == other.argmax()) for one, other in pairs]
    ranks = [
        1.0 if name == "exact" else rank_correlation(torch.tensor(one), torch.tensor(other)) for one, other in pairs
    ]
    errors = [float(abs(one - other).max()) for one, other in pairs]
    forwards = np.mean([one["ways"][name]["forwards"] for one in outcomes])
    seconds = np.median([one["ways"][name]["seconds"] / one["ways"]["exact"]["seconds"] for one in outcomes])
    agreed = [proportion(first, templates), average(ranks, templates, (-1, 1)), average(errors, templates, (0, None))]
    return [name, *agreed, f"{forwards:.1f}", f"{seconds:.2f}"]


def note(outcomes: list[dict[str, Any]]) -> str:
    together, begun, whole = (
        [one[part][name]["seconds"] for one in outcomes]
        for part, name in (("ways", "exact"), ("alone", "from the sentence on"), ("alone", "whole"))
    )
    errors = [
        max(abs(a - b) for a, b in zip(one["alone"]["whole"]["scores"], one["ways"]["exact"]["scores"], strict=True))
        for one in outcomes
    ]
    saved = np.median(np.divide(whole, begun))
    over = pages.intervals_over([[one["template"] for one in outcomes]])
    return (
        f"{len(outcomes)} prompts. {over} Exact scores by one whole run after the other take {saved:.2f} times as long "
        f"as by runs that begin where the sentence did, and {np.median(np.divide(whole, together)):.2f} times as long "
        f"as by whole runs together, as is done with a model of this size (medians); they differ by {max(errors):.1g} "
        "nats at most."
    )
