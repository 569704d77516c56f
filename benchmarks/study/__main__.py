"""Which setting of HETA agrees best with interventions: the study of docs/study.md.

    python -m benchmarks.study run dev [FAMILY ...]     measure all candidates; an interrupted run resumes
    python -m benchmarks.study run test [FAMILY ...]    measure the winners and the literal formula
    python -m benchmarks.study choose                   show who won on dev
    python -m benchmarks.study write                    write docs/study_results.md, and dev.csv beside this file

The copied words, lists and pronouns need the stories3M model. Families can be measured at once, by several processes.
"""

import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer

from benchmarks.outcomes import Outcomes
from benchmarks.study import page
from benchmarks.study.candidates import CANDIDATES, Candidate
from benchmarks.study.choice import BUDGETS, confirmed, outcomes_name, ranking, size
from benchmarks.study.families import DEV, FAMILIES, Case
from benchmarks.study.interventions import evaluated
from benchmarks.study.parts import measured
from heta_lens.data.recall import Split

app = typer.Typer(add_completion=False)


@app.command()
def run(
    split: Annotated[str, typer.Argument(help="dev or test")],
    families: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(FAMILIES)}; all, if none is named.")
    ] = None,
) -> None:
    """Measure candidates on a split."""
    torch.set_num_threads(1)  # more only slow down models of this size
    warnings.simplefilter("ignore", UserWarning)
    if split not in ("dev", "test"):
        raise typer.BadParameter(f"split is dev or test, not {split}")
    known = DEV if split == "dev" else [*FAMILIES]
    if unknown := {*(families or [])} - {*known}:
        raise typer.BadParameter(f"no {', '.join(unknown)} on {split}: it has {', '.join(known)}")
    chosen = CANDIDATES if split == "dev" else confirmed()
    for family in families or known:
        measure(family, "dev" if split == "dev" else "test", chosen)


def measure(family: str, split: Split, candidates: Sequence[Candidate]) -> None:
    outcomes = Outcomes(outcomes_name(family, split))
    cases = {case.id: case for case in FAMILIES[family].cases(family, split, size(family, split))}
    outcomes.measure([(id,) for id in cases], lambda key: outcome(cases[str(key[0])], candidates))


def outcome(case: Case, candidates: Sequence[Candidate]) -> dict[str, Any]:
    masks = {candidate.information.partition("/")[0] for candidate in candidates} - {""}
    parts = measured(case.prediction, masks, {candidate.curvature for candidate in candidates} - {""})
    scores = torch.stack([candidate.score(parts) for candidate in candidates])
    return evaluated(case, scores) | {
        "candidates": [candidate.name for candidate in candidates],
        "runs": [round(candidate.runs(parts), 1) for candidate in candidates],
    }


@app.command()
def choose() -> None:
    """Show who won on dev."""
    for budget in BUDGETS:
        best, *_ = ranking(budget)
        typer.echo(
            f"{budget:>8} forwards: {best.candidate.name}  (mean rank {best.rank:.1f}, {best.runs:.0f} forwards)"
        )


@app.command()
def write() -> None:
    """Write the page, and the values of all candidates."""
    page.write()


if __name__ == "__main__":
    app()
