"""Every setting of HETA that the study compares: ``M^power · (β S + γ I)`` of the parts of `parts`."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.study.parts import CURVATURES, FLOWS, MASKS, NORMS, Measured
from heta_lens._util.numerics import DIVERGENCES
from heta_lens.methods.heta.score import Balance, scaled

GATES = (*(f"{flow}{norm}" for flow in FLOWS for norm in NORMS), "uniform", "gradient")
POWERS = (0.25, 0.5, 2.0)
WEIGHTS = ((1.0, 0.0), (0.8, 0.2), (0.5, 0.5), (0.2, 0.8), (0.0, 1.0))


class Candidate(NamedTuple):
    gate: str = "suffix1"
    power: float = 1.0
    curvature: str = "block"
    information: str = "zero/orig_masked"
    beta: float = 0.5
    gamma: float = 0.5
    balance: Balance = "none"

    @property
    def name(self) -> str:
        """The gate, and what it multiplies."""
        gate = self.gate if self.power == 1 else f"{self.gate}^{self.power:g}"
        terms = [
            f"{weight:g} {part}"
            for weight, part in ((self.beta, self.curvature), (self.gamma, self.information))
            if weight
        ]
        inside = " + ".join(terms) or "nothing else"
        return f"{gate} · ({inside})" + (f", balanced by {self.balance}" if self.balance != "none" else "")

    @property
    def simple(self) -> "Candidate":
        """The same without what has no effect on the order of its scores."""
        one = self
        if one.gate == "uniform":
            one = one._replace(power=1.0)
        if not one.beta or not one.gamma:
            one = one._replace(balance="none", beta=float(one.beta > 0), gamma=float(one.gamma > 0))
        if not one.beta:
            one = one._replace(curvature="")
        if not one.gamma:
            one = one._replace(information="")
        if not one.beta and not one.gamma:
            one = one._replace(power=1.0)
        return one

    def score(self, parts: Measured) -> Float[Tensor, "pos"]:
        gate = parts.gates[self.gate].values ** self.power
        terms = [
            weight * scaled(of[name].values, self.balance)
            for weight, of, name in (
                (self.beta, parts.curvatures, self.curvature),
                (self.gamma, parts.informations, self.information),
            )
            if weight
        ]
        return gate * torch.stack(terms).sum(0) if terms else gate

    def runs(self, parts: Measured) -> float:
        """How many plain forwards it is worth."""
        used = [parts.gates[self.gate]]
        used += [parts.curvatures[self.curvature]] if self.beta else []
        used += [parts.informations[self.information]] if self.gamma else []
        return sum(part.runs for part in used)


LITERAL = Candidate()
KL_ONLY = Candidate(beta=0.0, gamma=1.0)


def changed(base: Candidate) -> Iterator[Candidate]:
    """One option at a time."""
    yield from (base._replace(gate=gate) for gate in GATES)
    yield from (base._replace(power=power) for power in POWERS)
    yield from (base._replace(information=f"{mask}/{name}") for mask in MASKS for name in DIVERGENCES)
    yield from (base._replace(curvature=name) for name in CURVATURES)
    yield from (base._replace(balance=balance) for balance in ("sum", "max"))
    yield from (base._replace(beta=beta, gamma=gamma) for beta, gamma in WEIGHTS)


def together() -> Iterator[Candidate]:
    """Those that may work better together than one by one."""
    gates, masks = ("suffix1", "rollout1", "uniform", "gradient"), ("zero", "mean", "space", "other")
    weightings: list[tuple[float, float, Balance]] = [(0.0, 1.0, "none"), (0.5, 0.5, "none"), (0.5, 0.5, "sum")]
    for gate, power, mask, name, (beta, gamma, balance) in product(
        gates, (0.5, 1.0), masks, ("orig_masked", "js"), weightings
    ):
        yield Candidate(gate, power, "block", f"{mask}/{name}", beta, gamma, balance)


def cheap() -> Iterator[Candidate]:
    """What needs no run for every token: gates alone, and curvatures of a few products."""
    yield from (Candidate(gate, beta=0.0, gamma=0.0) for gate in GATES)
    for gate, curvature in product(("suffix1", "rollout1", "uniform", "gradient"), CURVATURES):
        yield Candidate(gate, curvature=curvature, beta=1.0, gamma=0.0)


CANDIDATES: tuple[Candidate, ...] = tuple(
    dict.fromkeys(one.simple for one in (LITERAL, KL_ONLY, *changed(LITERAL), *changed(KL_ONLY), *together(), *cheap()))
)
