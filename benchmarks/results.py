"""The page of results: what `real_study` measured, as tables and pictures; candidates of HETA are arithmetic on it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations
from math import isnan
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from benchmarks import held_back, pages, real_study
from benchmarks.outcomes import Outcomes
from benchmarks.pages import ROOT, Table, save_figure, written
from benchmarks.real_study import CHOOSING, MODELS
from heta_lens.diagnostics import rank_correlation
from heta_lens.evaluation.statistics import Estimate, corrected, difference, estimate
from heta_lens.metrics.evidence import evidence_mass, highest, reciprocal_rank, recovery

EVIDENCE, AGREEMENT, CRITERION = "reciprocal rank", "agreement", "criterion"
HOW = ("delete", "resample", "zero")
SIGN, FOR = "sign of ", "for by "  # with one of HOW: the share of equal signs, and of effects above 0
SHOWN = (  # rows of the short table
    *("heta", "careful", "fast", "attn_lrp", "gim", "leave_one_out", "lime", "integrated_gradients", "flash_trace"),
    *("depass", "at2", "gradient_norm", "random", "recency"),
)
ONE_PASS = (
    *("fast", "attn_lrp", "gim", "gradient_norm", "input_x_gradient", "grad_cam", "jacobian_scope", "depass"),
    *("attention_rollout", "attention_last", "attention_norm", "ifr", "flash_trace", "peering", "at2"),
)
SIGNED = ("leave_one_out", "fast", "attn_lrp", "gim", "integrated_gradients", "input_x_gradient")
MOVES = 0.1  # nats: a token has a sign if its removal moves log p as much
PROMPT = ["family", "split", "number"]
Row = Mapping[str, Any]


# ------------------------------------------------------------------------------------------------------------- scores
def root(one: ArrayLike, other: ArrayLike) -> np.ndarray:
    return np.sqrt(np.abs(np.array(one)) * np.abs(np.array(other)))


def candidates(row: Row) -> dict[str, np.ndarray]:
    """Return the scores of every candidate of HETA, on the eligible tokens."""
    parts = row["parts"]
    zero, mean = parts["zero"], parts["mean"]
    gate, squared, plain = (np.array(part) for part in (parts["gate"], parts["squared gradient"], zero["orig||masked"]))
    found = {
        "careful": root(squared, plain),
        "√(G·|Δ|)": root(squared, zero["drop"]),
        "√(G·I), masked‖original": root(squared, zero["masked||orig"]),
        "√(G·I), mean mask": root(squared, mean["orig||masked"]),
        "G": squared,
        "I": plain,
        "I, masked‖original": np.array(zero["masked||orig"]),
        "G/ΣG + I/ΣI": squared / squared.sum() + plain / plain.sum(),
    }
    if "curvature" in parts:
        curvature = np.array(parts["curvature"])
        found |= {
            "√(S·I)": root(curvature, plain),
            "√(S·|Δ|)": root(curvature, zero["drop"]),
            "S": curvature,
            "S/ΣS + I/ΣI": curvature / curvature.sum() + plain / plain.sum(),
        }
    return found | {f"M · {'√(G·I)' if name == 'careful' else name}": gate * values for name, values in found.items()}


def scores_of(row: Row) -> dict[str, np.ndarray]:
    """Return the scores of every method and candidate, on the eligible tokens."""
    removed = {"leave_one_out": "zero", "leave_one_out mask=mean": "mean"}
    drops = {name: row["parts"][mask]["drop"] for name, mask in removed.items()}
    return {name: np.array(values) for name, values in (row["scores"] | drops).items()} | candidates(row)


def effects_of(row: Row) -> dict[str, list[float]]:
    """Return the drops of log p under every intervention, on the eligible tokens."""
    masks = {mask: row["parts"][mask]["drop"] for mask in ("zero", "mean")}
    return {**{how: row[how] for how in ("delete", "resample")}, **masks, **row.get("others", {})}


def measures(row: Row, scores: ArrayLike) -> dict[str, float]:
    """Return the criterion of a prompt and what it is made of."""
    gold = [row["eligible"].index(place) for place in row["gold"] if place in row["eligible"]]
    values, effects = torch.tensor(scores, dtype=torch.float64), effects_of(row)
    found = {how: correlation(values, effects[how]) for how in HOW} | {
        EVIDENCE: reciprocal_rank(values, gold),
        "first is evidence": float(highest(values, 1)[0] in gold),
        "evidence mass": evidence_mass(values, gold),
        "recovery of 10 %": recovery(values, gold),
    }
    for how in HOW[:2]:
        found |= {SIGN + how: same_sign(values, effects[how]), FOR + how: same_sign(values * 0 + 1, effects[how])}
    agreement = (found["delete"] + found["resample"]) / 2
    return {CRITERION: (found[EVIDENCE] + agreement) / 2, AGREEMENT: agreement, **found}


def correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Return Spearman's correlation of the sizes; 0 where one side has no order."""
    value = rank_correlation(*(torch.as_tensor(side, dtype=torch.float64).abs() for side in (one, other)))
    return 0.0 if isnan(value) else value


