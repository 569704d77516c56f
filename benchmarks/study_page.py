"""Tables and figures of what the study found: `python -m benchmarks.study_page` writes them from the stored outcomes.

Values are of the test prompts, and whoever wins is printed first. `phrases` are what prose may say in numbers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, permutations, product
from math import isnan, nan
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from benchmarks import long_study, pages, study_results
from benchmarks.pages import ROOT, Table, save_figure, written
from benchmarks.study import MODELS, WANTED
from benchmarks.study_prompts import KINDS, SPLITS
from benchmarks.study_results import HOW, REMOVED, Drawn, best_of, decisions, drawn, measured, prompts, recommended
from heta_lens.evaluation.statistics import Estimate

SHORT: Mapping[str, str] = dict(zip(MODELS, ("SmolLM2", "Gemma"), strict=True))
EVIDENCE, VISIBLE, LAST = "evidence", "evidence, visible", "last first"
FOR, ABOVE_FOR = "every token *for*", "above for, "
SIGNED = (
    *(*REMOVED, *study_results.SIGNED),
    *("√(G·|Δ|)", "√(G/E·|Δ|)", "√(G/E·|Δ|/E)", "√(I·|Δ|/E)", "Δ − E", "Δ/E", "Δ, runner-up", "√(G·|Δ|), runner-up"),
)
SHOWN = ("gim", "√(G·I)", "√(G·|Δ|)", "M · √(G·|Δ|)", "I", "√(G·|Δ|), wrong form")  # besides those of the decision
STEPS = (  # with the gate, and without; with the curvature, and with the gradient; with a sum, and with a product
    *(("M · I", "I"), ("M · G", "gradient_norm"), ("M · √(G·I)", "√(G·I)"), ("M · √(G·|Δ|)", "√(G·|Δ|)")),
    *(("S", "gradient_norm"), ("√(S·I)", "√(G·I)"), ("√(S·I)", "I"), ("heta", "√(S·I)"), ("heta", "leave_one_out")),
)
COPIED, PARAGRAPH = ("text", "binding", "chats"), "squad_paragraph"  # where the evidence has the answer's letters
READ = ("careful", "leave_one_out", "peering", "attn_lrp", "fast", "copy")  # by family
FEWER = "Rows with fewer prompts cannot be compared with the others: differences are on the prompts that have both."
ALIKE = "ρ of the squared gradient's sum with the curvature's sum"
CERTAIN = "ρ of p with the curvature's sum"
FIRST = 10  # rows of long tables on the page of results
NAMES = {"√(G·|Δ|)": "careful"}  # of settings that the library names
BUDGETED = ("careful", "leave_one_out")
LONG = (  # settings on long prompts
    *("attn_lrp", "fast", "gradient_norm", "flash_trace", "random", *BUDGETED),
    *(f"{name} with a budget" for name in BUDGETED),
)
TIMED = ("zero", "squared gradient", "fast", "attn_lrp", "peering", "heta")
SECONDS = {"leave_one_out": TIMED[:1], "√(G·|Δ|)": TIMED[:2], **{name: [name] for name in TIMED[2:]}}  # what they run
COUNTED = ("right", "wrong", "long", "error")  # prompts; those that are not right are left out


# --------------------------------------------------------------------------------------------------------------- values
@cache
def ceiling(model: str) -> float:
    return study_results.ceiling(prompts(model, "test").values())


@cache
def framed(model: str) -> Any:
    """Return the endpoints on test prompts: agreement over its ceiling, and signs above those of *every token for*."""
    frame = measured(model, "test")
    always = frame[frame["setting"] == "recency"].assign(setting=FOR, **dict.fromkeys((EVIDENCE, VISIBLE, LAST, *HOW)))
    always = always.assign(**{f"sign, {how}": always[f"for, {how}"] for how in HOW})
    frame = pd.concat([frame, always.astype(frame.dtypes)])
    above = {f"{ABOVE_FOR}{how}": frame[f"sign, {how}"] - frame[f"for, {how}"] for how in HOW}
    return frame.assign(resample=frame["resample"] / ceiling(model), **above)


@cache
def found(model: str, endpoint: str = EVIDENCE) -> dict[str, Drawn]:
    """Return an endpoint of every setting, on the prompts that have it."""
    frame = framed(model)
    known = frame.pivot(index=study_results.PROMPT, columns="setting", values=endpoint).notna()
    alike = dict[bytes, list[str]]()
    for name in known.columns[known.any()]:
        alike.setdefault(known[name].to_numpy().tobytes(), []).append(str(name))
    return {name: own for names in alike.values() for own in [drawn(frame, endpoint, names)] for name in names}


def kinds_of(model: str) -> tuple[str, ...]:
    return found(model)["recency"].kinds


class Column(NamedTuple):
    """An endpoint on a model, in a kind or as the mean over all kinds; ``against`` a setting, the difference to it."""

    model: str
    endpoint: str = EVIDENCE
    kind: str | None = None
    against: str = ""

    def of(self, setting: str) -> Estimate:
        """Return the value of a setting; NaN if it was not measured in the kind, or in some kind."""
        known = found(self.model, self.endpoint)
        own = known.get(setting) if {setting, self.against or setting} <= {*known} else None
        if own and self.against:
            own = study_results.pair(self.model, setting, self.against)
        if own is None or not {*([self.kind] if self.kind else kinds_of(self.model))} <= {*own.kinds}:
            return Estimate(nan, nan, nan, own.prompts if own else 0, own.templates if own else 0)
        return own.difference(setting, self.against, self.kind) if self.against else own.of(setting, self.kind)


@cache
def shown() -> tuple[str, ...]:
    """Return the settings of short tables: those of the decision, the best of each kind, and some others."""
    decided = [name for one in decisions().values() for name in (one.choice.champion, one.choice.leader)]
    best = [best_of(kind)[0] for kind in kinds_of(MODELS[0])]
    return tuple(dict.fromkeys([*decided, *study_results.RIVALS, *study_results.OF_ONE_PASS, *best, *SHOWN]))


# --------------------------------------------------------------------------------------------------------------- tables
def plain(one: Estimate) -> str:
    return f"{one.value:.2f}"


def signed(one: Estimate) -> str:
    return written(one, "+")


def sizes_of(own: Drawn) -> str:
    return f"{own.prompts} prompts in {own.templates} templates of {own.families} families"


def code(name: str) -> str:
    return name if name == FOR else f"`{NAMES.get(name, name)}`"


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names)) or "none"


def table(
    title: str, settings: Iterable[str], columns: Mapping[str, Column], form: Callable[[Estimate], str], note: str = ""
) -> Table:
    """Return settings by columns, the highest in the first column first, with the numbers of prompts on each model."""
    models = dict.fromkeys(column.model for column in columns.values())
    lines = list[tuple[float, list[str]]]()
    for name in settings:
        cells = {column: column.of(name) for column in columns.values()}
        sizes = [
            " and ".join(str(max(getattr(cells[one], of) for one in cells if one.model == model)) for model in models)
            for of in ("n", "clusters")
        ]
        texts = ["–" if isnan(one.value) else form(one) for one in cells.values()]
        if {*texts} != {"–"}:
            first = next(iter(cells.values())).value
            lines.append((np.inf if isnan(first) else -first, [code(name), *texts, *sizes]))
    rows = [line for _, line in sorted(lines, key=lambda one: one[0])]
    return Table(title, ["setting", *columns, "prompts", "templates"], rows, note=note)


def regrets(among: str, rows: int | None = None) -> Table:
    """Return the largest regret over the kinds on dev, and the regret in each, by setting, up to so many ``rows``."""
    choice = decisions()[among].choice
    own, largest = choice.drawn, choice.drawn.largest_regret
    by_kind = own.values[0].max(0) - own.values[0]
    lines = [
        [code(own.settings[at]), f"{largest[0, at]:.2f}", *(f"{regret:.2f}" for regret in by_kind[at])]
        + ["yes" if own.settings[at] in names else "" for names in (choice.equal, study_results.ONE_PASS)]
        for at in np.argsort(largest[0], kind="stable")[:rows]
    ]
    note = (
        f"{code(choice.leader)} leads; the champion is {code(choice.champion)}. {len(lines)} of {len(own.settings)} "
        f"settings, on {sizes_of(own)}."
    )
    if rows is None:
        note += f" Left out, since not every prompt has them: {listed(choice.left_out)}."
    columns = ["setting", "largest regret", *own.kinds, "as good as the leader", "one pass"]
    return Table(f"Regret on dev, {among}", columns, lines, note=note)


def confirmed() -> Table:
    """Return the tests of both champions on new prompts, and on the other model."""
    columns = ["difference of evidence", "champion of", "model", "difference", "p, Holm", "confirmed", "prompts"]
    rows = [
        [
            *(f"{code(one.choice.champion)} − {code(test.rival)}", among, SHORT[test.model], signed(test.difference)),
            *(f"{test.p:.2g}", "yes" if test.p < study_results.LEVEL else "no", str(test.difference.n)),
        ]
        for among, one in decisions().items()
        for test in one.tests
    ]
    note = f"p is of being worse by {study_results.MARGIN} or more; a champion is confirmed if all its tests are."
    return Table("Confirmed?", columns, rows, note=note)


def by_kind() -> Table:
    """Return the recommended setting of each kind, and the best setting on each model."""
    rows = list[list[str]]()
    for kind in kinds_of(MODELS[0]):
        best, apart = best_of(kind)
        cells = [signed(apart[model]) if model in apart else "–" for model in MODELS]
        rows.append([kind, code(study_results.recommended_for(kind)), code(best), *cells])
    columns = [f"its evidence − {code(recommended())}'s, {name}" for name in SHORT.values()]
    return Table("By kind", ["kind", "recommended", "best on dev", *columns], rows)


def over_kinds(model: str, endpoint: str = EVIDENCE, against: str = "") -> dict[str, Column]:
    return {kind or "all kinds": Column(model, endpoint, kind, against) for kind in (None, *kinds_of(model))}


def evidence(model: str) -> Table:
    """Return the evidence of the shown settings and of the controls by kind, beside that among visible tokens."""
    columns = over_kinds(model) | {"visible tokens": Column(model, VISIBLE), "last on top": Column(model, LAST)}
    settings, note = (*shown(), *study_results.CONTROLS), f"{sizes_of(found(model)['recency'])}. {FEWER}"
    return table(f"{SHORT[model]}: evidence", settings, columns, plain, note)


@cache
def of_families(model: str) -> Any:
    """Return the evidence of every family, by setting."""
    frame = framed(model)
    sums = frame.groupby(["family", "setting"])[[EVIDENCE, f"room, {EVIDENCE}"]].sum()
    return (sums[EVIDENCE] / sums[f"room, {EVIDENCE}"]).unstack()


def by_family(model: str) -> Table:
    """Return the evidence of the settings that the page recommends, by family."""
    names = {NAMES.get(name, name): name for name in shown() + study_results.CONTROLS}
    read, values = [names[name] for name in READ if name in names], of_families(model)
    counts = Counter(family for family, _ in prompts(model, "test"))
    rows = [
        [f"`{family}`", kind, *(f"{values.loc[family, name]:.2f}" for name in read), str(counts[family])]
        for family, kind in KINDS.items()
        if family in counts
    ]
    return Table(f"{SHORT[model]}: evidence by family", ["family", "kind", *map(code, read), "prompts"], rows)


def every_setting(model: str) -> Iterator[Table]:
    """Yield the endpoints of all settings by kind, and the differences of evidence, with intervals."""
    titles = {EVIDENCE: "evidence", VISIBLE: "evidence among visible tokens", LAST: "last token on top"}
    titles |= {how: f"agreement, {how}" for how in HOW}
    for endpoint, title in titles.items():
        columns = over_kinds(model, endpoint)
        yield table(f"{SHORT[model]}, every setting: {title}", found(model, endpoint), columns, written)
    title = f"{SHORT[model]}, every setting: evidence minus that of {code(recommended())}"
    yield table(title, found(model), over_kinds(model, against=recommended()), signed)


def by_intervention(
    title: str, beginning: str, settings: Sequence[str], form: Callable[[Estimate], str], note: str
) -> Table:
    """Return an endpoint, whose name has this beginning, by both interventions on both models."""
    columns = {f"{name}, {how}": Column(model, f"{beginning}{how}") for model, name in SHORT.items() for how in HOW}
    return table(title, settings, columns, form, note)


def masks(model: str) -> Table:
    """Return the evidence of `leave_one_out` by how tokens are removed, and the rank correlations of the drops."""
    agreement = list[dict[str, Any]]()
    for (family, number), row in prompts(model, "test").items():
        scores, eligible = study_results.scores_of(row), study_results.eligible_in(row)
        drops = {name: torch.tensor(scores[name][eligible]) for name in REMOVED if row["effects"]}
        prompt = study_results.described(family, "test", number, row)
        for one, other in permutations(drops, 2):
            rho = study_results.correlation(drops[one], drops[other])
            agreement.append({**prompt, "setting": f"{one}, {other}", "ρ": rho})
    own, alike = drawn(measured(model, "test"), settings=[*REMOVED]), drawn(pd.DataFrame(agreement), "ρ")
    rows = [
        [f"`{one}`", written(own.of(one))]
        + ["–" if one == other else plain(alike.of(f"{one}, {other}")) for other in REMOVED]
        for one in sorted(REMOVED, key=lambda name: -own.of(name).value)
    ]
    columns = ["setting", "evidence", *(f"ρ with {how.replace('drop', 'zero')}" for how in REMOVED.values())]
    return Table(f"{SHORT[model]}: masks", columns, rows, note=f"{sizes_of(own)}.")


@cache
def shares(model: str) -> Any:
    """Return what single tokens hold of the parts of literal HETA, on each prompt that has it."""
    rows = [row for split in SPLITS for row in prompts(model, split).values() if "first, last, sum" in row]
    ends = [row["first, last, sum"] for row in rows]
    first, last, whole = (pd.DataFrame({part: own[part][at] for part in own} for own in ends) for at in range(3))
    return pd.DataFrame(
        {
            "gate on the first token": first["gate"] / whole["gate"],
            "score on the first token": first["score"] / whole["score"],
            "information on the last token": last["information"] / whole["information"],
            "curvature in curvature + information": whole["curvature"] / (whole["curvature"] + whole["information"]),
            "curvature": whole["curvature"],
            "squared gradient": [sum(row["parts"]["squared gradient"]) for row in rows],
            "p": [row["p"] for row in rows],
        }
    )


@cache
def reasons() -> Table:
    """Return the median and the range of these shares, and how the curvature follows the answer's probability."""
    cells = dict[str, dict[str, str]]()
    for model, short in SHORT.items():
        *names, _, _, _ = own = shares(model)
        ranges = own[names].quantile([0.5, 0, 1])
        rho, alike = (own[other].corr(own["curvature"], method="spearman") for other in ("p", "squared gradient"))
        cells[short] = {name: "{:.2f} [{:.2f}, {:.2f}]".format(*ranges[name]) for name in names}
        cells[short] |= {CERTAIN: f"{rho:.2f}", ALIKE: f"{alike:.2f}", "prompts": str(len(own))}
    note = "Shares of the sum over all tokens: the median over prompts, dev included, the lowest and the highest."
    rows = [[name, *(own[name] for own in cells.values())] for name in cells[SHORT[MODELS[0]]]]
    return Table("Shares of HETA's parts", ["share", *cells], rows, note=note)


