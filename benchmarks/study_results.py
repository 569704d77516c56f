"""What the study found: settings by kind of question, and its decision. Candidates of HETA are arithmetic on parts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from benchmarks.outcomes import Outcomes
from benchmarks.ranks import by_chance, reciprocal_rank
from benchmarks.study import MODELS
from benchmarks.study_prompts import KINDS
from heta_lens.diagnostics import rank_correlation
from heta_lens.evaluation.statistics import Estimate, corrected

RIVALS = ("leave_one_out", "attn_lrp", "fast", "heta")  # of the champion
OF_ONE_PASS = ("attn_lrp", "fast", "gradient_norm")  # rivals of the champion of one pass
ONE_PASS = (  # of the model, forward and back
    *("fast", "attn_lrp", "gim", "gradient_norm", "input_x_gradient", "grad_cam", "jacobian_scope"),
    *("attention_rollout", "attention_last", "attention_norm", "ifr", "flash_trace", "peering", "at2", "M · G"),
)
CONTROLS = ("random", "recency", "primacy", "copy")
SIGNED = (
    *("fast", "attn_lrp", "gim", "input_x_gradient", "integrated_gradients", "lime", "kernel_shap", "context_cite"),
)
REMOVED = {"leave_one_out": "drop", **{f"leave_one_out {how}": how for how in ("mean", "space", "delete", "resample")}}
MARGIN, LEVEL, MOVES = 0.05, 0.05, 0.1
FEWEST = 1 / 3  # right answers of a family in test, over those of the family with most
FEW = 1 / 10  # families of one template, among all of which an interval is still told
RESAMPLED = 4_000  # draws of templates
PROMPT = ["family", "split", "number"]
HOW = ("delete", "resample")
Row = Mapping[str, Any]
Scores = NDArray[np.float64]


# -------------------------------------------------------------------------------------------------------------- scores
def root(one: ArrayLike, other: ArrayLike) -> Scores:
    return np.sqrt(np.abs(np.array(one)) * np.abs(np.array(other)))


def over(part: ArrayLike, others: ArrayLike) -> Scores:
    """Return a part over its mean size for other targets."""
    means = np.abs(np.array(others)).mean(0)
    return np.array(part) / np.maximum(means, np.finfo(float).tiny)


def candidates(row: Row) -> dict[str, Scores]:
    """Return the scores of every setting of HETA, on the visible tokens."""
    parts = row["parts"]
    gate, squared, information, drop = (
        np.array(parts[name]) for name in ("gate", "squared gradient", "orig||masked", "drop")
    )
    of_others = dict(zip(row["others"], np.array(parts["drop, others"]), strict=True))
    others = [values for name, values in of_others.items() if name.startswith("drawn")]
    own, moved = over(squared, parts["squared gradient, others"]), over(drop, others)
    sign, informed = np.sign(drop), over(information, others)
    found = {"√(G·I)": root(squared, information), "√(G·|Δ|)": root(squared, drop) * sign, "I": information}
    found |= {f"M · {name}": gate * scores for name, scores in {**found, "G": squared}.items()}
    found |= {
        "gradient_norm": np.sqrt(squared),
        "G/E": own,
        "√(G/E·I)": root(own, information),
        "√(G/E·|Δ|)": root(own, drop) * sign,
        "√(G/E·|Δ|/E)": root(own, moved) * sign,
        "Δ − E": drop - np.mean(others, 0),
        "Δ/E": moved,
        "√(I·|Δ|/E)": root(information, moved) * sign,
        "√(G·I/E)": root(squared, informed),
    }
    for name, contrast in parts["squared gradient, contrast"].items():
        against = drop - of_others[name]
        found |= {
            f"Δ, {name}": against,
            f"√(G·|Δ|), {name}": root(contrast, against) * np.sign(against),
            f"√(G·I), {name}": root(contrast, information),
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
    found["recency"] = np.arange(float(len(row["visible"])))
    found["primacy"] = -found["recency"]
    found["copy"] = np.isin(row["visible"], row["copies"]).astype(float)
    for setting, how in REMOVED.items():
        if how in row["effects"]:
            found[setting] = np.full(len(row["visible"]), nan)
            found[setting][eligible] = effect(row, how)
    return found | candidates(row)


def effect(row: Row, how: str) -> Scores:
    """Return the drops of log p under an intervention, on the eligible tokens."""
    found = np.array(row["effects"][how])
    return found.mean(0) if how == "resample" else found


def measures(row: Row, scores: Scores) -> dict[str, float]:
    """Return the endpoints of a setting on a prompt."""
    eligible = eligible_in(row)
    gold = [row["visible"].index(place) for place in row["gold"]]
    values, last = torch.tensor(scores), len(row["visible"]) - 1
    whole = not bool(values.isnan().any())
    found = {
        "evidence": above_chance(values, gold, eligible),
        "evidence, visible": above_chance(values, gold, range(len(values))) if whole else nan,
        "room, evidence": 1 - by_chance(len(eligible), len(gold)),
        "room, evidence, visible": 1 - by_chance(len(values), len(gold)),
        "last first": float(values.argmax() == last and last not in gold) if whole else nan,
    }
    own = values[eligible]
    for how in HOW if row["effects"] else ():
        moves = torch.tensor(effect(row, how))
        found[how] = correlation(own, moves)
        chosen = moves.abs() >= MOVES
        found[f"sign, {how}"] = float((own.sign() == moves.sign())[chosen].double().mean())
        found[f"for, {how}"] = float((moves > 0)[chosen].double().mean())
    return found


def above_chance(scores: torch.Tensor, gold: Sequence[int], candidates: Sequence[int]) -> float:
    """Return the reciprocal rank less that of a random order."""
    return reciprocal_rank(scores, gold, candidates) - by_chance(len(candidates), len(gold))


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return Spearman's correlation of the sizes; 0 where one side has no order."""
    value = rank_correlation(one.abs(), other.abs())
    return 0.0 if isnan(value) else value


