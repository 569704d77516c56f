"""Jacobian Scopes (Liu 2026): how far a push on each token's embedding moves what the last norm hands on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.work_counting import Work, count
from heta_lens.methods.base import Method, Scores
from heta_lens.model.hook_sites import READ
from heta_lens.prediction.prediction import Prediction

TOGETHER = 64  # directions that are passed through the unembedding at once


@dataclass(frozen=True, eq=False, kw_only=True)
class JacobianScope(Method):
    """``a_i = tr(J_iᵀ F J_i)`` or ``‖J_iᵀ y‖ / ‖y‖``: ≥ 0, no direction, the same for every target.

    y is what the last norm hands to the unembedding where the prediction is read, and ``J_i = ∂y/∂E_i``. The third
    scope, of one target, is ``gradient_norm`` with ``scale="logit"``.

    - ``scope``: ``fisher``, how much the predicted distribution moves: ``F = Wᵀ (diag P - P Pᵀ) W``, where W is the
      derivative of the logits by y; or ``temperature``, how much y grows, and with it the model's certainty
    - ``rank``: of F, how many of its largest eigenvectors count; None: all, each of which costs a backward pass
    """

    scope: Literal["fisher", "temperature"] = "fisher"
    rank: Annotated[int | None, AtLeast(1, whole=True)] = 1

    name: ClassVar = "jacobian_scope"
    paper: ClassVar[str] = (
        "Liu et al., Jacobian Scopes: token-level causal attributions in LLMs, 2026, arXiv:2601.16407"
    )
    family: ClassVar = "gradient"
    cost: ClassVar = "F + rank · B, and an eigendecomposition as wide as the model; temperature: F + B"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {"rank": "scope='temperature' (which has one direction)"} if self.scope == "temperature" else {}

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.scope == "temperature" and last_norm_is_folded(prediction.adapter.model):
            raise ValueError(
                "scope='temperature' reads how long the last norm's result is, and the norm's weights were folded into "
                "the unembedding: load the model without processing its weights, or choose scope='fisher'"
            )

    def work(self, prediction: Prediction) -> dict[str, int]:
        width = prediction.embeddings.shape[1]
        most = 1 if self.scope == "temperature" else min(self.rank or width, width)
        return {"forwards": 1, "backwards": most}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        with differentiable(prediction) as run:
            progress.add("forwards", 1)
            strengths, directions = self._directions(run)
            squares = torch.zeros_like(prediction.embeddings[:, 0])
            for strength, direction in zip(map(float, strengths), directions, strict=True):
                (pulled,) = torch.autograd.grad(run.y, run.leaf, direction, retain_graph=True)
                squares += strength * pulled.square().sum(-1)
                count("backwards", 1)
                progress.add("backwards", 1)
        facts = {"eigenvalues": [float(strength) for strength in strengths]} if self.scope == "fisher" else {}
        return Scores(squares if self.scope == "fisher" else squares.sqrt(), facts)

    def _directions(self, run: "Run") -> tuple[Float[Tensor, "rank"], Float[Tensor, "rank d"]]:
        y = run.y.detach()
        if self.scope == "temperature":
            return torch.ones_like(y[:1]), (y / y.norm())[None]
        values, vectors = torch.linalg.eigh(fisher(run.logits, run.y))
        matter = values > values.abs().max() * torch.finfo(values.dtype).eps * len(values)
        strongest = values.masked_fill(~matter, 0).flip(0)[: self.rank]
        kept = strongest > 0
        return strongest[kept].to(y), vectors.T.flip(0)[: self.rank][kept].to(y)


class Run(NamedTuple):
    """One run of the context: embeddings that it depends on, y, and the logits of the prediction."""

    leaf: Float[Tensor, "pos d"]
    y: Float[Tensor, "d"]
    logits: Float[Tensor, "vocab"]


@contextmanager
def differentiable(prediction: Prediction) -> Iterator[Run]:
    """The model's hooks stay as long as its graph is used."""
    leaf, read = prediction.embeddings.detach().clone().requires_grad_(), list[Tensor]()
    with prediction.adapter.hooked([(READ, partial(_note_last, read))]):
        logits = prediction.logits_from()(leaf[None])[0]
        yield Run(leaf, read[0], logits)


def _note_last(read: list[Tensor], live: Float[Tensor, "1 pos d"]) -> Float[Tensor, "1 pos d"]:
    """The same, in which the last position is a tensor of its own, of which derivatives can be taken."""
    read.append(live[0, -1])
    return torch.cat([live[:, :-1], read[-1][None, None]], 1)


def fisher(logits: Float[Tensor, "vocab"], y: Float[Tensor, "d"]) -> Float[Tensor, "d d"]:
    """The Fisher information of the predicted distribution about y: the mean of ``∇ log P_v ∇ log P_vᵀ`` over P."""
    p = logits.detach().double().softmax(-1)
    seed = torch.zeros_like(logits, requires_grad=True)
    (back,) = torch.autograd.grad(logits, y, seed, create_graph=True)  # linear in the seed, so that it can be turned

    def columns(directions: Float[Tensor, "direction d"]) -> Float[Tensor, "direction d"]:
        (moved,) = torch.autograd.grad(back, seed, directions, retain_graph=True, is_grads_batched=True)
        centred = moved - (moved.double() @ p)[:, None].to(moved)
        weighted = (p.to(moved) * centred).to(logits)
        (rows,) = torch.autograd.grad(logits, y, weighted, retain_graph=True, is_grads_batched=True)
        return rows

    every = torch.eye(len(y), dtype=y.dtype, device=y.device)
    matrix = torch.cat([columns(chunk) for chunk in every.split(TOGETHER)]).double()
    return (matrix + matrix.T) / 2


def last_norm_is_folded(model: Any) -> bool:
    kind = str(getattr(model.cfg, "normalization_type", None))
    return kind.endswith("Pre") or bool(getattr(model, "compatibility_mode", False))