def steps() -> Table:
    """Return how evidence changes by single steps between HETA and other settings."""
    rows = list[list[str]]()
    for one, other in STEPS:
        apart = [Column(model, against=other).of(one) for model in MODELS]
        rows.append([f"{code(one)} − {code(other)}", *map(signed, apart), " and ".join(str(own.n) for own in apart)])
    return Table("Steps from HETA", ["difference of evidence", *SHORT.values(), "prompts"], rows)


def long_prompts() -> Table:
    """Return the evidence on the long prompts of GROWTH, which were measured apart."""
    arms, rows = long_study.outcomes_by_arm(), list[list[str]]()
    for name in LONG:
        cells = list[str]()
        for own in arms.values():
            pairs = [(one["ranks"][name][0], one["chance"][0]) for one in own if name in one["ranks"]]
            ranks, chance = np.array(pairs).reshape(-1, 2).T
            value = long_study.mean_of((ranks - chance) / (1 - chance), least=-1.0) if pairs else None
            cells.append(f"{written(value)} ({len(pairs)})" if value else "–")
        rows.append([code(name), *cells])
    rows.sort(key=lambda row: row[1:], reverse=True)
    note = (
        "Prompts of [GROWTH.md](../benchmarks/GROWTH.md), on SmolLM2 unless a column names Gemma. The number of "
        "prompts stands in brackets; intervals are over prompts."
    )
    return Table("Long prompts", ["setting", *arms], rows, note=note)