# -------------------------------------------------------------------------------------------------------------- prompts
@cache
def prompts(model: str, split: str) -> dict[tuple[str, int], Row]:
    """Return the prompts that count, by family and number."""
    return {
        (family, number): row
        for (family, own, number), row in Outcomes(f"real_study-{model}").stored().items()
        if own == split and "left out" not in row
    }


@cache
def measured(model: str, split: str) -> pd.DataFrame:
    """Return the measures of every setting on every prompt, a row each."""
    return pd.DataFrame(
        {"family": family, "split": split, "number": number, "template": f"{family} {row['template']}"}
        | {"setting": setting}
        | measures(row, scores)
        | {"seconds": row["seconds"].get(setting)}
        for (family, number), row in prompts(model, split).items()
        for setting, scores in scores_of(row).items()
    )


def weights(frame: Any) -> Any:
    """Return the weight of every prompt, so that families weigh the same; the weights' mean is 1."""
    return len(frame) / frame.groupby("family")["family"].transform("size") / frame["family"].nunique()


def averaged(frame: Any, measure: str) -> Estimate:
    """Return the mean over families of the mean over prompts, with an interval over templates."""
    return estimate([*(frame[measure] * weights(frame))], [*frame["template"]])


def paired(frame: Any, one: str, other: str) -> Any:
    """Return the difference of two settings by the criterion, on prompts that have both."""
    ours, theirs = (frame[frame["setting"] == name] for name in (one, other))
    joined = ours.merge(theirs[[*PROMPT, CRITERION]], on=PROMPT, suffixes=("", " of the other"))
    weight = weights(joined)
    first, second = ([*(joined[name] * weight)] for name in (CRITERION, f"{CRITERION} of the other"))
    return difference(first, second, [*joined["template"]])


def chosen(among: Callable[[str], bool], *, with_heta: bool = False) -> str:
    """Return the setting with the highest criterion on the prompts that choose (of these, those with literal HETA)."""
    frame = measured(MODELS[0], "dev")
    frame = frame[frame["family"].isin(CHOOSING)]
    if with_heta:
        frame = frame.merge(frame[frame["setting"] == "heta"][PROMPT], on=PROMPT)
    means = frame.groupby(["setting", "family"])[CRITERION].mean().groupby("setting").mean()
    return str(means[[name for name in means.index if among(name)]].idxmax())


def is_candidate(setting: str) -> bool:
    return setting == "careful" or not setting[0].islower()


def per_token(setting: str) -> bool:
    """Return whether a setting takes a forward pass per token and at most one backward pass."""
    return setting == "leave_one_out" or (is_candidate(setting) and "S" not in setting)


# --------------------------------------------------------------------------------------------------------------- tables
COLUMNS = ["setting", "criterion", EVIDENCE, "first is evidence", "deletion", "resampling", "zeroing", "s", "prompts"]


def of_model(model: str, *splits: str) -> Any:
    return pd.concat([measured(model, split) for split in splits or real_study.SPLITS])


def cells(frame: Any, setting: str) -> list[str]:
    rows = frame[frame["setting"] == setting]
    shown = [averaged(rows, name) for name in (CRITERION, EVIDENCE, "first is evidence", *HOW)]
    seconds = rows["seconds"].dropna()
    return [f"`{setting}`", *map(written, shown), f"{seconds.mean():.1f}" if len(seconds) else "–", str(len(rows))]


def ranked(frame: Any, settings: Sequence[str]) -> list[str]:
    means = {name: averaged(frame[frame["setting"] == name], CRITERION).value for name in settings}
    return sorted((name for name in settings if not isnan(means[name])), key=lambda name: -means[name])


