"""How HETA's score is made of its parts, in the numbers of an attribution, so that a reader can check a row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution

WEIGHTS = {"curvature": "beta", "information": "gamma"}  # and the options that say them
DIVISORS = {"sum": torch.sum, "max": torch.max}
CLOSE = 1e-4  # of the largest score


class Term(NamedTuple):
    """A part, what it is multiplied by, and what it is divided by first."""

    part: str
    weight: float
    divisor: float | None

    @property
    def words(self) -> str:
        weight = "" if self.weight == 1 else f"{self.weight:.4g} × "
        return f"{weight}{self.part}" + ("" if self.divisor is None else f" / {self.divisor:.4g}")

    def of(self, parts: Mapping[str, Float[Tensor, "pos"]]) -> Float[Tensor, "pos"]:
        """What it adds to the score, the gate included."""
        return parts["gate"].double() * self.weight * parts[self.part].double() / (self.divisor or 1)


def score_formula(attribution: Attribution) -> str:
    """``score = gate × (0.5 × curvature + 0.5 × information)``; empty where the parts do not give the scores."""
    if attribution.options.get("combine") == "geometric":
        return _product(attribution)
    balance, terms = attribution.options.get("balance"), score_terms(attribution)
    if _divided(attribution) and attribution.diagnostics.left_out:
        return f"the score divides each part by its {balance} over the whole context, of which tokens are left out here"
    if terms is None:
        return ""
    why = f", where balance={balance!r} divides each part by its {balance}"
    return _in_words(terms) + (why if _divided(attribution) else "")


def score_terms(attribution: Attribution) -> list[Term] | None:
    """What is added up to the score; nothing, if it is the gate alone. None, where the parts do not give the scores."""
    parts, balance = attribution.parts, attribution.options.get("balance")
    if "gate" not in parts or not parts.keys() <= {"gate", *WEIGHTS}:
        return None
    given = {name: attribution.options.get(option) for name, option in WEIGHTS.items()}
    for weights in (given, {}):  # of variants with one part, whose weight is 1
        terms = [_term(name, parts[name], weights.get(name), balance) for name in WEIGHTS if name in parts]
        if _gives_scores(attribution, terms):
            return terms
    return None


def _product(attribution: Attribution) -> str:
    """The same of a geometric score."""
    if not attribution.parts:
        return ""
    beta, gamma = (attribution.options[name] for name in ("beta", "gamma"))
    powers = f"curvature^{beta / (beta + gamma):.4g}", f"information^{gamma / (beta + gamma):.4g}"
    return " × ".join(["score = gate", *powers]) + (", with the sign of information" if attribution.signed else "")


def _divided(attribution: Attribution) -> bool:
    """Whether parts are divided before they are added."""
    parts = attribution.parts.keys()
    return attribution.options.get("balance") in DIVISORS and len(parts) > 1 and parts <= {"gate", *WEIGHTS}


def _term(name: str, part: Float[Tensor, "pos"], weight: object, balance: object) -> Term:
    divide = DIVISORS.get(balance) if isinstance(balance, str) else None
    divisor = float(divide(part.double())) if divide is not None and part.any() else None
    return Term(name, weight if isinstance(weight, int | float) else 1, divisor)


def _gives_scores(attribution: Attribution, terms: Sequence[Term]) -> bool:
    """Whether the formula is true of these numbers."""
    parts, scores = attribution.parts, attribution.scores.double()
    made = torch.stack([term.of(parts) for term in terms]).sum(0) if terms else parts["gate"].double()
    return bool(((made - scores).abs() <= CLOSE * scores.abs().max()).all())


def _in_words(terms: Sequence[Term]) -> str:
    factors = " + ".join(term.words for term in terms)
    return "score = gate" + (f" × ({factors})" if len(terms) > 1 else f" × {factors}" if terms else "")
