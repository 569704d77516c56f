"""What is said of prompts that methods failed on, or did not apply to."""

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
    reasons = {}
    for what in ("failed", "skipped"):
        of_records = [(record, getattr(record, what)) for record in records if getattr(record, what)]
        add(**{what: [{"prompt": r.instance, "method": r.method, "reason": why} for r, why in of_records]})
        reasons[what] = Counter(why for _, why in of_records)
    if not records:
        return  # of a shard without prompts
    empty = all(record.failed or record.skipped or _without_values(record) for record in records)
    for what, by in reasons.items():
        for reason, count in by.most_common(1):
            say(f"{by.total()} of {len(records)} {what}, most often ({count}) by: {reason}", err=True)
    if empty:
        why = (
            ""
            if any(reasons.values())
            else f": {next((why for record in records for why in record.reasons.values()), '')}"
        )
        add(error=f"{nothing}{why}")
        say(f"{nothing}{why}", err=True)
        raise typer.Exit(1)


def _without_values(record: "Record") -> bool:
    """Whether metrics were computed, and none has a value."""
    return bool(record.values) and not any(value is not None for value in record.values.values())
