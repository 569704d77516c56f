"""When to stop probing: which tokens' curvature needs more probes, by what is known of their scores so far."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from scipy.stats import t as student
from torch import Tensor

from heta_lens._util.sample_statistics import Samples, student_t
from heta_lens.methods.heta.curvature import Curvature
from heta_lens.methods.heta.estimators import ProbedHessian, Problem, Wanted
from heta_lens.methods.heta.score import Balance, Parts

LEAST = 3  # probes from which a standard error is estimated
FIRST = 0.1  # of the highest bound: tokens that are probed before it is known what is small


def estimate_until_sure(
    estimator: ProbedHessian, problems: Sequence[Problem], parts: Parts, balance: Balance
) -> tuple[Curvature, dict[str, Any]]:
    """S from as many probes of each token as its score needs; the segments score every token once."""
    drawn = [parts.gate.new_empty(3, 0)] * len(parts.gate)
    bound = torch.cat([upper(estimator.rows(problem)) for problem in problems]) if estimator.prune else None
    parts = replace(parts, curvature=Curvature.of_readings(drawn))
    missing = probes_missing(estimator, parts, balance, bound)
    while missing:
        for problem in problems:
            wanted = {position: missing[position] for position in problem.segment.scored_range if position in missing}
            samples = estimator.estimate(problem, wanted).drawn if wanted else []
            for position, more in zip(wanted, samples, strict=True):
                drawn[position] = torch.cat([drawn[position], more], 1)
        parts = replace(parts, curvature=Curvature.of_readings(drawn))
        missing = probes_missing(estimator, parts, balance, bound)
    samples = Curvature.of_readings(drawn)
    return samples, _how_sure(estimator, parts, balance, samples.counts)


def probes_missing(
    estimator: ProbedHessian, parts: Parts, balance: Balance, bound: Float[Tensor, "pos"] | None
) -> Wanted:
    """The probes that tokens should have next, of those that should have more."""
    assert parts.curvature is not None
    have = parts.curvature.counts.tolist()
    wanted = probes_wanted(parts, balance, bound, estimator.tolerance, estimator.prune, estimator.probes).tolist()
    if estimator.support == "row":  # whose probes are of all tokens at once
        wanted = [max(wanted)] * len(wanted)
    both = enumerate(zip(have, wanted, strict=True))
    return {position: range(had, needed) for position, (had, needed) in both if needed > had}


def _how_sure(estimator: ProbedHessian, parts: Parts, balance: Balance, counts: Int[Tensor, "pos"]) -> dict[str, Any]:
    facts: dict[str, Any] = {"probes": counts, "pruned": counts.tolist().count(0)}
    if facts["pruned"]:
        facts["balanced"] = None  # which would need every token's S
    if estimator.tolerance is not None:
        width = estimator.tolerance * parts.score(balance).abs().max()
        facts["unsure"] = int((parts.half_widths(balance) > width).sum())
    return facts


def probes_wanted(
    parts: Parts,
    balance: Balance,
    bound: Float[Tensor, "pos"] | None,
    tolerance: float | int | None,
    prune: float | int,
    most: int,
) -> Int[Tensor, "pos"]:
    """How many probes each token should have next: as many as it has, where more would not matter.

    A token is probed only if its curvature, which is below ``bound``, may add more than ``prune`` times the largest
    score; and then until the 95 % half-width of its score is within ``tolerance`` times it, or to the ``most``.
    """
    assert parts.curvature is not None
    have = parts.curvature.counts
    largest = parts.score(balance).abs().max()
    new = have == 0
    if bound is not None:
        term = parts.gate * parts.beta * bound
        small = prune * largest if have.any() else torch.maximum(prune * largest, FIRST * term.max())
        new &= ~(term <= small)  # what is not a number is not small
    wanted = torch.where(new, most if tolerance is None else LEAST, have)
    if tolerance is None or not have.any():
        return wanted
    product = parts.combine == "geometric"  # of which S has the spread that is known, and the score a part of that
    errors = parts.standard_errors(balance)["curvature" if product else "scores"]
    assert errors is not None
    term = parts.means["curvature"] if product else parts.terms(balance)["curvature"]
    spread = errors * have.sqrt()
    # Three probes may agree by accident: no token's spread counts for less than the usual one.
    usual = (spread / term)[term > 0].median() if (term > 0).any() else 0
    spread = torch.maximum(spread, usual * term)
    half_widths = parts.product_half_widths if product else torch.clone
    needed = probes_needed(spread, float(tolerance * largest), most, half_widths).to(have)
    # And three may differ by accident: go no further than to twice as many.
    return torch.where((have > 0) & (needed > have), torch.minimum(needed, 2 * have), wanted)


def probes_needed(
    spread: Float[Tensor, "pos"],
    width: float,
    most: int,
    half_widths: Callable[[Float[Tensor, "count pos"]], Float[Tensor, "count pos"]] = torch.clone,
) -> Int[Tensor, "pos"]:
    """The fewest probes, at least three, whose mean has a 95 % half-width within ``width``; at most ``most``.

    ``half_widths`` are the scores' of those of what is probed.
    """
    counts = torch.arange(LEAST, most)
    reach = torch.from_numpy(student.ppf(0.975, counts - 1) / counts.sqrt().numpy()).to(spread)
    return LEAST + (half_widths(spread * reach[:, None]) > width).sum(0)


def upper(row: Samples) -> Float[Tensor, "pos"]:
    """An upper end for the row form's curvature, which is never below the block form's."""
    return row.mean + student_t(row.counts).to(row.mean) * row.deviations.square().sum(0).sqrt()