def table(title: str, frame: Any, settings: Sequence[str], leave_out: Sequence[str] = ()) -> Table:
    """Return the settings, the highest criterion first, without some of the columns."""
    kept = [place for place, name in enumerate(COLUMNS) if name not in leave_out]
    rows = [cells(frame, name) for name in ranked(frame, [*dict.fromkeys(settings)])]
    return Table(title, [COLUMNS[place] for place in kept], [[row[place] for place in kept] for row in rows])


def by_family(model: str, settings: Sequence[str]) -> Table:
    """Return the criterion of settings on every family."""
    frame = of_model(model)
    families = [*dict.fromkeys(frame["family"])]
    means = frame.groupby(["setting", "family"])[CRITERION].mean().unstack()[families]
    names = ranked(frame, [*dict.fromkeys(settings)])
    rows = [[f"`{name}`", *(f"{value:.2f}" for value in means.loc[name])] for name in names]
    return Table(f"{model}: the criterion by family", ["setting", *families], rows)


def signs(frames: Mapping[str, Any]) -> Table:
    """Return how often scores have the sign of the token's effect; the share of effects above 0 is the bar."""
    kinds = [(setting, SIGN, f"`{setting}`") for setting in SIGNED] + [("random", FOR, "every token *for*")]
    lines = []
    for setting, kind, shown in kinds:
        of = [frame[frame["setting"] == setting] for frame in frames.values()]
        known = [(rows[rows[kind + how].notna()], kind + how) for rows in of for how in HOW[:2]]
        counts = " and ".join(str(len(rows)) for rows, _ in known[::2])
        lines.append([shown, *(written(averaged(*one)) for one in known), counts])
    lines.sort(key=lambda line: line[1], reverse=True)
    columns = [f"{name}, {how}" for name in frames for how in ("deletion", "resampling")]
    note = (
        f"Of the tokens whose removal moves log p by at least {MOVES} nats, the share whose score has the sign of the\n"
        "move. Most of them speak for the answer, so calling every token *for* is often right; `leave_one_out` has\n"
        "an advantage: it is an ablation."
    )
    return Table("Signs", ["setting", *columns, "prompts"], lines, note=note)


def same_sign(scores: Tensor, effects: ArrayLike) -> float:
    """Return the share of tokens with the sign of their effect, of those that move log p."""
    own = torch.as_tensor(effects, dtype=torch.float64)
    moves = own.abs() >= MOVES
    return float(((scores > 0) == (own > 0))[moves].double().mean())


def interventions(model: str) -> Table:
    """Return how well interventions agree: the mean over prompts of the rank correlation of their effects."""
    found: dict[tuple[str, str], list[float]] = {}
    for split in real_study.SPLITS:
        for row in prompts(model, split).values():
            effects = effects_of(row)
            for one, other in combinations(effects, 2):
                found.setdefault((one, other), []).append(correlation(effects[one], effects[other]))
    names = [*dict.fromkeys(name for pair in found for name in pair)]

    def cell(one: str, other: str) -> str:
        values = found.get((one, other), found.get((other, one)))
        return f"{np.mean(values):.2f}" if values else "–"

    rows = [[one, *(cell(one, other) for other in names)] for one in names]
    return Table(f"{model}: interventions", ["", *names], rows)


def confirmation(pairs: Sequence[tuple[str, str]]) -> Table:
    """Return how far a setting is above another where nothing was chosen."""
    own = of_model(MODELS[0], "test")
    places = {
        "test, SmolLM2": own[own["family"].isin(CHOOSING)],
        "held-out suites and chats": of_model(MODELS[0]).query("family not in @CHOOSING"),
        "Gemma": of_model(MODELS[1]),
    }
    rows = []
    for one, other in pairs:
        found = [paired(frame, one, other) for frame in places.values()]
        adjusted = corrected([each.p for each in found])
        shown = (written(each, "+") for each in found)
        counts = ", ".join(str(each.n) for each in found)
        rows.append([f"`{one}` − `{other}`", *shown, f"{max(adjusted):.2g}", counts])
    note = (
        "A difference is confirmed if the last column is below .05: the largest of the three p-values after Holm's "
        "correction."
    )
    columns = ["difference of the criterion", *places, "largest p, Holm", "prompts"]
    return Table("Confirmed?", columns, rows, note=note)


