"""Fit β and γ: the weights with which scores predict the effects of masking sets of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import bootstrap

from heta_lens._util.options import check_at_least
from heta_lens._util.python import quietly, warn
from heta_lens._util.work import working
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.score import scaled
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.coalitions import non_negative
from heta_lens.prediction.masking import random_sets, set_drops
from heta_lens.prediction.prediction import Prediction, prompt_generator

Array: TypeAlias = np.ndarray

FEW = 20  # predictions, below which weights are warned of
MODELS: dict[str, tuple[str, ...]] = {  # the features that are weighed, with factors ≥ 0 of their own
    "fitted": ("gated_curvature", "gated_information"),
    "half_scaled": ("half",),
    "gate": ("gate",),
    "curvature": ("curvature",),
    "information": ("information",),
}
SIMPLER = "half_scaled", "curvature", "information", "nothing"


@dataclass(frozen=True, eq=False)
class Fit:
    """The fitted weights, and their errors on held-out sets of tokens.

    ``held_out`` has the mean of ``|drop of g - sum of scores|`` in nats, with a 95 % bootstrap interval: ``half`` is
    β = γ = ½ as it stands; ``half_scaled``, and each part alone, get one factor ≥ 0; ``nothing`` scores every token 0.
    """

    beta: float
    gamma: float
    held_out: pd.DataFrame
    predictions: int
    subsets: int
    method: Heta

    @property
    def heta(self) -> Heta:
        """The fitted method, with the fitted weights."""
        if self.beta == self.gamma == 0:
            raise ValueError("both weights came out as 0: no score is nearer to what masking does; fit to others")
        return self.method.changed(beta=self.beta, gamma=self.gamma)


def fit_weights(predictions: Sequence[Prediction], method: Heta | None = None, *, folds: int = 5, seed: int = 0) -> Fit:
    """Choose β, γ ≥ 0 by least squares on ``g(X) - g(X with R masked) ≈ Σ_{i in R} M_i (β S_i + γ I_i)``.

    R are all single tokens and 32 random sets of every prediction's context. The held-out error comes from
    predictions that had no part in the fit (with a single prediction, from held-out sets). ``method`` says how the
    parts are computed; its weights are not used. A prediction costs the method, and a masked forward per set.
    """
    method = Heta() if method is None else method
    if not isinstance(method, Heta):
        raise TypeError(f"method={method!r} must be a heta_lens.Heta, whose weights are looked for")
    check_at_least("folds", folds, 2, whole=True)
    check_at_least("seed", seed, 0, whole=True)
    if method.recipe.weights is not None or not method.beta or not method.gamma:
        raise ValueError("fit_weights needs a method with both parts: variant='full', say, and beta and gamma above 0")
    if method.combine == "geometric":
        raise ValueError("fit_weights fits the weights of a sum, and combine='geometric' multiplies: leave it out")
    if not predictions or not all(isinstance(entry, Prediction) for entry in predictions):
        raise TypeError("fit_weights takes a list of heta_lens.Prediction: Prediction.from_cache(cache, target), …")
    for prediction in predictions:
        method.check(prediction)
    quiet, tables = replace(method, progress=False, interactions=False), []
    with working({"predictions": len(predictions)}, method.progress) as work:
        for number, prediction in enumerate(predictions):
            tables.append(measured(quiet, prediction, number, seed))
            work.advance("predictions", 1)
    table = pd.concat(tables, ignore_index=True)
    beta, gamma = factors(table, MODELS["fitted"])
    held_out = held_out_errors(table, folds_of(table["prediction"].to_numpy(), folds, seed))
    _warn_of_doubts(held_out, len(predictions))
    return Fit(float(beta), float(gamma), held_out, len(predictions), len(table), method)


def _warn_of_doubts(held_out: pd.DataFrame, predictions: int) -> None:
    """A fit to few predictions, or one that simpler scores beat on held-out ones, is no reason to change weights."""
    errors = held_out["error"]
    best = min(SIMPLER, key=lambda name: errors[name])
    if predictions < FEW:
        warn(f"weights vary much with so few predictions as {predictions}: use {FEW} or more")
    if errors["fitted"] > errors[best]:
        warn(
            f"on held-out predictions the fitted weights are off by {errors['fitted']:.3g} nats, and {best!r} by "
            f"{errors[best]:.3g}: keep the weights you had, or fit to more predictions"
        )


@one_at_a_time("prediction")
def measured(method: Heta, prediction: Prediction, number: int, seed: int) -> pd.DataFrame:
    """Make a row for every set of tokens: the drop of g without the set, and the sum of every feature over it."""
    parts = quietly(lambda: method(prediction)).parts  # weak ones too: their weights are what is looked for
    gate = parts["gate"]
    curvature, information = (scaled(parts[name], method.balance) for name in ("curvature", "information"))
    features = {
        "gate": gate,
        "curvature": curvature,
        "information": information,
        "gated_curvature": gate * curvature,
        "gated_information": gate * information,
        "half": gate * (curvature + information) / 2,
    }
    members = random_sets(prompt_generator(seed, prediction.ids), len(prediction))
    with prediction.running():
        dropped = set_drops(prediction, method.mask, members.to(prediction.embeddings.device), method.batch)
    sums = {name: (members.to(feature) @ feature).double().numpy() for name, feature in features.items()}
    return pd.DataFrame({**sums, "drop": dropped.double().cpu().numpy(), "prediction": number})


def factors(table: pd.DataFrame, features: Sequence[str]) -> Float[Array, "feature"]:
    """Return the factors ≥ 0 with which the features come nearest to the drops."""
    return non_negative(table[[*features]].to_numpy(), table["drop"].to_numpy())


def folds_of(prediction: Int[Array, "set"], folds: int, seed: int) -> Int[Array, "set"]:
    """Assign sets to held-out folds, with all sets of a prediction in a fold, unless the prediction is the only one."""
    _, group = np.unique(prediction, return_inverse=True)
    group = group if group.any() else np.arange(len(group))
    return np.random.default_rng([seed, folds]).permutation(group.max() + 1)[group] % folds


def held_out_errors(table: pd.DataFrame, fold: Int[Array, "set"]) -> pd.DataFrame:
    """Return every model's error where it was not fitted: of predictions, or of the sets of a single prediction."""
    guesses = pd.DataFrame({**dict.fromkeys(MODELS, 0.0), "half": table["half"], "nothing": 0.0}, index=table.index)
    for held in np.unique(fold):
        rest: Any = table[fold != held]
        for name, features in MODELS.items():
            fitted = factors(rest, features)
            guesses.loc[fold == held, name] = table.loc[fold == held, [*features]].to_numpy() @ fitted
    errors = guesses.rsub(table["drop"], axis=0).abs()
    if table["prediction"].nunique() > 1:
        errors = errors.groupby(table["prediction"]).mean()
    rows = [{"model": name, **interval(errors[name].to_numpy())} for name in errors]
    return pd.DataFrame(rows).set_index("model")


def interval(errors: Float[Array, "unit"]) -> dict[str, float]:
    """Return the mean and the range of 95 % of resampled means."""
    resamples = bootstrap((errors,), np.mean, method="percentile", n_resamples=2000, rng=np.random.default_rng(0))
    low, high = map(float, resamples.confidence_interval)
    return {"error": float(errors.mean()), "low": low, "high": high}
