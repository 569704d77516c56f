"""``heta-lens fit-at2``: how much each attention head counts, fitted once for a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heta_lens.cli.application import MODELS, command
from heta_lens.cli.errors_and_messages import errors_in_a_line, note, say
from heta_lens.cli.json_output import add
from heta_lens.cli.loading_flags import loading_options, with_loading_flags
from heta_lens.cli.quiet_flag import bars
from heta_lens.cli.suite_arguments import OF_SUITE, SOURCE, suite_options


@command("fit-at2")
@with_loading_flags
def fit_head_weights(
    source: Annotated[str, typer.Argument(help=SOURCE)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the weights are written, a .safetensors file.")],
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    path: Annotated[Path | None, typer.Option(help="The file that a suite is read from.")] = None,
    split: Annotated[str | None, typer.Option(help="Which part of a suite or data set.")] = None,
    limit: Annotated[int, typer.Option(min=2, help="How many prompts at most.")] = 300,
    samples: Annotated[int, typer.Option(min=2, help="How many ablations of each, one forward each.")] = 32,
    seed: Annotated[int, typer.Option(help="Which prompts and ablations are drawn.")] = 0,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OF_SUITE)] = None,
    *,
    loading: dict[str, Any],
) -> None:
    """Fit the weights of attention heads, for at2.

    The method at2 takes the file: weights=FILE.
    """
    with errors_in_a_line(out):
        from heta_lens._util.lazy_sequence import Lazy
        from heta_lens.data.prompt_sources import prompts
        from heta_lens.evaluation.prompt_evaluation import ask
        from heta_lens.methods.attention.fit_at2 import fit_at2
        from heta_lens.model.loading import load_model

        options, how = suite_options(option or []), loading_options(loading)
        given = prompts(source, path=path, split=split, limit=limit, seed=seed, **options)
        ready = load_model(model, **how)
        explained = Lazy(len(given), lambda number: ask(ready, given[number]))
        fitted = fit_at2(explained, samples=samples, seed=seed, progress=bars())
        fitted.save(out)
        add(weights=out, **fitted.fitted)
        note(out)
        facts = fitted.fitted
        say(
            f"weighted attention and the effect of ablations correlate by {facts['held_out']:.2f} on held-out prompts, "
            f"{facts['correlation']:.2f} on all {facts['prompts']}, and with equal weights by {facts['equal']:.2f}"
        )