def ceiling(rows: Iterable[Row]) -> float:
    """Return the highest correlation with resampling that a score without noise could have."""
    halves = [correlation(*map(torch.tensor, row["effects"]["resample"])) for row in rows if row["effects"]]
    return float(np.mean([np.sqrt(2 * half / (1 + half)) if half > 0 else 0.0 for half in halves]))


# ------------------------------------------------------------------------------------------------------------- prompts
@cache
def stored(model: str) -> dict[tuple[str, str, int], Row]:
    """Return every prompt that was tried, by family, split and number, with what was added to some."""
    found, *more = (Outcomes(f"study-{model}{part}").stored() for part in ("", "-slower", "-heta"))
    for key, row in chain.from_iterable(part.items() for part in more):
        found[key] |= {name: {**found[key].get(name, {}), **row[name]} for name in row.keys() - {"commit"}}
    return found


@cache
def too_few() -> tuple[str, ...]:
    """Return the families with few right answers in test on a model: they are left out on both models."""
    right = {model: Counter[str]() for model in MODELS}
    for model in MODELS:
        for (family, split, _), row in stored(model).items():
            right[model][family] += split == "test" and "left out" not in row
    rare = {family for own in right.values() for family, n in own.items() if n < FEWEST * max(own.values())}
    return tuple(family for family in KINDS if family in rare)


@cache
def prompts(model: str, split: str) -> dict[tuple[str, int], Row]:
    """Return the prompts that count, by family and number."""
    return {
        (family, number): row
        for (family, own, number), row in stored(model).items()
        if own == split and "left out" not in row and family not in too_few()
    }


def described(family: str, split: str, number: int, row: Row) -> dict[str, Any]:
    own = {"family": family, "split": split, "number": number, "template": row["template"]}
    return {"kind": KINDS[family], **own}


