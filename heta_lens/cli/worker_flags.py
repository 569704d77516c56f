"""Flags that say how many workers share the prompts of a command, and where."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heta_lens.cli.flag_groups import with_flags

if TYPE_CHECKING:
    from heta_lens.evaluation.shards import Shard

FLAGS: dict[str, Any] = {
    "engine": Annotated[str | None, typer.Option(help="local: this machine (default); ray: a Ray cluster.")],
    "workers": Annotated[int | None, typer.Option(min=1, help="How many, each with a model of its own (1).")],
    "threads": Annotated[int | None, typer.Option(min=1, help="Threads per worker; by default the cores are divided.")],
    "gpus": Annotated[float | None, typer.Option(min=0, help="GPUs per worker of Ray; 0.5 if two share one.")],
    "address": Annotated[str | None, typer.Option(help="Of a Ray cluster that runs; by default Ray starts here.")],
    "retries": Annotated[
        int | None, typer.Option(min=0, help="How often to run a method again after its worker died (2).")
    ],
    "shard": Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Only these prompts, as 0/3; auto/3: as SLURM or RANK says."),
    ],
}

with_worker_flags = with_flags(FLAGS, "distribution")
"""Gives a command these flags; it gets those that were used as ``distribution``."""


def distribution_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as arguments of `evaluate`."""
    from heta_lens.evaluation.engines import Workers
    from heta_lens.evaluation.shards import Shard

    named = {"count" if name == "workers" else name: value for name, value in given.items() if name != "shard"}
    shard = Shard.read(given["shard"]) if "shard" in given else None
    workers = Workers(**named)
    if workers.here and "retries" in given:
        raise ValueError(f"--retries {workers.retries} is for several workers, of which one may die: give --workers")
    return {"workers": workers, "shard": shard}


def results_folder(out: Path, shard: "Shard | None") -> Path:
    """Where the results of this process are."""
    return out / shard.folder if shard else out
