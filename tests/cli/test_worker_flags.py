"""The flags of workers, as arguments of an evaluation."""

from pathlib import Path

import pytest

from heta_lens.cli.flags import WORKER_FLAGS, distribution_options, results_folder
from heta_lens.evaluation import Workers
from heta_lens.evaluation.run_folder import Shard


def test_every_flag_is_an_option_of_workers_or_the_shard() -> None:
    assert {*WORKER_FLAGS} == {*Workers.__dataclass_fields__} - {"count"} | {"workers", "shard"}


def test_flags_make_workers_and_a_shard() -> None:
    assert distribution_options({}) == {"workers": Workers(), "shard": None}
    given = {"engine": "ray", "workers": 3, "gpus": 0.5, "retries": 0, "shard": "1/4"}
    expected = {"workers": Workers(3, "ray", gpus=0.5, retries=0), "shard": Shard(1, 4)}
    assert distribution_options(given) == expected


@pytest.mark.usefixtures("unchecked")
def test_a_wrong_flag_is_refused() -> None:
    with pytest.raises(ValueError, match="engine='slurm' is not one of"):
        distribution_options({"engine": "slurm"})


def test_what_is_of_several_workers_is_refused_for_one() -> None:
    with pytest.raises(ValueError, match="--retries 3 is for several workers"):
        distribution_options({"retries": 3})


def test_the_results_of_a_shard_are_in_its_folder() -> None:
    assert results_folder(Path("o"), None) == Path("o")
    assert results_folder(Path("o"), Shard(1, 4)) == Path("o/shard-1-of-4")