def claims() -> Table:
    """Return what of the paper's claims these outcomes speak about, and what they say."""

    def both(one: str, other: str) -> str:
        values = [signed(Column(model, against=other).of(one)) for model in MODELS]
        return " and ".join(f"{value} on {name}" for value, name in zip(values, SHORT.values(), strict=True))

    of_model = {row[0]: dict(zip(SHORT.values(), row[1:], strict=True)) for row in reasons().rows}
    medians = {
        name: " and ".join(f"{cell.split()[0]} on {of}" for of, cell in cells.items())
        for name, cells in of_model.items()
    }
    rows = [
        ["HETA is more faithful than all other methods", "Results, Soft-NC, Soft-NS and DSA",
         f"Not by evidence: {code('heta')} − {code('leave_one_out')} is {both('heta', 'leave_one_out')}, and "
         f"{code('heta')} − {code(recommended())} is {both('heta', recommended())}. "
         "The paper's metrics were not measured"],
        ["The gate helps", "Ablation of components", f"On Gemma, and in syntax: {code('M · I')} − {code('I')} is "
         f"{both('M · I', 'I')}. The median share of the first token, which is special, is "
         f"{medians['gate on the first token']} of the gate"],
        ["Second derivatives add to the gradient", "Approximations of the Hessian",
         f"No: {code('S')} − {code('gradient_norm')} is {both('S', 'gradient_norm')}"],
        ["Curvature and information complement each other", "Weights β and γ", f"Not confirmed: {code('√(S·I)')} − "
         f"{code('I')} is {both('√(S·I)', 'I')}. Added, the curvature is the sum: a share of "
         f"{medians['curvature in curvature + information']}"],
        ["Curvature remains where the gradient vanishes", "Motivation", "It shrinks with it: over prompts, the rank "
         f"correlation of the two sums is {medians[ALIKE]}, and that of the curvature with p {medians[CERTAIN]}"],
        ["Scores survive paraphrases, noise and decoding", "Robustness, decoding", "Not measured here; "
         "`heta-lens evaluate` measures them on your model"],
    ]  # fmt: skip
    return Table("The paper's claims", ["claim", "where in the paper", "what we found"], rows)


