"""Methods of gradients at the prompt: input × gradient, gradient norm, SmoothGrad, Grad-CAM and Jacobian Scopes."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.work import Work, count
from heta_lens.methods.base import OF_LOGITS, Method, Scores, WithBatch, WithLayer, WithScale, WithSeed
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import READ, Hook
from heta_lens.prediction.cache import Rules
from heta_lens.prediction.gradients import (
    CleanGradients,
    block_reruns,
    clean_gradients,
    pulled_down,
    values_and_gradients,
    vector_jacobian_products,
)
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import exact

Hooks: TypeAlias = list[tuple[str, Hook]]
TOGETHER = 64  # directions that are passed through the unembedding at once
STATES = 4096  # of a context, for all these directions: each has a gradient at every position
SPARSE = 32  # products that the Lanczos method takes for an eigenvector, at most


@dataclass(frozen=True, eq=False, kw_only=True)
class WithCheckpoint(Method):
    """
    - ``checkpoint``: hold the gradient graph of one block at a time, which takes two more runs; None does so where the
      graph of all blocks would fill more than half of the free memory
    """

    checkpoint: bool | None = None

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.checkpoint and (why := prediction.prompt.why_not_alone()):
            raise ValueError(f"checkpoint=True runs blocks one at a time, but {why}: leave it out")

    def clean_runs(self, prediction: Prediction) -> int:
        return 3 if prediction.holds_one_block(self.checkpoint) else 1


@dataclass(frozen=True, eq=False, kw_only=True)
class CleanGradient(WithCheckpoint):
    """A method whose scores come from one gradient by the clean embeddings."""

    family: ClassVar = "gradient"
    differentiates: ClassVar = True

    def hooks(self, adapter: ModelAdapter) -> Hooks:  # noqa: ARG002
        """Make the hooks that change the gradient; by default none."""
        return []

    @property
    def rules(self) -> Rules | None:
        return None if self.checkpoint else self.hooks

    def shorter(self, predictions: Sequence[Prediction]) -> str:  # noqa: ARG002
        return ""

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=self.clean_runs(prediction), backwards=1)

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        return [[*predictions]]

    def explain_together(self, predictions: Sequence[Prediction]) -> list[Scores]:
        run = clean_gradients(predictions, self.measure, self.hooks, checkpoint=self.checkpoint)
        self.check_run(run)
        rows = zip(predictions, run.values.tolist(), run.gradients, strict=True)
        return [self.scores(prediction, value, gradient[: len(prediction)]) for prediction, value, gradient in rows]

    @abstractmethod
    def measure(self, prediction: Prediction, logits: Float[Tensor, "vocab"]) -> Float[Tensor, ""]:
        """Return the value that is differentiated."""

    def check_run(self, run: CleanGradients) -> None:
        """Refuse a run whose hooks were not reached."""

    @abstractmethod
    def scores(self, prediction: Prediction, value: float, gradient: Float[Tensor, "pos d"]) -> Scores:
        """Make scores of the gradient."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LikelihoodGradient(CleanGradient, WithScale):
    def measure(self, prediction: Prediction, logits: Float[Tensor, "vocab"]) -> Float[Tensor, ""]:
        return prediction.read(logits, self.scale)


@dataclass(frozen=True, eq=False, kw_only=True)
class InputXGradient(LikelihoodGradient):
    """Input × gradient: each token's embedding times the gradient of the target's likelihood.

    ``a_i = Σ_c E_ic ∂g/∂E_ic``: above 0 speaks for the target."""

    name: ClassVar = "input_x_gradient"
    paper: ClassVar[str] = (
        "Shrikumar, Greenside & Kundaje, Learning important features through propagating activation differences, "
        "ICML 2017, arXiv:1704.02685"
    )
    cost: ClassVar = "F + B"

    def scores(self, prediction: Prediction, value: float, gradient: Float[Tensor, "pos d"]) -> Scores:  # noqa: ARG002
        return Scores(einsum(prediction.embeddings, gradient, "pos d, pos d -> pos"))


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientNorm(LikelihoodGradient):
    """Gradient norm: the change of the target's likelihood with every token's embedding.

    ``a_i = ‖∂g/∂E_i‖``: ≥ 0, no direction."""

    name: ClassVar = "gradient_norm"
    paper: ClassVar[str] = (
        "Simonyan, Vedaldi & Zisserman, Deep inside convolutional networks: visualising image classification "
        "models and saliency maps, 2013, arXiv:1312.6034"
    )
    cost: ClassVar = "F + B"
    signed: ClassVar = False

    def scores(self, prediction: Prediction, value: float, gradient: Float[Tensor, "pos d"]) -> Scores:  # noqa: ARG002
        return Scores(gradient.norm(dim=-1))


