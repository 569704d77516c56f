"""``heta-lens merge``: makes one evaluation of its shards."""

from pathlib import Path
from typing import Annotated

import typer

from heta_lens.cli.application import command
from heta_lens.cli.errors_and_messages import errors_in_a_line, say
from heta_lens.cli.json_output import add

SHARDS = "The folders of its shards; by default those inside DIR."
PARTIAL = "Merge what there is, although shards are missing or not finished."


@command("merge")
def merge_shards(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of all shards.")],
    shards: Annotated[list[Path] | None, typer.Argument(metavar="SHARD", help=SHARDS)] = None,
    partial: Annotated[bool, typer.Option("--partial", help=PARTIAL)] = False,
) -> None:
    """Merge the shards of an evaluation.

    evaluate --shard or attribute-dataset --shard wrote them; they stay.
    """
    with errors_in_a_line():
        from heta_lens.evaluation.shard_merging import merge

        count = merge(folder.expanduser(), [shard.expanduser() for shard in shards or ()], partial=partial)
        add(folder=folder, merged=count)
        say(f"{count} results of methods on prompts: {folder}")