# -------------------------------------------------------------------------------------------------------------- figures
def evidence_against_agreement(model: str, frame: Any, settings: Sequence[str]) -> Any:
    """Draw evidence against agreement with interventions: a labelled point with intervals for each setting."""
    figure, axis = plt.subplots(figsize=(7.5, 5.5), layout="constrained")
    labelled: list[tuple[float, float]] = []
    for name in dict.fromkeys(settings):
        rows = frame[frame["setting"] == name]
        if len(rows):
            across, up = averaged(rows, AGREEMENT), averaged(rows, EVIDENCE)
            colour = "C3" if is_candidate(name) or name == "heta" else "C0"
            lengths = [[[one.value - one.low], [one.high - one.value]] for one in (across, up)]
            axis.errorbar(across.value, up.value, *lengths[::-1], fmt="o", color=colour, elinewidth=0.6, markersize=4)
            place = (across.value, up.value - 0.022 * sum(_near(across.value, up.value, *other) for other in labelled))
            labelled.append(place)
            axis.annotate(name, place, xytext=(4, 4), textcoords="offset points", fontsize=8)
    axis.set(xlabel="agreement with deletion and resampling (Spearman)", ylabel="evidence (mean reciprocal rank)")
    axis.set_title(f"{model}: HETA and its settings in red", fontsize=10)
    return figure


def _near(across: float, up: float, other_across: float, other_up: float) -> bool:
    """Return whether the labels of two points would lie on each other."""
    return abs(across - other_across) < 0.06 and abs(up - other_up) < 0.05


def ends_of(model: str) -> pd.DataFrame:
    """Return the first, last and summed entries of literal HETA's parts, and the probability of the answer."""
    rows = [row for split in real_study.SPLITS for row in prompts(model, split).values() if "first, last, sum" in row]
    return pd.DataFrame(
        {
            f"{name} {end}": value
            for name, parts in row["first, last, sum"].items()
            for end, value in zip(("first", "last", "sum"), parts, strict=True)
        }
        | {"p": row["p"]}
        for row in rows
    )


def reasons() -> Any:
    """Draw what two tokens hold of the parts of literal HETA on every prompt."""
    figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
    rows = {"gate of the first token": "gate first", "information of the last token": "information last"}
    names = [f"{name}, {model.split('-')[0]}" for name in rows for model in MODELS]
    for row, (end, model) in enumerate((end, model) for end in rows.values() for model in MODELS):
        ends = ends_of(model)
        shares = ends[end] / ends[f"{end.split()[0]} sum"]
        axes.plot(shares, row + np.linspace(-0.3, 0.3, len(shares)), "o", ms=3, alpha=0.6, color=f"C{row // 2}")
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)), yticklabels=names)
    axes.set_xlabel("share of the whole, a dot per prompt")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def run(*models: str) -> None:
    """Measure for two hours each, where `python -m benchmarks.real_study run` takes other times."""
    for model in models or MODELS:
        real_study.run(model)


@cache
def tables() -> dict[str, list[Table]]:
    """Return the tables of every page, computed from the stored outcomes."""
    best = chosen(is_candidate, with_heta=True)
    one_pass, a_run_each = chosen(ONE_PASS.__contains__), chosen(per_token)
    against = [(best, name) for name in ("heta", "careful", "fast", "leave_one_out") if name != best]
    against += [(name, other) for name, other in ((one_pass, "fast"), (a_run_each, "careful")) if name != other]
    against += [("careful", "heta"), ("careful", "fast"), ("careful", "leave_one_out"), ("fast", "heta")]
    own = [table(model, frame, shown(), ("first is evidence", "zeroing")) for model, frame in frames().items()]
    signed = signs(dict(zip(("SmolLM2", "Gemma"), frames().values(), strict=True)))
    beside = list[Table]()
    for model in MODELS:
        frame = of_model(model)
        beside.append(table(f"{model}: every setting", frame, [*frame["setting"].unique()]))
        beside += [by_family(model, shown()), interventions(model)]
    confirmed = confirmation([*dict.fromkeys(against)])
    return {"results": [*own, confirmed, held_back.table(), signed], "real": beside}


def shown() -> list[str]:
    return [*SHOWN, chosen(is_candidate, with_heta=True)]


def frames() -> dict[str, Any]:
    """Return the prompts of the page's tables: of the model that chose settings, those of test."""
    return {MODELS[0]: of_model(MODELS[0], "test"), MODELS[1]: of_model(MODELS[1])}


def write() -> None:
    for page, own in tables().items():
        pages.write(page, own)
    for model, frame in frames().items():
        file = ROOT / "docs" / f"results_{model.split('-')[0].lower()}.png"
        save_figure(evidence_against_agreement(model, frame, shown()), file)
    save_figure(reasons(), ROOT / "docs" / "reasons.webp")
