"""Make the tables of one page: `python -m benchmarks NAME`, or `make table-NAME`.

Outcomes are kept in benchmarks/measured: an interrupted measurement resumes, and a finished one is only written.
"""

from importlib import import_module
from typing import Annotated

import typer

from benchmarks.pages import PAGES

MODULES = {"results": "study_page", "real": "study_page"}


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(PAGES)}.")],
    parts: Annotated[list[str] | None, typer.Argument(help="Parts to measure; all, if none is named.")] = None,
) -> None:
    """Measure the outcomes that a page lacks, and write its tables."""
    if name not in PAGES:
        raise typer.BadParameter(f"{name} is not a page with tables: {', '.join(PAGES)}")
    module = import_module(f"benchmarks.{MODULES.get(name, name)}")
    if hasattr(module, "run"):
        module.run(*parts or ())
    if hasattr(module, "write"):
        module.write()


if __name__ == "__main__":
    typer.run(main)
