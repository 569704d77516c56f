"""ReAGent (Zhao & Shan 2024): which tokens keep the target likely while the others are replaced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.caller_warnings import warn
from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.target_kinds import Kind
from heta_lens._util.work_counting import Done, Work
from heta_lens.methods.base import Scores, refuse_hooks
from heta_lens.methods.perturbation.token_replacement import REPLACERS, Replacer, check_replacer, replaced
from heta_lens.methods.shared_options import WithBatch, WithSeed
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.readout import log_softmax

ReadChances: TypeAlias = Callable[[Tensor], Tensor]
"""Of contexts: the target's probability, and how many tokens are likelier."""

SURE = 1e-6  # shares are kept this far from 0 and 1 before their log-odds are taken
AGREED = 2  # how many probes must rank a token among the first for it to be part of the rationale


@dataclass(frozen=True, eq=False, kw_only=True)
class Reagent(WithSeed, WithBatch):
    """``a = softmax(ℓ)``, the mean of several probes: ≥ 0, no direction.

    A probe begins with random ℓ. Each step it replaces random tokens, measures the drop δ of the target's probability,
    and adds ``log((1 + Δ) / (1 - Δ))`` to ℓ, where Δ is δ for replaced tokens and -δ for the others. It stops when the
    tokens with the highest ℓ suffice: with all others replaced, the target is still among the likeliest. Only probes
    that stopped count, if any did; ``diagnostics["stopped"]`` is their number, ``"rationale"`` the tokens that at least
    two of them (or the only one) rank among the highest.

    - ``top``: how many tokens have to suffice
    - ``tolerance``: among how many of the likeliest tokens the target has to be
    - ``rate``: the probability that a token is replaced in a step
    - ``probes``, ``max_steps``: the number of probes, and the most steps of each
    - ``replacer``: ``unigram``, any token of the same kind (with a leading space or not; letters, digits or signs);
      ``lm``, what the explained model predicts there; or a function of the context's ids, positions in it and a numpy
      generator that returns the ids for these positions, such as
      ``heta_lens.methods.perturbation.token_replacement.MpredictionLM``
    - ``seed``: of ℓ, the positions and their new tokens
    """

    top: Annotated[int, AtLeast(1, whole=True)] = 5
    tolerance: Annotated[int, AtLeast(1, whole=True)] = 3
    rate: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.3
    probes: Annotated[int, COUNT] = 8
    max_steps: Annotated[int, COUNT] = 300
    replacer: Annotated[Literal["unigram", "lm"] | Callable[..., Any], check_replacer] = "unigram"

    name: ClassVar = "reagent"
    paper: ClassVar[str] = (
        "Zhao & Shan, ReAGent: a model-agnostic feature attribution method for generative language models, 2024, "
        "arXiv:2402.00794"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "up to 2 · max_steps · probes F"
    scaled_by: ClassVar = ("max_steps", "probes")
    signed: ClassVar = False
    adapted: ClassVar = (
        "by default, tokens are replaced by any of their kind, not by the predictions of a masked language model"
    )

    @property
    def takes(self) -> frozenset[Kind]:
        return frozenset(("token",))

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        refuse_hooks(self, prediction, "runs other tokens")

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 2 * self.max_steps * self.probes + (self.replacer == "lm")}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        replacer = REPLACERS[self.replacer](prediction) if isinstance(self.replacer, str) else self.replacer
        progress.add("forwards", int(self.replacer == "lm"))
        probes = [Probe.new(self.seed, number, prediction) for number in range(self.probes)]
        batches = prediction.prompt.batches(self.batch, len(prediction))
        chances_of = partial(chances, prediction, batches.map, partial(progress.add, "forwards"))
        clean = prediction.log_probs[cast(int, prediction.target)].exp().cpu().double()
        for _ in range(self.max_steps):
            going = [probe for probe in probes if not probe.stopped]
            if not going:
                break
            self._update(prediction, going, replacer, chances_of, clean)
            self._stop_sufficient(prediction, going, replacer, chances_of)
        return aggregated(probes, self.top, prediction)

    def _update(
        self,
        prediction: Prediction,
        going: Sequence["Probe"],
        replacer: Replacer,
        chances_of: ReadChances,
        clean: Float[Tensor, ""],
    ) -> None:
        """Replace random tokens, and update the beliefs by what that does to the target."""
        masks = torch.stack([random_mask(probe.generator, len(prediction), self.rate) for probe in going])
        after, _ = chances_of(contexts(prediction, masks, replacer, going))
        for probe, mask, drop in zip(going, masks, clean - after, strict=True):
            probe.belief += evidence(drop, mask)

    def _stop_sufficient(
        self, prediction: Prediction, going: Sequence["Probe"], replacer: Replacer, chances_of: ReadChances
    ) -> None:
        """Replace all but the tokens with the highest belief, and stop the probes for which those suffice."""
        masks = torch.stack([~best(probe.belief, self.top) for probe in going])
        _, above = chances_of(contexts(prediction, masks, replacer, going))
        for probe, likelier in zip(going, above.tolist(), strict=True):
            probe.stopped = likelier < self.tolerance