def counts() -> Table:
    """Return by family how many prompts were tried, are right, are left out and why, and have which measurements."""
    lines = {family: [family, kind] for family, kind in KINDS.items()}
    places = [(model, split) for model, splits in WANTED.items() for split in splits]
    for (model, split), (family, line) in product(places, lines.items()):
        rows = [row for (own, of, _), row in study_results.stored(model).items() if (own, of) == (family, split)]
        why = Counter(row.get("left out", "right") for row in rows)
        have = [
            sum(name in row.get(part, ()) for row in rows) for part, name in (("effects", HOW[0]), ("scores", "heta"))
        ]
        line += map(str, (len(rows), *(why[name] for name in COUNTED), *have))
    heads = ("tried", *COUNTED, "with interventions", "with `heta`")
    columns = [f"{SHORT[model]} {split}: {head}" for model, split in places for head in heads]
    fewest = "less than a third of the right answers in test that the family with most has on a model"
    note = f"Families with {fewest} are left out on both: {listed(study_results.too_few())}."
    return Table("Prompts", ["family", "kind", *columns], [*lines.values()], note=note)


@cache
def tables() -> dict[str, list[Table]]:
    """Return the tables of the page of results, and those of the page with everything."""
    moved = f"Of the tokens that move log p by at least {study_results.MOVES} nats, the share with the sign of the move"
    ceilings = " and ".join(f"{ceiling(model):.2f} on {name}" for model, name in SHORT.items())
    agreement = f"Spearman's correlation; for resampling over its ceiling, {ceilings}."
    results = [
        *(*(regrets(among, FIRST) for among in decisions()), confirmed(), by_kind(), *map(evidence, MODELS)),
        by_intervention("Signs", "sign, ", (*REMOVED, recommended(), *study_results.SIGNED, FOR), plain, f"{moved}."),
        by_intervention("Agreement", "", shown(), plain, agreement),
        *(*map(masks, MODELS), long_prompts(), reasons(), steps(), claims()),
    ]
    signs = by_intervention("Signs above every token for", ABOVE_FOR, SIGNED, signed, f"{moved}, minus that of {FOR}.")
    every = [counts(), *map(by_family, MODELS), *map(regrets, decisions()), *chain(*map(every_setting, MODELS)), signs]
    return {"results": results, "real": every}