@dataclass(frozen=True, eq=False, kw_only=True)
class SmoothGrad(WithScale, WithSeed, WithBatch):
    """SmoothGrad (Smilkov 2017): the gradient, averaged over noisy copies of the embeddings.

    ``a_i = ‖mean_k ∂g/∂E_i(E + ε_k)‖``: ≥ 0, no direction.

    - ``samples``: the number of noisy copies
    - ``noise``: the standard deviation of ε, as a share of the range of the embeddings
    """

    samples: Annotated[int, COUNT] = 25
    noise: Annotated[float | int, AtLeast(0)] = 0.15

    name: ClassVar = "smooth_grad"
    paper: ClassVar = "Smilkov et al., SmoothGrad: removing noise by adding noise, 2017, arXiv:1706.03825"
    family: ClassVar = "gradient"
    differentiates: ClassVar = True
    scaled_by: ClassVar = ("samples",)
    cost: ClassVar = "samples · (F + B)"
    signed: ClassVar = False
    adapted: ClassVar = "made for pixels: a token's score is the norm over its embedding"

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=self.samples, backwards=self.samples)

    def explain(self, prediction: Prediction) -> Scores:
        clean = prediction.embeddings
        spread = self.noise * (clean.max() - clean.min())

        def gradients(numbers: Int[Tensor, "copy"]) -> Float[Tensor, "copy pos d"]:
            generators = (prompt_generator(self.seed, prediction.ids, int(number)) for number in numbers)
            noise = torch.stack([torch.from_numpy(one.standard_normal(clean.shape)) for one in generators])
            return values_and_gradients(prediction, clean + spread * noise.to(clean), self.scale)[1]

        prediction.check_graph_fits()
        batches = prediction.batches(self.batch, products=True)
        every = batches.map(gradients, torch.arange(self.samples), len(prediction))
        return Scores(every.mean(0).norm(dim=-1))


@dataclass(frozen=True, eq=False, kw_only=True)
class GradCam(WithScale, WithLayer, WithCheckpoint):
    """Grad-CAM (Selvaraju 2017) on the residual stream: features that raise the target, and tokens with these features.

    ``a_i = relu(Σ_c w_c H_ic)``, ``w_c = mean_i ∂g/∂H_ic``, H the output of a block: ≥ 0, evidence for the target.

    A token with a helpful feature gets a score for it, whether or not the prediction reads it there.

    - ``layer``: the block to read, counted from 0; None is the middle one, ``L // 2``. The last block's output affects
      the prediction through the last token only
    """

    name: ClassVar = "grad_cam"
    paper: ClassVar[str] = (
        "Selvaraju et al., Grad-CAM: visual explanations from deep networks via gradient-based localization, ICCV "
        "2017, arXiv:1610.02391"
    )
    family: ClassVar = "gradient"
    kinds: ClassVar = OF_LOGITS
    differentiates: ClassVar = True
    cost: ClassVar = "2 F + B"
    signed: ClassVar = False
    adapted: ClassVar = "made for the feature maps of images: tokens stand for places, the residual stream for features"

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=1 + self.clean_runs(prediction), backwards=1)

    def explain(self, prediction: Prediction) -> Scores:
        layer = prediction.layers // 2 if self.layer is None else self.layer
        states, measure = prediction.states(layer + 1), partial(Prediction.read, scale=self.scale)
        gradient = clean_gradients([prediction], measure, layer=layer + 1, checkpoint=self.checkpoint).gradients[0]
        return Scores(einsum(states, gradient.mean(0), "pos d, d -> pos").relu(), {"layer": layer})