@dataclass(eq=False)
class Probe:
    """The state of one search; its random numbers depend on the seed, the prompt and its number."""

    generator: np.random.Generator
    belief: Float[Tensor, "pos"]
    stopped: bool = False

    @classmethod
    def new(cls, seed: int, number: int, prediction: Prediction) -> "Probe":
        generator = prompt_generator(seed, prediction.ids, number)
        return cls(generator, torch.from_numpy(generator.random(len(prediction))))


@torch.no_grad()
def chances(
    prediction: Prediction, in_batches: Callable[..., Tensor], done: Done, ids: Int[Tensor, "copy pos"]
) -> Float[Tensor, "2 copy"]:
    """The target's probability after other contexts, and the number of tokens that are likelier."""

    def read(rows: Int[Tensor, "part pos"]) -> Float[Tensor, "part 2"]:
        log_probs = log_softmax(prediction.prompt.logits_of(rows)[:, 0])
        own = log_probs[:, [cast(int, prediction.target)]]
        above = (log_probs > own).sum(-1, keepdim=True)
        done(len(rows))
        return torch.cat([own.cpu().double().exp(), above.cpu().double()], 1)

    return rearrange(in_batches(read, ids, len(prediction)), "copy kind -> kind copy")


def contexts(
    prediction: Prediction, masks: Bool[Tensor, "probe pos"], replacer: Replacer, probes: Sequence[Probe]
) -> Int[Tensor, "probe pos"]:
    """The context, with other tokens at the masked positions of each probe."""
    places = [mask.nonzero()[:, 0] for mask in masks]
    size = prediction.adapter.vocabulary
    return torch.stack(
        [
            replaced(prediction.ids, at, replacer, probe.generator, size)
            for at, probe in zip(places, probes, strict=True)
        ]
    )


def random_mask(generator: np.random.Generator, length: int, rate: float | int) -> Bool[Tensor, "pos"]:
    """Each position with this probability, but at least one."""
    mask = generator.random(length) < rate
    while not mask.any():
        mask = generator.random(length) < rate
    return torch.from_numpy(mask)


def evidence(drop: Float[Tensor, ""], mask: Bool[Tensor, "pos"]) -> Float[Tensor, "pos"]:
    """Evidence from a drop of the target's probability: for the replaced tokens, against the others."""
    share = (torch.where(mask, drop, -drop) + 1) / 2
    return torch.logit(share.clamp(SURE, 1 - SURE))


def best(belief: Float[Tensor, "pos"], count: int) -> Bool[Tensor, "pos"]:
    """The positions with the highest belief."""
    order = belief.argsort(descending=True, stable=True)
    return torch.zeros(len(belief), dtype=torch.bool).index_fill(0, order[:count], True)


def aggregated(probes: Sequence[Probe], top: int, prediction: Prediction) -> Scores:
    """The mean of the probes that stopped (of all, if none did), and the tokens that several of them rank first."""
    stopped = [probe for probe in probes if probe.stopped]
    counted = stopped or probes
    shares = torch.stack([probe.belief.softmax(0) for probe in counted])
    votes = torch.stack([best(probe.belief, top) for probe in counted]).sum(0)
    if not stopped:
        warn(f"none of {len(probes)} probes found {top} tokens that suffice: raise top, tolerance or max_steps")
    elif top >= len(prediction) > 1:
        warn(f"the top={top} tokens that suffice are all {len(prediction)} there are, which says nothing: lower top")
    facts = {"stopped": len(stopped), "rationale": (votes >= min(AGREED, len(counted))).nonzero()[:, 0].tolist()}
    return Scores(shares.mean(0).to(prediction.embeddings), facts)
