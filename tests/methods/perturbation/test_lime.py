"""LIME against a plain least-squares fit, and captum."""

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from torch import Tensor

from helpers import zoo
from helpers.ablations import TARGET, N, close, found, worth
from helpers.asking import plain_embeddings, predict, relative
from heta_lens.methods.surrogates import Lime

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
BUILD = dict(zoo.KINDS)


def drawn(seed: int, ids: Tensor, samples: int, players: int, keep: float) -> list[list[bool]]:
    uniform = np.random.default_rng([seed, *ids[0].tolist()]).random((samples, players))
    return [[True] * players, *[[bool(u < keep) for u in row] for row in uniform]]


def near(z: list[bool], width: float) -> float:
    ones = sum(z)
    cosine = ones / (sqrt(ones) * sqrt(len(z))) if ones else 0.0
    return exp(-((1 - cosine) ** 2) / width**2)


LIME_OPTIONS: list[dict[str, Any]] = [
    {"samples": 20},
    {"samples": 30, "keep": 0.4, "width": 0.6, "penalty": 3, "seed": 4, "keep_bos": False, "scale": "log_odds"},
    {"samples": 25, "surrogate": "lasso"},
    {"samples": 25, "surrogate": "lasso", "penalty": 0.002, "mask": "mean"},
]


def least(z: Tensor, y: Tensor, pi: Tensor, penalty: float) -> Tensor:
    """Of ``Σ π (y - b - a·z)² + λ‖a‖²``, with b as one more column that costs nothing."""
    z = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)
    free = torch.eye(z.shape[1], dtype=z.dtype) * penalty
    free[-1, -1] = 0
    return torch.linalg.solve(z.T @ torch.diag(pi) @ z + free, z.T @ (pi * y))


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in NAMES for options in LIME_OPTIONS[: None if "gpt2" in name else 1]],
)
def test_lime_is_the_linear_model_that_fits_near_the_context(name: str, options: dict[str, Any]) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, N)
    first = int(options.get("keep_bos", True))
    z = drawn(options.get("seed", 0), ids, options["samples"], N - first, options.get("keep", 0.7))
    mask = plain_embeddings(model, ids).mean(0) if "mask" in options else 0.0
    of = worth(model, ids, mask, options.get("scale", "log_prob"))
    kept = [[*range(first), *[first + k for k, there in enumerate(row) if there]] for row in z]
    y = torch.tensor([of(some) for some in kept], dtype=torch.float64)
    pi = torch.tensor([near(row, options.get("width", 0.25)) for row in z], dtype=torch.float64)
    z = torch.tensor(z, dtype=torch.float64)
    if options.get("surrogate") == "lasso":
        plain = Lasso(alpha=options.get("penalty", 0.01), tol=1e-12, max_iter=10**6).fit(z, y, sample_weight=pi)
        expected, intercept = torch.from_numpy(plain.coef_), float(plain.intercept_)
    else:
        *weights, intercept = least(z, y, pi, options.get("penalty", 1.0)).tolist()
        expected = torch.tensor(weights, dtype=torch.float64)
    some = found(model, Lime(**options))
    close(name, some.scores, [0.0] * first + expected.tolist(), 20)
    assert some.diagnostics["intercept"] == pytest.approx(intercept, abs=1e-4)
    residual, spread = y - intercept - z @ expected, y - (pi @ y) / pi.sum()
    assert some.diagnostics["fit"] == pytest.approx(float(1 - pi @ residual**2 / (pi @ spread**2)), abs=1e-4)


def test_captums_lime_makes_the_same_of_the_same_samples() -> None:
    attr = pytest.importorskip("captum.attr")
    linear = pytest.importorskip("captum._utils.models.linear_model")
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    of = worth(model, ids)
    z = iter(drawn(0, ids, 30, N - 1, 0.7))

    theirs = attr.LimeBase(
        lambda inputs: torch.tensor([of([0, *[1 + k for k in range(N - 1) if inputs[0, k]]])]),
        linear.SkLearnLasso(alpha=0.01),
        similarity_func=lambda _, __, row, **___: near(row[0].bool().tolist(), 0.25),
        perturb_func=lambda _, **__: torch.tensor([next(z)]).double(),
        perturb_interpretable_space=True,
        from_interp_rep_transform=lambda row, _, **__: row,
        to_interp_rep_transform=None,
    ).attribute(torch.ones(1, N - 1).double(), n_samples=31)
    ours = found(model, Lime(samples=30, surrogate="lasso")).scores[1:]
    assert relative(ours, theirs[0]) < 1e-3


def test_lime_warns_of_more_tokens_than_samples() -> None:
    model = zoo.bridge("gpt2")
    with pytest.warns(UserWarning, match="samples=4 are fewer than the 5 tokens"):
        assert found(model, Lime(samples=4)).scores.isfinite().all()


def test_how_many_samples_lime_takes() -> None:
    model = zoo.bridge("gpt2")
    assert Lime().work(predict(model, zoo.prompt(model, N), TARGET)) == {"forwards": 201}
    assert Lime(samples=9).work(predict(model, zoo.prompt(model, N), TARGET)) == {"forwards": 10}
    assert Lime()._count(300) == 600