# -------------------------------------------------------------------------------------------------------------- figures
def dots(settings: Sequence[str]) -> Any:
    """Draw differences of evidence to the recommended setting, by kind and over all, on both models."""
    columns = {model: over_kinds(model, against=recommended()) for model in MODELS}
    overall = {name: [columns[model]["all kinds"].of(name).value for model in MODELS] for name in settings}
    names = [name for name in settings if name != recommended()]
    names.sort(key=lambda name: np.nan_to_num(np.mean(overall[name]), nan=-np.inf))
    figure, axes = plt.subplots(
        2, 4, figsize=(7.5, 1 + 0.4 * len(names)), sharex=True, sharey=True, layout="constrained"
    )
    for axis, kind in zip(axes.flat, columns[MODELS[0]], strict=False):
        axis.axvline(0, color="gray", linewidth=1)
        for place, (model, short) in enumerate(SHORT.items()):
            own = [columns[model][kind].of(name) for name in names if kind in columns[model]]
            across = [one.value for one in own]
            lengths = [[one.value - one.low for one in own], [one.high - one.value for one in own]]
            up = np.arange(len(own)) + 0.15 - 0.3 * place
            axis.errorbar(across, up, xerr=lengths, fmt="os"[place], markersize=3.5, elinewidth=1.2, label=short)
        axis.set_title(kind, fontsize=9)
        axis.grid(axis="y", alpha=0.25)
    axes[0, 0].set_yticks(range(len(names)), [NAMES.get(name, name) for name in names])
    for axis in axes.flat[len(columns[MODELS[0]]) :]:
        axis.set_axis_off()
    title = f"evidence minus that of\n{NAMES.get(recommended(), recommended())},\n95 % intervals"
    axes[-1, -1].legend(*axes[0, 0].get_legend_handles_labels(), title=title, loc="center", frameon=False)
    return figure


