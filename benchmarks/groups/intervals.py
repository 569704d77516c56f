"""How often the intervals of scores hold the expectation."""

from collections.abc import Iterator
from functools import partial
from statistics import mean
from typing import Any, get_args

import torch
from torch import Tensor

import heta_lens
from benchmarks.groups.asked import cases, cross_talk, expectation, found
from heta_lens._util.numerics import Samples
from heta_lens.methods.heta.score import Combine, Parts

TITLE = "Intervals"
SHORTER, MORE, REPEATS = 40, 2000, 200  # tokens of the prompts, probes of the expectation, draws
NOTE = f"""\
{SHORTER} tokens; how often the 95 % intervals of scores hold those of {MORE} probes of every token alone in
{REPEATS} seeds, over all tokens and of the worst; the median half-width; how much of the curvature that
products showed was cross-talk."""
shorter_cases = partial(cases, SHORTER)
COLUMNS = [
    "model",
    "combine",
    "groups",
    "probes",
    "held, %",
    "worst token, %",
    "half-width / score",
    "cross-talk / read, %",
]


def rows(name: str, prediction: Any) -> Iterator[list[str]]:
    """How often the 95 % intervals of scores hold the expectation, of a sum and of a product."""
    curvature = expectation(prediction, MORE).parts["curvature"]
    for combine in get_args(Combine):
        yield [name, *_row(prediction, curvature, combine)]


def _row(prediction: Any, curvature: Tensor, combine: Combine) -> list[str]:
    usual = heta_lens.Heta(combine=combine)
    held, widths, shares = list[Tensor](), list[float](), list[float]()
    for seed in range(REPEATS):
        one = found(prediction, combine=combine, seed=seed)
        weights = one.options["beta"], one.options["gamma"]
        parts = Parts(one.parts["gate"], Samples.even(curvature[None]), one.parts["information"], *weights, combine)
        expected = parts.score("none")
        low, high = one.interval()
        held.append((low <= expected) & (expected <= high))
        widths.append(float(((high - low) / 2 / one.scores).nanmedian()))
        taken, kept = float(cross_talk(one).sum()), float(one.parts["curvature"].sum())
        shares.append(taken / (taken + kept) * 100)
    often = torch.stack(held).double().mean(0) * 100
    shown = [
        f"{float(often.mean()):.1f}",
        f"{float(often.min()):.1f}",
        f"{mean(widths):.2f}",
        f"{mean(shares):.1f}",
    ]
    return [combine, str(usual.groups), str(usual.probes), *shown]
