"""What workers are started with: a way to load the model, placed on a GPU of theirs, and as many threads."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info

from helpers.evaluating import demo
from heta_lens.evaluation.workers import WorkerSetup, limit_threads, loaded, loader
from heta_lens.model.loading import load_model


def test_models_are_loaded_by_name_folder_or_function(tmp_path: Path) -> None:
    assert loader("gpt2").args == ("gpt2",) and loader(tmp_path).args == (str(tmp_path),)
    assert loader(demo) is demo
    assert loaded(demo) is demo() and loaded(demo()) is demo()


@pytest.mark.parametrize("given", [3, None])
def test_nothing_else_loads_a_model(given: Any) -> None:
    with pytest.raises(TypeError, match="a function that loads one, not a"):
        loader(given)


def test_workers_take_turns_at_the_gpus() -> None:
    setup = WorkerSetup(partial(load_model, "gpt2"), {}, 1, gpus=2)
    assert [setup._placed(number).keywords["device"] for number in range(4)] == ["cuda:0", "cuda:1"] * 2


@pytest.mark.parametrize("where", [{"device": "cpu"}, {"device_map": "auto"}, {"n_devices": 2}])
def test_a_model_whose_place_is_given_stays_there(where: dict[str, Any]) -> None:
    load = partial(load_model, "gpt2", **where)
    assert WorkerSetup(load, {}, 1, gpus=2)._placed(1) is load
    assert WorkerSetup(demo, {}, 1, gpus=2)._placed(1) is demo


def test_threads_of_all_libraries_are_limited() -> None:
    torch.set_num_threads(2)
    try:
        limit_threads(1)
        assert torch.get_num_threads() == 1
        assert {library["num_threads"] for library in threadpool_info()} == {1}
    finally:
        torch.set_num_threads(1)
