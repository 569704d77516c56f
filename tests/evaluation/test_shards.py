"""Shards: every n-th prompt, named on the command line or by a scheduler."""

import pytest

from heta_lens.evaluation.run_folder import Shard


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_prompt_is_in_one_shard(count: int) -> None:
    prompts = [*range(20)]
    shards = [Shard(index, count).of(prompts) for index in range(count)]
    assert sorted(prompt for shard in shards for prompt in shard) == prompts
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "0"}, "1/3"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"}, "2/3"),
        (
            {
                **{"SLURM_ARRAY_TASK_ID": "20", "SLURM_ARRAY_TASK_COUNT": "3"},
                **{"SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "5"},
            },
            "2/3",
        ),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "0/2"),
        ({"SLURM_PROCID": "4", "SLURM_NTASKS": "5"}, "4/5"),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "3"}, "1/3"),
    ],
)
def test_a_scheduler_says_which_shard(environment: dict[str, str], expected: str) -> None:
    assert str(Shard.read("auto", environment)) == expected
    assert Shard.read(expected, {}) == Shard.read("auto", environment)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("3/3", "shard 3/3 does not exist: shards are counted from 0"),
        ("0/0", "shard 0/0 does not exist"),
        ("1 of 3", "shard='1 of 3' is not of the form 0/3, nor auto/3, nor auto"),
        ("3", "is not of the form"),
        ("auto/x", "is not of the form"),
        ("-1/3", "is not of the form"),
        ("auto", "the environment has none of these: SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT; RANK and"),
    ],
)
def test_what_is_no_shard_is_refused(written: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shard.read(written, {"RANK": "0"})


@pytest.mark.parametrize("which", ["SLURM_ARRAY_TASK_ID", "RANK", "SLURM_PROCID"])
def test_a_scheduler_says_only_which_where_it_is_given_of_how_many(which: str) -> None:
    assert Shard.read("auto/16", {which: "5", "SLURM_ARRAY_TASK_COUNT": "1"}) == Shard(5, 16)
    with pytest.raises(ValueError, match="shard 5/4 does not exist"):
        Shard.read("auto/4", {which: "5"})
    with pytest.raises(ValueError, match="the environment has none of SLURM_ARRAY_TASK_ID, RANK"):
        Shard.read("auto/4", {})


@pytest.mark.parametrize(("number", "count", "least"), [(5, 1, 5), (5, 2, 3), (9, 2, 3)])
def test_a_part_of_an_array_is_refused(number: int, count: int, least: int) -> None:
    names = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"
    environment = dict(zip(names, map(str, (number, count, least)), strict=True))
    with pytest.raises(ValueError, match="is only a part of one: say of how many, as auto/16"):
        Shard.read("auto", environment)


def test_a_scheduler_whose_numbers_are_none_is_refused() -> None:
    with pytest.raises(ValueError, match="RANK='first'"):
        Shard.read("auto", {"RANK": "first", "WORLD_SIZE": "2"})
