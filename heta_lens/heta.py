"""HETA: Hessian-Enhanced Token Attribution (ICLR 2026), on one page.

    Attr(x_i → x_T) = M_T[i] · (β · S_i + γ · I_i)                                                         (Eq. 4)

M, the gate         how much attention-weighted value flows from token i to the prediction             gate.py
S, the curvature    how strongly log P(x_T) bends with token i's embedding                   (Eq. 2)   curvature.py
I, the information  how far the predicted distribution moves when token i is masked          (Eq. 3)   information.py
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.curvature import Norm, Support, check_enumerable, check_twice_differentiable, curvature, rademacher
from heta_lens.diagnostics import shares, sink_mass, standard_error, warn, weak
from heta_lens.divergence import DIVERGENCES, Direction
from heta_lens.gate import Flow, gate, value_norms
from heta_lens.information import LogProbs, information
from heta_lens.masking import Mask, check_mask, mask_vector
from heta_lens.options import check_at_least, check_literals
from heta_lens.prediction import Prediction
from heta_lens.progress import Work, working

Variant: TypeAlias = Literal["full", "transition_only", "hessian_only", "kl_only", "no_gate", "uniform_gate"]
Balance: TypeAlias = Literal["none", "sum", "max"]


class Terms(NamedTuple):
    """What a variant makes of Eq. 4: its gate, and β and γ where they are not the caller's to choose."""

    gate: Literal["flow", "uniform", "none"] = "flow"
    weights: tuple[int, int] | None = None


VARIANTS: dict[Variant, Terms] = {
    "full": Terms(),
    # The paper's ablations. Its "Hessian only" and "KL only" keep the gate.
    "transition_only": Terms(weights=(0, 0)),
    "hessian_only": Terms(weights=(1, 0)),
    "kl_only": Terms(weights=(0, 1)),
    "no_gate": Terms(gate="none"),
    "uniform_gate": Terms(gate="uniform"),
}


IN_TITLE = ("variant", "balance", "support", "norm", "flow")  # what makes it another score, if not the default


@dataclass(frozen=True)
class Parts:
    """M, S (one sample a probe) and I, with their weights; a part whose weight is 0 is None."""

    gate: Float[Tensor, "pos"]
    curvature: Float[Tensor, "sample pos"] | None
    information: Float[Tensor, "pos"] | None
    beta: float | int
    gamma: float | int

    def means(self) -> dict[str, Float[Tensor, "pos"]]:
        curvature = None if self.curvature is None else self.curvature.mean(0)
        parts = {"gate": self.gate, "curvature": curvature, "information": self.information}
        return {name: part for name, part in parts.items() if part is not None}

    def terms(self, balance: Balance) -> dict[str, Float[Tensor, "pos"]]:
        """Eq. 4 before its sum, ``M β S`` and ``M γ I``; balanced, S and I are divided by their sum or maximum."""
        weights = {"curvature": self.beta, "information": self.gamma}
        return {
            name: self.gate * weights[name] * scaled(part, balance)
            for name, part in self.means().items()
            if name in weights
        }

    def score(self, balance: Balance) -> Float[Tensor, "pos"]:
        """Eq. 4, or the gate alone where that is all there is."""
        terms = list(self.terms(balance).values())
        return torch.stack(terms).sum(0) if terms else self.gate

    def standard_errors(self, balance: Balance) -> dict[str, Float[Tensor, "pos"] | None]:
        """Of the score and each part. Only the probes are random."""
        errors: dict[str, Tensor | None] = dict.fromkeys(("scores", *self.means()))
        if self.curvature is not None:
            errors["curvature"] = standard_error(self.curvature, lambda mean: mean)
            errors["scores"] = standard_error(
                self.curvature, lambda mean: replace(self, curvature=mean[None]).score(balance)
            )
        return errors

    def diagnostics(self, balance: Balance) -> dict[str, Any]:
        share = shares(self.terms(balance))
        return {
            "share": share,
            "weak_parts": weak(share),
            "sink_mass": sink_mass(self.score(balance)),
            "balanced": self.score("sum"),
            "standard_errors": self.standard_errors(balance),
        }


def scaled(part: Float[Tensor, "pos"], balance: Balance) -> Float[Tensor, "pos"]:
    if balance == "none" or not part.any():
        return part
    return part / (part.sum() if balance == "sum" else part.max())


