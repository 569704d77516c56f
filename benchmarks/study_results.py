"""What the study found: settings by kind of question, and its decision. Candidates of HETA are arithmetic on parts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from benchmarks import study
from benchmarks.ranks import by_chance, reciprocal_rank
from benchmarks.study import MODELS
from benchmarks.study_prompts import KINDS
from heta_lens.diagnostics import rank_correlation
from heta_lens.evaluation.statistics import Estimate, corrected

RIVALS = ("leave_one_out", "attn_lrp", "fast", "heta")  # of the champion
OF_ONE_PASS = ("attn_lrp", "fast", "gradient_norm")  # rivals of the champion of one pass
ONE_PASS = (
    *("fast", "attn_lrp", "gim", "gradient_norm", "input_x_gradient", "grad_cam", "jacobian_scope"),
    *("attention_rollout", "attention_last", "attention_norm", "ifr", "flash_trace", "peering", "at2", "G", "M · G"),
)
SIGNED = ("fast", "attn_lrp", "gim", "input_x_gradient", "integrated_gradients")
REMOVED = {"leave_one_out": "drop", **{f"leave_one_out {how}": how for how in ("mean", "space", "delete", "resample")}}
MARGIN, LEVEL, MOVES = 0.05, 0.05, 0.1
RESAMPLED = 4_000  # draws of templates
PROMPT = ["family", "split", "number"]
HOW = ("delete", "resample")
Row = Mapping[str, Any]
Scores = NDArray[np.float64]


# -------------------------------------------------------------------------------------------------------------- scores
def root(one: ArrayLike, other: ArrayLike) -> Scores:
    return np.sqrt(np.abs(np.array(one)) * np.abs(np.array(other)))


def over(part: ArrayLike, others: ArrayLike) -> Scores:
    """Return a part over its mean size for other targets; where that is 0, so is the part."""
    means = np.abs(np.array(others)).mean(0)
    return np.array(part) / np.maximum(means, np.finfo(float).tiny)


def candidates(row: Row) -> dict[str, Scores]:
    """Return the scores of every setting of HETA, on the visible tokens."""
    parts = row["parts"]
    gate, squared, contrast, information, drop = (
        np.array(parts[name])
        for name in ("gate", "squared gradient", "squared gradient, contrast", "orig||masked", "drop")
    )
    runner_up, *others = np.array(parts["drop, others"])
    own, against = over(squared, parts["squared gradient, others"]), drop - runner_up
    found = {
        "√(G·I)": root(squared, information),
        "√(G·|Δ|)": root(squared, drop) * np.sign(drop),
        "I": information,
        "G": squared,
    }
    found |= {f"M · {name}": gate * scores for name, scores in found.items()}
    found |= {
        "G/E": own,
        "√(G/E·I)": root(own, information),
        "√(G/E·|Δ|)": root(own, drop) * np.sign(drop),
        "Δ − E": drop - np.mean(others, 0),
        "Δ/E": over(drop, others),
        "√(G·I/E)": root(squared, over(information, others)),
        "Δ, contrast": against,
        "√(G·|Δ|), contrast": root(contrast, against) * np.sign(against),
        "√(G·I), contrast of G": root(contrast, information),
    }
    if "curvature" in parts:
        curvature = np.array(parts["curvature"])
        found |= {"√(S·I)": root(curvature, information), "S": curvature}
    return found


def eligible_in(row: Row) -> list[int]:
    return [row["visible"].index(place) for place in row["eligible"]]


def scores_of(row: Row) -> dict[str, Scores]:
    """Return the scores of every setting on the visible tokens; NaN where a setting was not measured."""
    eligible, found = eligible_in(row), {name: np.array(values) for name, values in row["scores"].items()}
    found["leave_one_out"] = np.array(row["parts"]["drop"])
    for setting, how in REMOVED.items():
        if how in row["effects"]:
            found[setting] = np.full(len(row["visible"]), nan)
            found[setting][eligible] = effect(row, how)
    return found | candidates(row)


def effect(row: Row, how: str) -> Scores:
    """Return the drops of log p under an intervention, on the eligible tokens."""
    found = np.array(row["effects"][how])
    return found.mean(0) if how == "resample" else found


def seconds_of(row: Row, setting: str) -> float:
    """Return the seconds of a setting: of all parts it is made of."""
    seconds = row["seconds"]
    if setting in seconds:
        return seconds[setting]
    if setting in REMOVED:
        return seconds["zero" if setting == "leave_one_out" else REMOVED[setting]]
    made_of = {
        "zero": any(part in setting for part in "IΔ"),
        "squared gradient": "G" in setting or "M" in setting,
        "others": "G/E" in setting,
        "heta": "S" in setting,
    }
    return sum(seconds[part] for part, used in made_of.items() if used)


def measures(row: Row, scores: Scores) -> dict[str, float]:
    """Return the endpoints of a setting on a prompt."""
    eligible = eligible_in(row)
    gold = [row["visible"].index(place) for place in row["gold"]]
    values, last = torch.tensor(scores), len(row["visible"]) - 1
    whole = not bool(values.isnan().any())
    found = {
        "evidence": above_chance(values, gold, eligible),
        "evidence, visible": above_chance(values, gold, range(len(values))) if whole else nan,
        "last first": float(values.argmax() == last and last not in gold) if whole else nan,
    }
    own = values[eligible]
    for how in HOW if row["effects"] else ():
        moves = torch.tensor(effect(row, how))
        found[how] = correlation(own, moves)
        chosen = moves.abs() >= MOVES
        found[f"sign, {how}"] = float(((own > 0) == (moves > 0))[chosen].double().mean())
        found[f"for, {how}"] = float((moves > 0)[chosen].double().mean())
    return found


def above_chance(scores: torch.Tensor, gold: Sequence[int], candidates: Sequence[int]) -> float:
    """Return the reciprocal rank between a random order's (0) and the highest (1)."""
    chance = by_chance(len(candidates), len(gold))
    return (reciprocal_rank(scores, gold, candidates) - chance) / (1 - chance) if chance < 1 else nan


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return Spearman's correlation of the sizes; 0 where one side has no order."""
    value = rank_correlation(one.abs(), other.abs())
    return 0.0 if isnan(value) else value


