"""The flags that say how a model is loaded."""

import inspect
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import heta_lens
from heta_lens.cli import app
from heta_lens.cli.flags import LOADING_FLAGS, loading_options
from heta_lens.model import loading

STORY = "Mia put the key in the box. Question: Where did Mia put the key? Answer: in the"


def test_they_are_the_options_of_load_model() -> None:
    assert LOADING_FLAGS.keys() == inspect.signature(heta_lens.load_model).parameters.keys() - {"model", "more"}


@pytest.mark.parametrize("command", ["attribute", "evaluate", "reproduce"])
def test_every_command_that_loads_a_model_has_them(command: str) -> None:
    group: Any = get_command(app)
    flags = {option for parameter in group.commands[command].params for option in parameter.opts}
    assert {f"--{name.replace('_', '-')}" for name in LOADING_FLAGS} <= flags


def test_they_reach_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, Any] = {}

    def load(_: str, **options: Any) -> Any:
        used.update(options)
        return heta_lens.load_demo_model()

    monkeypatch.setattr(loading, "load_model", load)
    flags = ["--dtype", "bfloat16", "--device-map", "auto", "--max-memory", "cpu=8GB", "--trust-remote-code"]
    done = CliRunner().invoke(app, ["attribute", STORY, "--method", "random", *flags])
    assert done.exit_code == 0, done.output
    expected = {"dtype": "bfloat16", "device_map": "auto", "max_memory": {"cpu": "8GB"}, "trust_remote_code": True}
    assert used == expected


def test_they_are_checked_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", None)
    done = CliRunner().invoke(app, ["attribute", STORY, "--dtype", "int8"])
    assert done.exit_code == 2
    assert "dtype='int8' is not one of" in done.output


def test_none_cost_nothing() -> None:
    assert loading_options({}) == {}