@dataclass(frozen=True, eq=False)
class Heta:
    """HETA with these options: ``Heta(beta=1.0)(prediction)`` gives an `Attribution` with scores ≥ 0.

    The curvature costs ``probes`` Hessian–vector products a token (``support="row"``: in all), the information one
    masked forward a token, the gate arithmetic on the cache only. A part whose weight is 0 is not computed.

    - ``variant``: ``full``; ``transition_only`` (the gate alone), ``hessian_only`` and ``kl_only`` (one part, gated),
      ``no_gate``, ``uniform_gate``
    - ``beta``, ``gamma``: weights of curvature and information
    - ``balance``: divide each part by its ``sum`` or ``max`` over the context first, or by nothing (``none``)
    - ``probes``, ``seed``: random sign vectors a token, and where they come from
    - ``support``: probe each token alone (``block``), or all tokens at once (``row``)
    - ``norm``: ``hutchinson`` (Eq. 2), ``exact`` (its expectation, tiny models), ``entrywise`` (the appendix's norm)
    - ``flow``, ``value_norm``: how value flow reaches the prediction; the order of the values' norm
    - ``mask``, ``kl``: what a masked token becomes; the divergence and its direction
    - ``batch``: copies of the context alive at once; a smaller one needs less memory and changes nothing else
    - ``progress``: show a progress bar; None shows it on a terminal or in a notebook
    """

    variant: Variant = "full"
    beta: float | int = 0.5
    gamma: float | int = 0.5
    balance: Balance = "none"
    probes: int = 10
    support: Support = "block"
    norm: Norm = "hutchinson"
    flow: Flow = "suffix"
    value_norm: Literal[1, 2] = 1
    mask: Mask = "zero"
    kl: Direction = "orig_masked"
    seed: int = 0
    batch: int | Literal["auto"] = "auto"
    progress: bool | None = None

    def __post_init__(self) -> None:
        check_literals(self)
        check_mask(self.mask)
        check_at_least("beta", self.beta, 0)
        check_at_least("gamma", self.gamma, 0)
        check_at_least("probes", self.probes, 1, whole=True)
        check_at_least("seed", self.seed, 0, whole=True)
        if self.batch != "auto":
            check_at_least("batch", self.batch, 1, whole=True)
        if VARIANTS[self.variant].weights is not None and (self.beta, self.gamma) != (0.5, 0.5):
            raise ValueError(f"variant={self.variant!r} fixes beta and gamma: leave them out, or use variant='full'")
        if self.beta == self.gamma == 0:
            raise ValueError("beta=0 and gamma=0 leave nothing to score; for the gate alone, variant='transition_only'")

    def __call__(self, prediction: Prediction) -> Attribution:
        beta, gamma = VARIANTS[self.variant].weights or (self.beta, self.gamma)
        with prediction.running(), working(self._work(prediction, beta, gamma), self.progress) as work:
            gate, flow = self._gate(prediction)
            mask = mask_vector(self.mask, prediction.embeddings, prediction.lens.embedding_table) if gamma else None
            curvature = self._curvature(prediction, work) if beta else None
            information = None if mask is None else self._information(prediction, mask, work)
            parts = Parts(gate, curvature, information, beta, gamma)
            score = parts.score(self.balance)
            for name, part in {**parts.means(), "the score": score}.items():
                prediction.check_finite(name, part)
            diagnostics = {**flow, **parts.diagnostics(self.balance), "probes": self.probes, **work.cost()}
        if isinstance(prediction.target, tuple) and gamma:
            diagnostics["note"] = "information is about the whole next-token distribution, not about the contrast"
        for name in diagnostics["weak_parts"]:
            warn(
                f"{name} makes up less than 1 % of this score, which therefore says next to nothing about it; "
                "diagnostics['share'] has the figures, and balance='sum' gives every part the same total"
            )
        diagnostics["chosen"] = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name in IN_TITLE and getattr(self, field.name) != field.default
        }
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "progress"}
        if isinstance(self.mask, Tensor):
            options["mask"] = self.mask.detach().clone()
        return prediction.attribution("heta", score, parts.means(), options, diagnostics)

    def _gate(self, prediction: Prediction) -> tuple[Float[Tensor, "pos"], dict[str, float]]:
        """M, and what there is to say about its flow."""
        kind = VARIANTS[self.variant].gate
        if kind != "flow":
            ones = torch.ones_like(prediction.embeddings[:, 0])
            return (ones / len(ones) if kind == "uniform" else ones), {}
        heads = zip(prediction.values, prediction.output_weights, strict=True)
        norms = [value_norms(values, output, self.value_norm) for values, output in heads]
        flow, total = gate(prediction.patterns, norms, self.flow)
        return flow, {"gate_total": total}

    def _curvature(self, prediction: Prediction, work: Work) -> Float[Tensor, "sample pos"]:
        n, d = prediction.embeddings.shape
        probes = partial(rademacher, self.seed, probes=self.probes, d=d)
        if self.norm == "exact":
            check_enumerable(prediction.embeddings, self.support)
        last = prediction.embeddings[-1:]
        # Half precision cannot tell the steps apart; and hooks may stop or change gradients as they like.
        compare = prediction.lens.token_weights.dtype.itemsize >= 4 and not prediction.user_hooks
        check_twice_differentiable(prediction.objective_from(n - 1), last, probes(n - 1)[:1].to(last), compare)
        return curvature(
            prediction.objective_from,
            prediction.embeddings,
            probes,
            support=self.support,
            norm=self.norm,
            chunk=prediction.chunk,
            batch=prediction.batch(self.batch),
            done=partial(work.add, "hvps"),
        )

    def _information(self, prediction: Prediction, mask: Float[Tensor, "d"], work: Work) -> Float[Tensor, "pos"]:
        def log_probs_from(start: int) -> LogProbs:
            log_probs = prediction.log_probs_from(start)
            return lambda copies: rearrange(log_probs(copies), "copy vocab -> copy 1 vocab")

        with torch.no_grad():
            return information(
                log_probs_from,
                prediction.embeddings,
                mask,
                prediction.log_probs[None],
                DIVERGENCES[self.kl],
                chunk=min(prediction.batch(self.batch), prediction.chunk),
                done=partial(work.add, "forwards"),
            )[0]

    def _work(self, prediction: Prediction, beta: float | int, gamma: float | int) -> dict[str, int]:
        """What lies ahead, for the progress bar."""
        n, d = prediction.embeddings.shape
        directions = self.probes if self.norm == "hutchinson" else d
        at_once = self.norm == "hutchinson" and self.support == "row"
        hvps = directions * (1 if at_once else n)
        return {"hvps": hvps if beta else 0, "forwards": n if gamma else 0}
