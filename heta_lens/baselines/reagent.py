"""ReAGent (Zhao & Shan 2024): which tokens it takes to keep the target likely while others are replaced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found, refuse_contrast, refuse_hooks
from heta_lens.baselines.replacers import REPLACERS, Replacer, check_replacer, replaced
from heta_lens.diagnostics import warn
from heta_lens.options import COUNT, AtLeast, Batch, Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Done, Work
from heta_lens.scales import log_softmax

Judge: TypeAlias = Callable[[Tensor], Tensor]  # of contexts: the target's probability, and how many are likelier

SURE = 1e-6  # how near to 0 and 1 a share may come whose log-odds are taken
AGREED = 2  # probes that have to rank a token among the first to make it part of the rationale


@dataclass(frozen=True, eq=False, kw_only=True)
class Reagent(Baseline):
    """``a = softmax(ℓ)``, the mean of several probes: ≥ 0, no direction.

    A probe begins with random ℓ. Each step it replaces random tokens, sees the target's probability drop by δ, and
    adds ``log((1 + Δ) / (1 - Δ))`` to ℓ, where Δ is δ for tokens that were replaced and -δ for the others. It stops
    when the tokens with the highest ℓ suffice: with all others replaced, the target is still among the likeliest.
    Only probes that stopped count, if any did; ``diagnostics["stopped"]`` says how many, ``"rationale"`` which tokens
    at least two of them (or the only one) have among the highest.

    - ``top``: how many tokens have to suffice
    - ``tolerance``: among how many of the likeliest tokens the target has to be
    - ``rate``: how likely each token is replaced in a step
    - ``probes``, ``max_steps``: how many probes, and how long each goes on
    - ``replacer``: ``unigram``, any token of the same kind (led by a space or not; letters, digits or signs); ``lm``,
      what the explained model expects there; or a function of the context's ids, positions in it and a numpy
      generator, that returns the ids for these positions, such as ``heta_lens.baselines.replacers.MaskedLM``
    - ``seed``: where ℓ, the positions and their tokens come from
    - ``batch``: contexts run at once
    """

    top: Annotated[int, AtLeast(1, whole=True)] = 5
    tolerance: Annotated[int, AtLeast(1, whole=True)] = 3
    rate: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.3
    probes: Annotated[int, COUNT] = 8
    max_steps: Annotated[int, COUNT] = 300
    replacer: Annotated[Literal["unigram", "lm"] | Callable[..., Any], check_replacer] = "unigram"
    seed: Seed = 0
    batch: Batch = "auto"

    name: ClassVar = "reagent"
    cost: ClassVar = "up to 2 · max_steps · probes F"
    signed: ClassVar = False
    adapted: ClassVar = "by default tokens are replaced by any of their kind, not by what a masked model finds fitting"

    def check(self, prediction: Prediction) -> None:
        refuse_contrast(self, prediction)
        refuse_hooks(self, prediction, "runs other tokens")

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {"forwards": 2 * self.max_steps * self.probes + (self.replacer == "lm")}

    def explain(self, asked: Prediction, work: Work) -> Found:
        replacer = REPLACERS[self.replacer](asked) if isinstance(self.replacer, str) else self.replacer
        work.add("forwards", int(self.replacer == "lm"))
        probes = [Probe.new(self.seed, number, len(asked)) for number in range(self.probes)]
        judge = partial(chances, asked, asked.prompt.batches(self.batch, len(asked)).map, partial(work.add, "forwards"))
        clean = asked.log_probs[asked.target].exp().cpu().double()
        for _ in range(self.max_steps):
            going = [probe for probe in probes if not probe.stopped]
            if not going:
                break
            self._look(asked, going, replacer, judge, clean)
            self._try(asked, going, replacer, judge)
        return aggregated(probes, self.top, asked)

    def _look(
        self, asked: Prediction, going: Sequence["Probe"], replacer: Replacer, judge: Judge, clean: Float[Tensor, ""]
    ) -> None:
        """Replace random tokens, and learn from what that does to the target."""
        masks = torch.stack([random_mask(probe.generator, len(asked), self.rate) for probe in going])
        after, _ = judge(contexts(asked, masks, replacer, going))
        for probe, mask, drop in zip(going, masks, clean - after, strict=True):
            probe.belief += evidence(drop, mask)

    def _try(self, asked: Prediction, going: Sequence["Probe"], replacer: Replacer, judge: Judge) -> None:
        """Replace all but the tokens believed in most, and stop where they suffice."""
        masks = torch.stack([~best(probe.belief, self.top) for probe in going])
        _, above = judge(contexts(asked, masks, replacer, going))
        for probe, likelier in zip(going, above.tolist(), strict=True):
            probe.stopped = likelier < self.tolerance


@dataclass(eq=False)
class Probe:
    """What one search has come to believe; its chance depends on the seed and its number."""

    generator: np.random.Generator
    belief: Float[Tensor, "pos"]
    stopped: bool = False

    @classmethod
    def new(cls, seed: int, number: int, length: int) -> "Probe":
        generator = np.random.default_rng([seed, number])
        return cls(generator, torch.from_numpy(generator.random(length)))


@torch.no_grad()
def chances(
    asked: Prediction, in_batches: Callable[..., Tensor], done: Done, ids: Int[Tensor, "copy pos"]
) -> Float[Tensor, "2 copy"]:
    """The target's probability after other contexts, and how many tokens are likelier."""

    def read(some: Int[Tensor, "part pos"]) -> Float[Tensor, "part 2"]:
        log_probs = log_softmax(asked.prompt.logits_of(some)[:, 0])
        own = log_probs[:, [asked.target]]
        above = (log_probs > own).sum(-1, keepdim=True)
        done(len(some))
        return torch.cat([own.cpu().double().exp(), above.cpu().double()], 1)

    return rearrange(in_batches(read, ids, len(asked)), "copy kind -> kind copy")


