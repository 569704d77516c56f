"""How often an attribution finds the word that was copied, on stories whose next word repeats an earlier one.

The prompts (see `build.py`) were fixed by the model's probabilities alone, before any attribution was computed. For
each score the table gives, with 95 % intervals over the prompts' templates,

    first, in five   how often a copied occurrence is the highest-scored token, or one of the five highest
    ρ(Δ), ρ(|Δ|)     the mean Spearman correlation of the scores with the tokens' interventional effects:
                     Δ_i = log p(target) - log p(target with token i's embedding replaced by the context's mean)

Special tokens are not candidates, for any score. Run `make bench`, or

    python -m benchmarks.copied_words.table run [--model FOLDER] [--limit N]
    python -m benchmarks.copied_words.table write
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor

import heta_lens
from benchmarks import report
from benchmarks.outcomes import FOLDER, Folder, Key, Outcomes
from benchmarks.report import average, intervals_over, proportion
from benchmarks.stories3m import MODEL, load_stories3m
from heta_lens.diagnostics import rank_correlation
from heta_lens.prediction.masking import masked_copies

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts.jsonl"
RESULTS = HERE / "RESULTS.md"
CHUNK = 16


class Evaluated(NamedTuple):
    """One score on one prompt."""

    first: bool
    in_five: bool
    effect: float
    size: float


app = typer.Typer(add_completion=False)


def prompts() -> dict[Key, dict[str, Any]]:
    """Every prompt by its id."""
    read = (json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines())
    return {(prompt["id"],): prompt for prompt in read}


@app.command()
def run(
    model: Annotated[Path, typer.Option(help="The folder of the stories3M model, with its load.py.")] = MODEL,
    limit: Annotated[int | None, typer.Option(help="Only the first N prompts, for a quick look.")] = None,
    folder: Folder = FOLDER,
) -> None:
    """Measure every score on every prompt; an interrupted run resumes."""
    if not model.is_dir():
        sys.exit(f"no model at {model}: give the folder of the stories3M model with --model")
    loaded, by_id = load_stories3m(model), prompts()
    Outcomes("copied_words", folder).measure([*by_id][:limit], lambda key: measured(loaded, by_id[key]))


@app.command()
def write(folder: Folder = FOLDER) -> None:
    """Write RESULTS.md from what was measured."""
    score_table = table(folder)
    report.show(score_table.title, score_table.columns, score_table.rows)
    if folder == FOLDER:
        report.write(RESULTS, TITLE.format(len(prompts())), [score_table])


def measured(model: Any, prompt: dict[str, Any]) -> dict[str, Any]:
    return {"template": prompt["template"], "scores": evaluated(model, prompt)}


def table(folder: Path = FOLDER) -> report.Table:
    outcomes, missing = Outcomes("copied_words", folder).of([*prompts()])
    templates = [one["template"] for one in outcomes.values()]
    names = next(iter(outcomes.values()))["scores"] if outcomes else []
    rows = [row(name, [Evaluated(*one["scores"][name]) for one in outcomes.values()], templates) for name in names]
    return report.Table("All scores", COLUMNS, rows, missing, intervals_over([templates]))


def evaluated(model: Any, prompt: dict[str, Any]) -> dict[str, Evaluated]:
    """Every score on one prompt."""
    ids = torch.tensor([prompt["ids"]])
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    prediction = heta_lens.Prediction.from_cache(cache, prompt["target_id"], tokens=ids)
    heta = heta_lens.Heta(progress=False)(prediction)
    scores = {
        "HETA": heta.scores,
        'HETA, balance="sum"': heta.diagnostics["balanced"],
        "gate alone": heta.parts["gate"],
        "curvature alone": heta.parts["curvature"],
        "information alone": heta.parts["information"],
        "gradient norm": gradient_norm(prediction),
    }
    candidates = (~heta.special).nonzero().flatten()
    effects = interventions(prediction)[candidates]
    copied = torch.isin(candidates, torch.tensor(prompt["source_positions"]))
    return {name: verdict(score[candidates], copied, effects) for name, score in scores.items()}


def verdict(scores: Tensor, copied: Tensor, effects: Tensor) -> Evaluated:
    hits = copied[scores.argsort(descending=True)]
    effect, size = (rank_correlation(scores, against) for against in (effects, effects.abs()))
    return Evaluated(bool(hits[0]), bool(hits[:5].any()), effect, size)


def gradient_norm(prediction: heta_lens.Prediction) -> Tensor:
    """‖∂ log p / ∂e_i‖₂."""
    with prediction.running():
        embeddings = prediction.embeddings.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(prediction.objective_from(0)(embeddings), embeddings)
    return gradient.norm(dim=-1)


def interventions(prediction: heta_lens.Prediction) -> Tensor:
    """How much of the target's log-probability each token's embedding carries, against the context's mean embedding."""
    mean, clean = prediction.embeddings.mean(0), prediction.value
    with prediction.running(), torch.no_grad():
        masked = [
            prediction.objective(prediction.rerun().log_probs(masked_copies(prediction.embeddings, positions, mean)))
            for positions in torch.arange(len(prediction)).split(CHUNK)
        ]
    return clean - torch.cat(masked)


def row(name: str, verdicts: list[Evaluated], templates: list[str]) -> list[str]:
    first, in_five, effect, size = zip(*verdicts, strict=True)
    shares = (proportion(hits, templates) for hits in (first, in_five))
    return [name, *shares, *(average(values, templates, (-1, 1)) for values in (effect, size))]


COLUMNS = ["score", "copied word first", "in the top five", "ρ(Δ)", "ρ(|Δ|)"]
TITLE = (
    f"# The copied word\n\n{report.TOY_MODELS}\n\nWritten by `make bench`: stories3M, {{}} prompts.\n\n"
    f"{report.EACH_ALONE}"
)


if __name__ == "__main__":
    app()
