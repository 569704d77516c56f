"""What the prose of results.md, README.md and choosing.md says in numbers, computed from the stored outcomes."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product

import pandas as pd

from benchmarks import held_back, results
from benchmarks.pages import written
from benchmarks.real_study import LONGEST, MODELS, SOME
from benchmarks.results import EVIDENCE

SHORT = dict(zip(MODELS, ("SmolLM2", "Gemma"), strict=True))


@cache
def phrases() -> tuple[str, ...]:
    """Return the phrases with numbers that the pages may use."""
    return (f"at most {LONGEST} tokens", *study(), *reasons(), *agreement(), *questions())


def study() -> Iterator[str]:
    for model, name in SHORT.items():
        frame = results.of_model(model)
        counts = frame.groupby("setting").size()
        ranked = results.ranked(frame, [*counts[counts == counts.max()].index])
        for setting in ("careful", "leave_one_out", "fast"):
            yield f"`{setting}` is number {ranked.index(setting) + 1} of {len(ranked)} on {name}"
        of_each = [len(rows) for _, rows in frame[frame["setting"] == "careful"].groupby(["family", "split"])]
        yield f"{min(of_each)} or {max(of_each)} prompts of each family and split on {name}"
    yield "literal HETA on at most {} and at most {} of them".format(*SOME.values())
    squad = (
        results.of_model(MODELS[0])
        .query("family == 'squad'")
        .pivot(index=results.PROMPT, columns="setting", values=EVIDENCE)
    )
    apart = (squad["careful"] - squad["leave_one_out"]).mean()
    yield f"`careful` − `leave_one_out` is {apart:+.2f} on the study's {len(squad)} questions on SmolLM2"


def reasons() -> Iterator[str]:
    for model, name in SHORT.items():
        ends = results.ends_of(model)
        prompts = len(ends)
        gate, score = ends["gate first"] / ends["gate sum"], ends["score first"] / ends["score sum"]
        last = ends["information last"] / ends["information sum"]
        curvature = ends["curvature sum"] / (ends["curvature sum"] + ends["information sum"])
        sure = ends.loc[ends["p"].idxmax()]
        yield f"{100 * gate.min():.0f} to {100 * gate.max():.0f} % of the gate on {name}"
        yield f"more than half of the score on {(score > 0.5).sum()} of {prompts} prompts of {name}"
        yield f"{100 * last.min():.0f} to {100 * last.max():.0f} % of the information on {name}"
        yield f"less than 20 % on {(last < 0.2).sum()} of {prompts} prompts of {name}"
        yield f"at least {int(100 * curvature.min())} % of the sum on {name}"
        yield (
            f"on {name}'s surest prompt (p = {sure['p']:.3f}), the curvature's sum is {sure['curvature sum']:,.0f} "
            f"and the information's {sure['information sum']:.0f}"
        )
        yield f"{ends['p'].corr(ends['curvature sum'], method='spearman'):.2f} on {name}"


def agreement() -> Iterator[str]:
    """Return the range of correlations between kinds of interventions, from the printed table."""
    removals, patches = ("delete", "resample", "zero", "pad mask"), ("edge patch", "stream patch", "counterfactual")
    for model, name in SHORT.items():
        cells = results.interventions(model)
        found = pd.DataFrame(cells.rows, columns=[*cells.columns]).set_index("")

        def between(pairs: Iterator[tuple[str, str]], found: pd.DataFrame = found) -> str:
            values = [float(str(found.loc[one, other])) for one, other in pairs]
            return f"{min(values):.2f} to {max(values):.2f}"

        yield f"{between(combinations(removals, 2))} on {name}"
        yield f"{between(product(patches, removals))} on {name}"
        yield f"{between(product(['mean'], removals))} on {name}"


def questions() -> Iterator[str]:
    """Return what the questions say that had no part in the study."""
    for model, name in SHORT.items():
        found, higher, equal, lower = held_back.paired(model)
        every = held_back.ranks(model).drop_duplicates("article")
        yield f"{len(every)} questions on {name}"
        yield f"{every['tokens'].mean():.0f} tokens on average on {name}"
        yield f"`careful` − `leave_one_out` is {written(found, '+')} on {name}"
        yield (
            f"`leave_one_out` ranks the answer higher than `careful` in {higher}, equally in {equal} and lower in "
            f"{lower} of {len(every)} on {name}"
        )
        for setting in held_back.ranks(model)["setting"].unique():
            rank, first = (held_back.mean_of(model, setting, of) for of in ("rank", "first word"))
            yield f"`{setting}` {written(rank)} on {name}"
            yield f"`{setting}` {rank.value:.2f} on {name}"
            yield f"{100 * first.value:.0f} % of the questions by `{setting}` on {name}"