def ceiling(rows: Iterable[Row]) -> float:
    """Return the highest correlation with resampling that a score without noise could have."""
    halves = [correlation(*map(torch.tensor, row["effects"]["resample"])) for row in rows if row["effects"]]
    return float(np.mean([np.sqrt(max(0.0, 2 * half / (1 + half))) for half in halves]))


# ------------------------------------------------------------------------------------------------------------- prompts
@cache
def prompts(model: str, split: str) -> dict[tuple[str, int], Row]:
    """Return the prompts that count, by family and number."""
    return {
        (family, number): row
        for (family, own, number), row in study.stored(f"study-{model}").items()
        if own == split and "left out" not in row
    }


@cache
def measured(model: str, split: str) -> Any:
    """Return the endpoints of every setting on every prompt, a row each."""
    return pd.DataFrame(
        {"kind": KINDS[family], "family": family, "split": split, "number": number, "template": row["template"]}
        | {"setting": setting, "seconds": seconds_of(row, setting)}
        | measures(row, scores)
        for (family, number), row in prompts(model, split).items()
        for setting, scores in scores_of(row).items()
    )


# ------------------------------------------------------------------------------------------------------- by kind, drawn
@dataclass(frozen=True, eq=False)
class Drawn:
    """An endpoint of settings by kind: its values (first), and in draws of templates within families."""

    settings: tuple[str, ...]
    kinds: tuple[str, ...]
    values: NDArray[np.float64]
    """draw × setting × kind"""
    prompts: int
    templates: int

    @cached_property
    def overall(self) -> NDArray[np.float64]:
        return self.values.mean(2)

    @cached_property
    def largest_regret(self) -> NDArray[np.float64]:
        """Return, by draw and setting, the largest distance over the kinds to the best setting of the kind."""
        return (self.values.max(1, keepdims=True) - self.values).max(2)

    def of(self, setting: str, kind: str | None = None) -> Estimate:
        return self.interval(self._values(kind)[:, self._at(setting)])

    def difference(self, one: str, other: str, kind: str | None = None) -> Estimate:
        return self.interval(self.apart(one, other, kind))

    def apart(self, one: str, other: str, kind: str | None = None) -> NDArray[np.float64]:
        values = self._values(kind)
        return values[:, self._at(one)] - values[:, self._at(other)]

    def interval(self, draws: NDArray[np.float64]) -> Estimate:
        low, high = np.quantile(draws[1:], [0.025, 0.975])
        return Estimate(float(draws[0]), float(low), float(high), self.prompts, self.templates)

    def _values(self, kind: str | None) -> NDArray[np.float64]:
        return self.values[:, :, self.kinds.index(kind)] if kind else self.overall

    def _at(self, setting: str) -> int:
        return self.settings.index(setting)


