"""A command gets the flags of a group that were used, and nothing of the others."""

from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from heta_lens.cli.app import with_flags

FLAGS = {
    "height": Annotated[int | None, typer.Option()],
    "name": Annotated[str | None, typer.Option()],
    "loud": Annotated[bool, typer.Option("--loud")],
}


def given(*words: str) -> Any:
    app, called = typer.Typer(), []

    @app.command()
    @with_flags(FLAGS, "group")
    def command(what: str, size: int = 1, *, group: dict[str, Any]) -> None:
        called.append((what, size, group))

    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, done.output
    return called[0]


def test_flags_that_were_used_come_as_one_argument() -> None:
    assert given("a") == ("a", 1, {})
    assert given("a", "--size", "2", "--loud") == ("a", 2, {"loud": True})
    assert given("a", "--height", "0", "--name", "x") == ("a", 1, {"height": 0, "name": "x"})