# -------------------------------------------------------------------------------------------------------------- phrases
@cache
def phrases() -> tuple[str, ...]:
    """Return what prose may say in numbers, besides the cells of the tables."""
    return (*of_counts(), *of_values(), *of_tests(), *of_shares(), *of_tables())


def of_counts() -> Iterator[str]:
    spent = 0.0
    for model, name in SHORT.items():
        rows = [*study_results.stored(model).values()]
        spent += sum(sum(row.get("seconds", {}).values()) for row in rows)
        yield f"{sum('left out' not in row for row in rows)} right answers to {len(rows)} prompts on {name}"
        right = Counter(family for family, _ in prompts(model, "test"))
        yield f"{min(right.values())} to {max(right.values())} a family on {name}"
        yield f"{min(right.values())} a family on {name}"
        yield f"{int(found(model)['heta'].prompts)} prompts with `heta` on {name}"
        seconds = {of: np.mean([row["seconds"][of] for row in rows if of in row.get("seconds", ())]) for of in TIMED}
        for setting, parts in SECONDS.items():
            yield f"{code(setting)} {sum(seconds[of] for of in parts):.1f} s on {name}"
    yield f"{spent / 3600:.0f} core-hours"
    yield f"{sizes_of(decisions()['all settings'].choice.drawn)} of dev"


