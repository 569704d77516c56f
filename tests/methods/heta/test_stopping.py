"""Stopping when sure: the same samples as without, fewer of them, and what is promised about the others."""

import warnings
from typing import Any

import pytest
import torch
from scipy.stats import t as student
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import explain, relative
from heta_lens._util.numerics import Samples
from heta_lens.methods.heta.curvature import probes_needed, probes_wanted
from heta_lens.methods.heta.score import Parts

TARGET, N = 7, 9


def found(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> heta_lens.Attribution:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*were too few", UserWarning)
        return explain(model, ids, target, **options)


def parts(drawn: list[Tensor], gate: Tensor, information: Tensor | None = None) -> Parts:
    return Parts(gate, Samples.uneven(drawn), information, 1.0, 1.0)


def test_the_probes_needed_are_the_fewest_that_are_enough() -> None:
    spread = torch.tensor([0.0, 0.05, 0.1, 0.2, 9.0], dtype=torch.float64)
    needed = probes_needed(spread, 0.1, 40)
    assert needed.tolist()[0] == 3 and needed.tolist()[-1] == 40
    for s, n in list(zip(spread.tolist(), needed.tolist(), strict=True))[:-1]:
        assert student.ppf(0.975, n - 1) * s / n**0.5 <= 0.1
        assert n == 3 or student.ppf(0.975, n - 2) * s / (n - 1) ** 0.5 > 0.1


SURE, SMALL = torch.tensor([10.0, 10.1, 9.9]), torch.tensor([0.1, 0.2, 0.0])


def test_a_token_is_probed_again_until_it_is_known_well_enough() -> None:
    now = parts([SURE, torch.tensor([5.0, 9.0, 7.0]), SMALL, 0.9 * SURE], torch.ones(4))
    assert probes_wanted(now, "none", 0.2, 40).tolist() == [3, 6, 3, 3]  # no further than to twice as many
    assert probes_wanted(now, "none", 0.2, 4).tolist() == [3, 4, 3, 3]
    assert probes_wanted(now, "none", 10.0, 40).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|native)|hooked-rotary_gqa"))
def test_fewer_probes_are_the_first_of_the_same(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    few = found(model, ids, probes=12, tolerance=0.3)
    counts = few.diagnostics["probes"].tolist()
    assert 3 <= min(counts) < max(counts) <= 12
    for count in set(counts):
        all_of_them = found(model, ids, probes=count).parts["curvature"]
        same = torch.tensor(counts) == count
        assert relative(few.parts["curvature"][same], all_of_them[same]) < 1e-6
    assert few.diagnostics["hvps"] == sum(counts)


@pytest.mark.sample(quick=1, test=7)
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)"))
@pytest.mark.parametrize(
    "options",
    [
        {"variant": "win", "window": 4, "window_mode": "frozen"},
        {"variant": "win", "window": 4, "window_mode": "restrict"},
        {"variant": "ls", "layers": 1},
        {"variant": "gn"},
        {"support": "row"},
        {"balance": "sum"},
        {"variant": "no_gate"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_every_way_of_probing_can_stop(build: Any, options: dict[str, Any]) -> None:
    """A tolerance that is not reached takes all the probes there are, and one that is at once the fewest."""
    model = build()
    ids = zoo.prompt(model, N)
    every, most = found(model, ids, probes=7, **options), found(model, ids, probes=7, tolerance=1e-9, **options)
    assert most.diagnostics["probes"].tolist() == [7] * N
    assert relative(most.scores, every.scores) < 1e-6
    for kind in ("scores", "curvature"):
        assert relative(most.standard_errors[kind], every.standard_errors[kind]) < 1e-5
    least = found(model, ids, probes=7, tolerance=1e3, **options)
    assert least.diagnostics["probes"].tolist() == [3] * N and least.diagnostics["unsure"] == 0
    assert relative(least.scores, found(model, ids, probes=3, **options).scores) < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.1, "probes": 2}, "needs at least probes=3"),
        ({"tolerance": 0.1, "interactions": True}, "does not go with interactions=True"),
        ({"tolerance": 0.1, "variant": "win", "window_mode": "chunk"}, "does not go with window_mode='chunk'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_stop_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        heta_lens.Heta(**options)
