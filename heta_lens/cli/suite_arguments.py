"""The options of a suite, as commands are given them."""

from typing import Any

SOURCE = "A .jsonl, .json, .csv or .parquet file, hf:NAME of a data set, or a suite, such as recall."
OF_SUITE = "An option of the suite, like hops=2; may be repeated."
INSTEAD = {
    "name": "the suite is the first argument",
    **{name: f"use --{name}" for name in ("path", "split", "limit", "seed")},
    "says": "it is what the model of --model answers",
}


def suite_options(given: list[str]) -> dict[str, Any]:
    """``["hops=2"]`` as keywords; what the command has an option of its own for is refused."""
    from heta_lens._util.option_text import keywords

    options = keywords(given)
    for name, value in options.items():
        if name in INSTEAD:
            raise ValueError(f"-o {name}={value} is not an option of a suite: {INSTEAD[name]}")
    return options