@dataclass(frozen=True, eq=False, kw_only=True)
class JacobianScope(WithCheckpoint):
    """Jacobian Scopes (Liu 2026): the effect of every token's embedding on the output of the last norm.

    ``a_i = tr(J_iᵀ F J_i)`` or ``‖J_iᵀ y‖ / ‖y‖``: ≥ 0, no direction, the same for every target.

    y is the output of the last norm where the prediction is read, and ``J_i = ∂y/∂E_i``. The third
    scope, of one target, is ``gradient_norm`` with ``scale="logit"``.

    - ``scope``: ``fisher``, how much the predicted distribution moves: ``F = Wᵀ (diag P - P Pᵀ) W``, where W is the
      derivative of the logits by y; or ``temperature``, how much y grows, and with it the model's certainty
    - ``rank``: the number of largest eigenvectors of F that count, each for a backward pass; None counts all
    """

    scope: Literal["fisher", "temperature"] = "fisher"
    rank: Annotated[int | None, AtLeast(1, whole=True)] = 1

    name: ClassVar = "jacobian_scope"
    paper: ClassVar = "Liu et al., Jacobian Scopes: token-level causal attributions in LLMs, 2026, arXiv:2601.16407"
    family: ClassVar = "gradient"
    cost: ClassVar = "F + rank · B, and the eigenvectors of a matrix as wide as the model; temperature: F + B"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {"rank": "scope='temperature' (which has one direction)"} if self.scope == "temperature" else {}

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        model = prediction.model
        folded = str(getattr(model.cfg, "normalization_type", None)).endswith("Pre")
        if self.scope == "temperature" and (folded or getattr(model, "compatibility_mode", False)):
            raise ValueError(
                "scope='temperature' reads how long the last norm's result is, and the norm's weights were folded into "
                "the unembedding: load the model without processing its weights, or choose scope='fisher'"
            )

    def work(self, prediction: Prediction) -> Work:
        width = prediction.embeddings.shape[1]
        most = 1 if self.scope == "temperature" else min(self.rank or width, width)
        return Work(forwards=self.clean_runs(prediction), backwards=most)

    def states_held(self, tokens: int) -> int:  # noqa: ARG002
        return 4 * STATES if self.scope == "fisher" else 0

    def explain(self, prediction: Prediction) -> Scores:
        by_block, top = prediction.holds_one_block(self.checkpoint), prediction.layers - 1
        prediction.check_graph_fits(checkpoint=by_block)
        below = block_reruns(prediction, range(top + 1))[:-1] if by_block else []
        batches = prediction.batches("auto", products=True, checkpoint=by_block)
        squares = torch.zeros_like(prediction.embeddings[:, 0])
        with differentiable(prediction, top if below else None) as run:
            strengths, directions = self._directions(run)
            for weights, few in zip(strengths.split(TOGETHER), directions.split(TOGETHER), strict=True):
                pulled = batches.map(partial(vector_jacobian_products, run.y, run.leaf), few, len(prediction))
                *_, pulled = pulled, *pulled_down(below, pulled, batches)
                squares += weights.to(pulled) @ pulled.square().sum(-1)
            count("backwards", len(directions))
        if self.scope == "temperature":
            return Scores(squares.sqrt())
        return Scores(squares, {"eigenvalues": [*map(float, strengths)]})

    def _directions(self, run: "Run") -> tuple[Float[Tensor, "rank"], Float[Tensor, "rank d"]]:
        y = run.y.detach()
        if self.scope == "temperature":
            return torch.ones_like(y[:1]), (y / y.norm())[None]
        products, width = fisher(run.logits, run.y), len(y)
        start = np.random.default_rng(0).standard_normal(width)

        def product(direction: Any) -> Any:
            same = torch.tensor(direction, dtype=y.dtype, device=y.device).expand(4, -1)
            return exact(products(same)[0]).numpy(force=True)  # of fewer rows, MKL adds up a vocabulary less exactly

        if self.rank and SPARSE * self.rank < width and product(start).any():  # ARPACK refuses a matrix of zeros
            matrix: Any = LinearOperator((width, width), product, dtype=start.dtype)  # type: ignore[call-arg]
            values, vectors = map(torch.from_numpy, eigsh(matrix, self.rank, v0=start))
        else:
            at_once = min(TOGETHER, max(1, STATES // len(run.leaf)))
            every = torch.eye(width, dtype=y.dtype, device=y.device).split(at_once)
            matrix = exact(torch.cat([products(chunk) for chunk in every]))
            values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        significant = values > values.abs().max() * torch.finfo(values.dtype).eps * len(values)
        strongest = values.masked_fill(~significant, 0).flip(0)[: self.rank]
        kept = strongest > 0
        kept[0] = True  # even for a certain prediction, which nothing moves
        return strongest[kept].to(y), vectors.T.flip(0)[: self.rank][kept].to(y)


class Run(NamedTuple):
    """One run of the context: its states as a leaf, y, and the logits of the prediction."""

    leaf: Float[Tensor, "pos d"]
    y: Float[Tensor, "d"]
    logits: Float[Tensor, "vocab"]


@contextmanager
def differentiable(prediction: Prediction, layer: int | None = None) -> Iterator[Run]:
    """Run the context from a layer on, and leave the model's hooks as long as the run's graph is used."""
    leaf, read = prediction.states(layer).detach().clone().requires_grad_(), list[Tensor]()

    def split_last(live: Float[Tensor, "1 pos d"]) -> Float[Tensor, "1 pos d"]:
        at = min(len(prediction), live.shape[1]) - 1  # with hooks of a user, the whole prompt runs
        read.append(live[0, at])  # a tensor by itself, so that derivatives by it can be taken
        return torch.cat([live[:, :at], read[-1][None, None], live[:, at + 1 :]], 1)

    with prediction.hooked([(READ, split_last)]):
        logits = prediction.rerun(layer=layer).logits(leaf[None])[0]
        yield Run(leaf, read[0], logits)


def fisher(logits: Float[Tensor, "vocab"], y: Float[Tensor, "d"]) -> Callable[[Tensor], Tensor]:
    """Return products with the Fisher information of the prediction P about y, the mean of ``∇ log P_v ∇ log P_vᵀ``."""
    p = exact(logits.detach()).softmax(-1)
    seed = torch.zeros_like(logits, requires_grad=True)
    (back,) = torch.autograd.grad(logits, y, seed, create_graph=True)  # linear in the seed, so that it can be turned

    def products(directions: Float[Tensor, "direction d"]) -> Float[Tensor, "direction d"]:
        (moved,) = torch.autograd.grad(back, seed, directions, retain_graph=True, is_grads_batched=True)
        centred = moved - (exact(moved) @ p)[:, None].to(moved)
        weighted = (p.to(moved) * centred).to(logits)
        (rows,) = torch.autograd.grad(logits, y, weighted, retain_graph=True, is_grads_batched=True)
        return rows

    return products
