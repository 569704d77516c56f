"""``heta-lens estimate``: how much memory HETA takes on a model that is not there, and what takes less."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from heta_lens.cli.application import command
from heta_lens.cli.errors_and_messages import errors_in_a_line, say, show
from heta_lens.cli.json_output import add
from heta_lens.cli.loading_flags import with_hub_flags
from heta_lens.cli.quiet_flag import quiet
from heta_lens.cli.text_table import TextTable, text_table

if TYPE_CHECKING:
    from heta_lens.methods.memory_by_dry_run import MemoryEstimate

CONFIG = "A folder with a config.json, or a name on the Hugging Face hub. Weights are neither needed nor read."
MEMORY = "How much memory the GPUs have, all together, such as 80GB or 640GiB."
DTYPE = "float32, bfloat16, float16 or float64; by default the model's own."
OPTIONS = "An option of HETA, such as variant=win; may be repeated."
UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@command("estimate")
@with_hub_flags
def estimate(
    config: Annotated[str, typer.Option(help=CONFIG)],
    tokens: Annotated[int, typer.Option(help="How long the prompt is.")],
    gpu_memory: Annotated[str, typer.Option(metavar="SIZE", help=MEMORY)],
    dtype: Annotated[str | None, typer.Option(help=DTYPE)] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help=OPTIONS)] = None,
    *,
    hub: dict[str, Any],
) -> None:
    """Predict the memory and the runs of HETA.

    The model need not be there. Lists what takes less memory too.
    """
    with errors_in_a_line():
        size = bytes_of(gpu_memory)
        from heta_lens import Heta, estimate_memory
        from heta_lens._util.option_text import keywords
        from heta_lens._util.options import check_names

        options = keywords(option or [])
        check_names(Heta, options)

        with Console(stderr=True, quiet=quiet()).status("running every step on tensors without data …"):
            predicted = estimate_memory(config, tokens, memory=size, dtype=dtype, **hub, **options)
        add(model=predicted.model, tokens=tokens, memory=size, choices=[*map(_choice, _choices(predicted))])
        say(f"{predicted.model}, {tokens:,} tokens; {gpu_memory} is {size / 2**30:.1f} GiB. Predicted:")
        show(_table(predicted))


def bytes_of(size: str) -> int:
    """``"80GB"`` in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT]i?B)", size, re.IGNORECASE)
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if match is None:
        raise ValueError(f"--gpu-memory {size}: give a number and a unit, one of {', '.join(UNITS)}")
    return int(float(match[1]) * units[match[2].lower()])


def _choices(predicted: "MemoryEstimate") -> "list[MemoryEstimate]":
    """What was asked for, and what takes less."""
    return [predicted, *predicted.smaller]


def _choice(each: "MemoryEstimate") -> dict[str, Any]:
    parts = {"weights": each.weights, "cache": each.cache, "steps": each.steps, "batches": each.batches}
    return {
        "options": each.options,
        "bytes": each.needed,
        "fits": each.fits,
        "forwards": each.forwards,
        "hvps": each.hvps,
        **parts,
    }


def _table(predicted: "MemoryEstimate") -> TextTable:
    """A row for each choice of options."""
    choices = _choices(predicted)
    rows = [
        (
            each.name,
            f"{each.needed / 2**30:,.3g}",
            "yes" if each.fits else "no",
            str(each.forwards),
            str(each.hvps),
            each.sum,
        )
        for each in choices
    ]
    columns = ["options", "GiB", "fits", "forwards", "HVPs", "made of"]
    return text_table(columns, rows, right=["GiB", "forwards", "HVPs"])
