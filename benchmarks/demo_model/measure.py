"""What the demo model can do, and where methods see it do it.

    python -m benchmarks.demo_model.measure run      measure; an interrupted run resumes
    python -m benchmarks.demo_model.measure write    write RESULTS.md from what was measured

All prompts are of the test split, which neither training nor any choice has seen; ``--split dev`` is for choosing, and
needs an ``--outcomes`` folder of its own.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import heta_lens
from benchmarks import report
from benchmarks.demo_model.answers import (
    ANSWERED,
    IN_OTHER_WORDS,
    KINDS,
    REWORDED,
    answered_of,
    answers,
    by_kind,
    wordings,
)
from benchmarks.demo_model.explanations import (
    EACH,
    EXPLAINED,
    attributions,
    explained_of,
    masked,
    masking,
    random_scores,
    scored,
    verdict,
)
from benchmarks.outcomes import FOLDER, Folder, Key, Outcomes
from heta_lens.data.recall import WORDINGS, Split
from heta_lens.model.loading import load_model

RESULTS = Path(__file__).with_name("RESULTS.md")
LEGEND = f"{report.TOY_MODELS}\n\nWritten by `make bench`.\n\n{report.EACH_ALONE}"
app = typer.Typer(add_completion=False)


@app.command()
def run(
    split: Annotated[Split, typer.Option(help="test, or dev for a look that chooses nothing on test.")] = "test",
    answered: Annotated[int, typer.Option(help="Prompts of each kind that the model answers.")] = ANSWERED,
    explained: Annotated[int, typer.Option(help="Prompts of each kind that are masked and explained.")] = EACH,
    model: Annotated[Path | None, typer.Option(help="A model other than the packaged one.")] = None,
    folder: Folder = FOLDER,
) -> None:
    """Measure answers, masking and attributions."""
    if folder == FOLDER and (split, answered, explained, model) != ("test", ANSWERED, EACH, None):
        raise typer.BadParameter("the tables are of the packaged model and the test split: give --outcomes for a look")
    loaded = heta_lens.load_demo_model() if model is None else load_model(str(model))
    counts = dict.fromkeys(KINDS, answered)
    Outcomes("demo_answers", folder).measure(by_kind(KINDS), partial(answered_of, loaded, split, counts, KINDS))
    counts = {kind: len(WORDINGS) * max(1, each * answered // ANSWERED) for kind, each in REWORDED.items()}
    reworded = partial(answered_of, loaded, split, counts, IN_OTHER_WORDS)
    Outcomes("demo_wordings", folder).measure(by_kind(IN_OTHER_WORDS), reworded)
    stories = explained_of(split, explained)
    random = {kind: random_scores(some) for kind, some in stories.items()}
    keys: list[Key] = [(kind, at) for kind, some in stories.items() for at in range(len(some))]

    def drops(kind: str, at: int) -> dict[str, Any]:
        story = stories[kind][at]
        return {"template": story.template, "drops": masked(loaded, story)}

    def verdicts(kind: str, at: int) -> dict[str, Any]:
        story = stories[kind][at]
        scores = {**scored(loaded, story), "random": random[kind][at]}
        return {"template": story.template, "scores": {name: verdict(one, story) for name, one in scores.items()}}

    Outcomes("demo_masking", folder).measure(keys, lambda key: drops(str(key[0]), int(key[1])))
    Outcomes("demo_attributions", folder).measure(keys, lambda key: verdicts(str(key[0]), int(key[1])))


@app.command()
def write(folder: Folder = FOLDER) -> None:
    """Write RESULTS.md from what was measured."""
    tables = [answers(folder), *wordings(folder), masking(folder), *(attributions(kind, folder) for kind in EXPLAINED)]
    for table in tables:
        report.show(table.title, table.columns, table.rows)
    if folder == FOLDER:
        report.write(RESULTS, LEGEND, tables)


if __name__ == "__main__":
    app()