def of_tables() -> Iterator[str]:
    """Yield some cells of the tables in the words of the page."""
    for place, (model, name) in enumerate(SHORT.items(), 1):
        families = of_families(model)
        if PARAGRAPH in families.index:
            own = families.loc[PARAGRAPH]
            others = f"`leave_one_out` {own['leave_one_out']:.2f}, and `copy` {own['copy']:.2f}"
            yield f"on {name} `careful` has {own['√(G·|Δ|)']:.2f} there, {others}"
        masked, careful = (Column(model, LAST).of(setting).value for setting in ("leave_one_out", "√(G·|Δ|)"))
        yield f"in {masked:.0%} of the prompts by `leave_one_out` and in {careful:.0%} by `careful` on {name}"
        copied = {kind: Column(model, kind=kind).of("copy").value for kind in COPIED if kind in kinds_of(model)}
        yield ", ".join(f"{value:.2f} in {kind}" for kind, value in copied.items()) + f" on {name}"
        yield from (f"{row[0]} is {row[place]} on {name}" for row in steps().rows)


def of_values() -> Iterator[str]:
    for model, name in SHORT.items():
        yield f"{sizes_of(found(model)['recency'])} on {name}"
        for (kind, column), setting in product(over_kinds(model).items(), (*shown(), "copy")):
            place = f"on {name}" if kind == "all kinds" else f"in {kind} on {name}"
            own, apart = column.of(setting), column._replace(against=recommended()).of(setting)
            if not isnan(own.value):
                yield from (f"{code(setting)} {form(own)} {place}" for form in (plain, written))
                yield f"{code(setting)} − {code(recommended())} is {signed(apart)} {place}"


def of_tests() -> Iterator[str]:
    for one in decisions().values():
        for test in one.tests:
            apart = f"{code(one.choice.champion)} − {code(test.rival)} is {signed(test.difference)}"
            yield f"{apart} on {SHORT[test.model]} (p = {test.p:.2g})"


def of_shares() -> Iterator[str]:
    for (name, *cells), short in product(reasons().rows, SHORT.values()):
        yield f"{name} is {cells[[*SHORT.values()].index(short)]} on {short}"


def write() -> None:
    for page, own in tables().items():
        pages.write(page, own)
    save_figure(dots(shown()), ROOT / "docs" / "differences.webp")


if __name__ == "__main__":
    write()