def drawn(frame: Any, endpoint: str = "evidence", settings: Sequence[str] = ()) -> Drawn:
    """Resample the templates of every family, on the prompts that have all settings (by default: every prompt's)."""
    wide = frame.pivot(index=["kind", "family", "template", *PROMPT[1:]], columns="setting", values=endpoint)
    wide = wide[[*settings]].dropna() if settings else wide.dropna(axis=1)
    generator, kinds = np.random.default_rng(0), dict[str, list[NDArray[np.float64]]]()
    for (kind, _), own in wide.groupby(level=["kind", "family"], sort=False):
        sums = own.groupby(level="template").sum().to_numpy()
        counts = own.groupby(level="template").size().to_numpy()
        times = generator.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), RESAMPLED)
        times = np.concatenate([np.ones((1, len(counts))), times])
        kinds.setdefault(str(kind), []).append((times @ sums) / (times @ counts)[:, None])
    ordered = [kind for kind in dict.fromkeys(KINDS.values()) if kind in kinds]
    values = np.stack([np.mean(kinds[kind], 0) for kind in ordered], 2)
    templates = len(wide.groupby(level=["family", "template"]))
    return Drawn(tuple(wide.columns), tuple(ordered), values, len(wide), templates)


# ------------------------------------------------------------------------------------------------------------- decision
@dataclass(frozen=True)
class Choice:
    """The setting that leads on dev, those that cannot be told from it, and the cheapest of these."""

    leader: str
    equal: tuple[str, ...]
    champion: str


def chosen(among: Callable[[str], bool] = lambda _: True) -> Choice:
    frame = measured(MODELS[0], "dev")
    own = drawn(frame)
    regrets = {name: own.largest_regret[:, at] for at, name in enumerate(own.settings) if among(name)}
    leader = min(regrets, key=lambda name: regrets[name][0])
    equal = [name for name, regret in regrets.items() if own.interval(regret - regrets[leader]).low <= 0]
    seconds = frame.groupby("setting")["seconds"].mean().to_dict()
    return Choice(leader, tuple(equal), min(equal, key=lambda name: seconds[name]))


@dataclass(frozen=True)
class Test:
    """A difference of evidence to a rival, and the p-value of being worse by the margin, corrected."""

    rival: str
    model: str
    difference: Estimate
    p: float


def confirmation(champion: str, rivals: Sequence[str]) -> list[Test]:
    """Test on new prompts, and on the other model, whether a champion is not worse than its rivals by the margin."""
    pairs = {
        (rival, model): drawn(measured(model, "test"), settings=(champion, rival))
        for model in MODELS
        for rival in rivals
        if rival != champion
    }
    apart = {(rival, model): pair.apart(champion, rival) for (rival, model), pair in pairs.items()}
    plain = [(1 + int((draws[1:] <= -MARGIN).sum())) / len(draws) for draws in apart.values()]
    return [Test(*of, pairs[of].interval(apart[of]), p) for of, p in zip(pairs, corrected(plain), strict=True)]
