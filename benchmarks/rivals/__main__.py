"""Every method against interventions and known evidence, as its authors propose it and at equal compute.

    python -m benchmarks.rivals run [FAMILY ...] [--group GROUP ...]    measure; an interrupted run resumes
    python -m benchmarks.rivals write                                   write docs/rivals.md and its figure

Prompts are those of the study of HETA's setting (benchmarks/study), test split, and so are the measures. Methods are in
groups that are measured apart: ``quick`` and ``slow`` ones as they are, and all with a budget of 3, 30 or 100 forwards.
"""

import warnings
from collections.abc import Mapping, Sequence
from time import process_time
from typing import Annotated, Any

import torch
import typer

import heta_lens
from benchmarks.outcomes import Outcomes
from benchmarks.rivals import page
from benchmarks.rivals.groups import GROUPS, SETTINGS, SIZES, outcomes_of
from benchmarks.study.families import FAMILIES, Case
from benchmarks.study.interventions import evaluated
from heta_lens.methods.base import Method
from heta_lens.methods.cost import OverBudget, within_budget
from heta_lens.prediction.prediction import Prediction

app = typer.Typer(add_completion=False)


def made(label: str) -> Method:
    name = label.split(" ")[0]
    method: Any = heta_lens.METHODS[name](progress=False, **SETTINGS.get(label, {}))
    return method


@app.command()
def write() -> None:
    """Write the page and its figure."""
    page.write()


@app.command()
def run(
    families: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(FAMILIES)}; all, if none is named.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(GROUPS)}; all, if none is named.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first prompts of each family; the others can follow.")
    ] = None,
) -> None:
    """Measure methods on prompts."""
    torch.set_num_threads(1)  # more only slow down models of this size
    warnings.simplefilter("ignore", UserWarning)
    for family in families or FAMILIES:
        cases = {
            case.id: case for case in FAMILIES[family].cases(family, "test", min(SIZES[family], limit or SIZES[family]))
        }
        for name in group or GROUPS:
            labels, budget = GROUPS[name]
            measure(outcomes_of(family, name), cases, labels, budget)


def measure(outcomes: Outcomes, cases: Mapping[str, Case], labels: Sequence[str], budget: int | None) -> None:
    outcomes.measure([(id,) for id in cases], lambda key: outcome(cases[str(key[0])], labels, budget))


def outcome(case: Case, labels: Sequence[str], budget: int | None) -> dict[str, Any]:
    """Of the methods that explain this prompt, and fit into the budget; and why the others do not."""
    done: dict[str, tuple[torch.Tensor, float, float]] = {}
    refused: dict[str, str] = {}
    for label in labels:
        try:
            done[label] = explained(made(label), case.prediction, budget)
        except (OverBudget, ValueError) as error:
            refused[label] = str(error)
    scores = torch.stack([scores for scores, *_ in done.values()])
    return evaluated(case, scores) | {
        "methods": [*done],
        "refused": refused,
        "runs": [round(runs, 1) for _, runs, _ in done.values()],
        "seconds": [round(seconds, 4) for *_, seconds in done.values()],
    }


def explained(method: Method, prediction: Prediction, budget: int | None) -> tuple[torch.Tensor, float, float]:
    """Scores, how many forwards they took, where a backward or a product counts as two, and processor time."""
    if budget is not None:
        method = within_budget(method, prediction, float(budget))
    begun = process_time()
    attribution = method(prediction)
    seconds, cost = process_time() - begun, attribution.diagnostics.cost
    runs = (cost.forwards or 0) + 2 * ((cost.backwards or 0) + (cost.hvps or 0))
    return attribution.scores.detach().cpu().double(), runs, seconds


if __name__ == "__main__":
    app()
