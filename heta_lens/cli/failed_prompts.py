"""What is said of prompts on which methods failed."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from heta_lens.cli.errors_and_messages import say
from heta_lens.cli.json_output import add

if TYPE_CHECKING:
    from heta_lens.evaluation.run_records import Record


def print_failures(folder: Path, nothing: str = "no metric has a value of any prompt") -> None:
    """Nobody should have to open a report to see that there is nothing in it; ``nothing`` says so."""
    from heta_lens.evaluation.run_records import read_records

    records = read_records(folder)
    add(failed=[{"prompt": r.instance, "method": r.method, "reason": r.failed} for r in records if r.failed])
    failed = Counter(record.failed for record in records if record.failed)
    if not records:
        return  # of a shard without prompts
    empty = all(record.failed or _without_values(record) for record in records)
    for reason, count in failed.most_common(1):
        say(f"{failed.total()} of {len(records)} failed, most often ({count}) by: {reason}", err=True)
    if empty:
        why = "" if failed else f": {next((why for record in records for why in record.reasons.values()), '')}"
        add(error=f"{nothing}{why}")
        say(f"{nothing}{why}", err=True)
        raise typer.Exit(1)


def _without_values(record: "Record") -> bool:
    """Whether metrics were computed, and none has a value."""
    return bool(record.values) and not any(value is not None for value in record.values.values())