def contexts(
    asked: Prediction, masks: Bool[Tensor, "probe pos"], replacer: Replacer, probes: Sequence[Probe]
) -> Int[Tensor, "probe pos"]:
    """The context, with other tokens where each probe has its mask."""
    places = [mask.nonzero()[:, 0] for mask in masks]
    size = asked.lens.vocabulary
    return torch.stack(
        [replaced(asked.ids, at, replacer, one.generator, size) for at, one in zip(places, probes, strict=True)]
    )


def random_mask(generator: np.random.Generator, length: int, rate: float | int) -> Bool[Tensor, "pos"]:
    """Each position as likely as that, but one at least."""
    mask = generator.random(length) < rate
    while not mask.any():
        mask = generator.random(length) < rate
    return torch.from_numpy(mask)


def evidence(drop: Float[Tensor, ""], mask: Bool[Tensor, "pos"]) -> Float[Tensor, "pos"]:
    """What a drop of the target's probability says for the tokens that were replaced, and against the others."""
    share = (torch.where(mask, drop, -drop) + 1) / 2
    return torch.logit(share.clamp(SURE, 1 - SURE))


def best(belief: Float[Tensor, "pos"], count: int) -> Bool[Tensor, "pos"]:
    """The positions believed in most."""
    order = belief.argsort(descending=True, stable=True)
    return torch.zeros(len(belief), dtype=torch.bool).index_fill(0, order[:count], True)


def aggregated(probes: Sequence[Probe], top: int, asked: Prediction) -> Found:
    """The mean of the probes that stopped (of all, if none did), and which tokens several of them rank first."""
    stopped = [probe for probe in probes if probe.stopped]
    counted = stopped or probes
    shares = torch.stack([probe.belief.softmax(0) for probe in counted])
    votes = torch.stack([best(probe.belief, top) for probe in counted]).sum(0)
    if not stopped:
        warn(f"none of {len(probes)} probes found {top} tokens that suffice: raise top, tolerance or max_steps")
    elif top >= len(asked) > 1:
        warn(f"the top={top} tokens that suffice are all {len(asked)} there are, which says nothing: lower top")
    facts = {"stopped": len(stopped), "rationale": (votes >= min(AGREED, len(counted))).nonzero()[:, 0].tolist()}
    return shares.mean(0).to(asked.embeddings), facts