@cache
def measured(model: str, split: str) -> Any:
    """Return the endpoints of every setting on every prompt, a row each."""
    return pd.DataFrame(
        {**described(family, split, number, row), "setting": setting}
        | measures(row, scores)
        | {f"{of}{how}": nan for how in HOW if REMOVED.get(setting) == how for of in ("", "sign, ")}  # with itself
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
    families: int
    single: tuple[str, ...] = ()
    """The kinds of the families with one template, whose draws are all alike: intervals would be too narrow"""

    @cached_property
    def overall(self) -> NDArray[np.float64]:
        return self.values.mean(2)

    @cached_property
    def largest_regret(self) -> NDArray[np.float64]:
        """Return, by draw and setting, the largest distance over the kinds to the best setting of the kind."""
        return (self.values.max(1, keepdims=True) - self.values).max(2)

    def of(self, setting: str, kind: str | None = None) -> Estimate:
        return self._of_kind(self._values(kind)[:, self._at(setting)], kind)

    def difference(self, one: str, other: str, kind: str | None = None) -> Estimate:
        return self._of_kind(self.apart(one, other, kind), kind)

    def apart(self, one: str, other: str, kind: str | None = None) -> NDArray[np.float64]:
        values = self._values(kind)
        return values[:, self._at(one)] - values[:, self._at(other)]

    def interval(self, draws: NDArray[np.float64]) -> Estimate:
        low, high = np.quantile(draws[1:], [0.025, 0.975])
        return Estimate(float(draws[0]), float(low), float(high), self.prompts, self.templates)

    def _of_kind(self, draws: NDArray[np.float64], kind: str | None) -> Estimate:
        found, few = self.interval(draws), len(self.single) > FEW * self.families
        return replace(found, low=nan, high=nan) if (kind in self.single if kind else few) else found

    def _values(self, kind: str | None) -> NDArray[np.float64]:
        return self.values[:, :, self.kinds.index(kind)] if kind else self.overall

    def _at(self, setting: str) -> int:
        return self.settings.index(setting)


def drawn(frame: Any, endpoint: str = "evidence", settings: Sequence[str] = ()) -> Drawn:
    """Resample the templates of every family, on the prompts that have all settings (by default: every prompt's).

    A family's value is its mean; of evidence, over what a random order leaves (``room``). Of n templates a draw has
    n - 1, since n would vary too little.
    """
    index = ["kind", "family", "template", *PROMPT[1:]]
    frame = frame[frame["setting"].isin(settings)] if settings else frame
    wide = frame.pivot(index=index, columns="setting", values=endpoint)
    wide = wide[[*settings]].dropna() if settings else wide.dropna(axis=1)
    room, generator = f"room, {endpoint}", np.random.default_rng(0)
    rooms: Any = frame.groupby(index)[room].first().loc[wide.index] if room in frame else pd.Series(1.0, wide.index)
    sums: Any = wide.groupby(level=index[:3]).sum()
    by_template, counts = sums.to_numpy(), rooms.groupby(level=index[:3]).sum().to_numpy()
    kinds, single = dict[str, list[NDArray[np.float64]]](), list[str]()
    for (kind, _), at in sums.groupby(level=["kind", "family"], sort=False).indices.items():
        if len(at) == 1:
            single.append(str(kind))
        times = generator.multinomial(max(1, len(at) - 1), np.full(len(at), 1 / len(at)), RESAMPLED)
        times = np.concatenate([np.ones((1, len(at))), times])
        kinds.setdefault(kind, []).append((times @ by_template[at]) / (times @ counts[at])[:, None])
    ordered = [kind for kind in dict.fromkeys(KINDS.values()) if kind in kinds]
    values = np.stack([np.mean(kinds[kind], 0) for kind in ordered], 2)
    families = sum(map(len, kinds.values()))
    return Drawn(tuple(wide.columns), tuple(ordered), values, len(wide), len(sums), families, tuple(single))


# ------------------------------------------------------------------------------------------------------------- decision
@dataclass(frozen=True)
class Choice:
    """The setting that leads on dev, those that are as good, the cheapest of these, and those that lack some prompt."""

    leader: str
    equal: tuple[str, ...]
    champion: str
    left_out: tuple[str, ...]
    drawn: Drawn
    """Evidence on dev, of all that could be chosen"""


def chosen(among: Callable[[str], bool] = lambda _: True) -> Choice:
    """Choose the setting whose largest distance to the best of a kind is smallest, or one of one pass that is as good.

    As good: the interval of the difference contains 0, and the difference is at most the margin.
    """
    frame = measured(MODELS[0], "dev")
    frame = frame[[name not in CONTROLS and among(name) for name in frame["setting"]]]
    own = drawn(frame)
    regrets = {name: own.largest_regret[:, at] for at, name in enumerate(own.settings)}
    leader = min(regrets, key=lambda name: regrets[name][0])
    apart = {name: regret - regrets[leader] for name, regret in regrets.items()}
    equal = [name for name, draws in apart.items() if draws[0] <= MARGIN and own.interval(draws).low <= 0]
    champion = min(equal, key=lambda name: (name not in ONE_PASS, regrets[name][0]))
    return Choice(leader, tuple(equal), champion, tuple(sorted({*frame["setting"]} - {*own.settings})), own)


@dataclass(frozen=True)
class Test:
    """A difference of evidence to a rival, and the p-value of being worse by the margin, corrected."""

    rival: str
    model: str
    difference: Estimate
    p: float


def confirmation(champion: str, rivals: Sequence[str]) -> list[Test]:
    """Test on new prompts, and on the other model, whether a champion is not worse than its rivals by the margin.

    Families without a prompt that has both, such as long ones without literal HETA, have no part in a test.
    """
    pairs = {
        (rival, model): drawn(measured(model, "test"), settings=(champion, rival))
        for model in MODELS
        for rival in rivals
        if rival != champion
    }
    apart = {(rival, model): pair.apart(champion, rival) for (rival, model), pair in pairs.items()}
    plain = [(1 + int((draws[1:] <= -MARGIN).sum())) / len(draws) for draws in apart.values()]
    return [Test(*of, pairs[of].interval(apart[of]), p) for of, p in zip(pairs, corrected(plain), strict=True)]


@dataclass(frozen=True)
class Decision:
    """What is chosen on dev, its tests, and what is recommended if they do not confirm the champion."""

    choice: Choice
    tests: Sequence[Test]
    otherwise: str

    @property
    def recommended(self) -> str:
        return self.choice.champion if all(test.p < LEVEL for test in self.tests) else self.otherwise


@cache
def decisions() -> dict[str, Decision]:
    """Return the decision among all settings, and the one among those of one pass."""
    every, one_pass = chosen(), chosen(ONE_PASS.__contains__)
    return {
        "all settings": Decision(every, confirmation(every.champion, RIVALS), "leave_one_out"),
        "one pass": Decision(one_pass, confirmation(one_pass.champion, OF_ONE_PASS), "fast"),
    }


def recommended() -> str:
    return decisions()["all settings"].recommended


@cache
def pair(model: str, one: str, other: str) -> Drawn:
    """Return the evidence of two settings on the test prompts that have both."""
    return drawn(measured(model, "test"), settings=(one, other))


@cache
def best_of(kind: str) -> tuple[str, dict[str, Estimate]]:
    """Return the setting with the highest evidence of a kind on dev, and by model how far it is above in test."""
    frame = measured(MODELS[0], "dev")
    every = drawn(frame[(frame["kind"] == kind) & ~frame["setting"].isin(CONTROLS)])
    best = max(every.settings, key=lambda name: (round(every.of(name).value, 9), name == recommended()))
    pairs = {model: pair(model, best, recommended()) for model in MODELS}
    apart = {model: own.difference(best, recommended(), kind) for model, own in pairs.items() if kind in own.kinds}
    return best, apart


def recommended_for(kind: str) -> str:
    """Return the best setting of a kind if it is above the recommended one on every model."""
    best, apart = best_of(kind)
    return best if all(one.low > 0 for one in apart.values()) else recommended()
