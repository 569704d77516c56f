"""ReAGent (Zhao & Shan 2024): tokens that keep the target likely while the rest is replaced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.python import warn
from heta_lens._util.work import Work
from heta_lens.methods.base import ONE_TOKEN, Scores, WithBatch, WithSeed, refuse_hooks
from heta_lens.model.tokenizer import appended
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import log_softmax

SURE = 1e-6  # distance of shares from 0 and 1, so that their log-odds are finite
AGREED = 2  # probes that must rank a token among the first for the rationale


# --------------------------------------------------------------------------------------------------------- replacements
def same_kind(prediction: Prediction) -> Callable[[Tensor, np.random.Generator], Tensor]:
    """Return a function that replaces tokens by random ordinary ones of the same kind, or of any if not ordinary."""
    kinds = np.array(token_kinds(prediction))
    ordinary = np.flatnonzero(kinds != "")
    pools = {kind: np.flatnonzero(kinds == kind) if kind else ordinary for kind in np.unique(kinds)}

    def draw(tokens: Int[Tensor, "place"], generator: np.random.Generator) -> Int[Tensor, "place"]:
        drawn = [int(generator.choice(pools[kinds[token]])) for token in tokens.tolist()]
        return torch.tensor(drawn, dtype=torch.long)

    return draw


def token_kinds(prediction: Prediction) -> list[str]:
    """Return the kinds of tokens: leading space, and characters; "" for special, unknown and blank tokens."""
    tokenizer, size = prediction.tokenizer, prediction.adapter.vocabulary
    if tokenizer.wrapped is None:
        return ["token"] * size
    # after another token, since the first token of a text may lack its space
    written = appended(tokenizer.decode, prediction.ids[-1:].tolist(), range(size))
    special = tokenizer.special(range(size))
    kinds = ["" if hidden else kind(piece) for (_, piece), hidden in zip(written, special, strict=True)]
    if tokenizer.unknown is not None and tokenizer.unknown < size:
        kinds[tokenizer.unknown] = ""
    return kinds


def kind(piece: str) -> str:
    shown = piece.strip()
    if not shown:
        return "space" if piece else ""
    made_of = "digits" if shown.isdigit() else "letters" if any(map(str.isalpha, shown)) else "signs"
    return ("led " if piece[0].isspace() else "") + made_of


# -------------------------------------------------------------------------------------------------------------- ReAGent
@dataclass(frozen=True, eq=False, kw_only=True)
class Reagent(WithSeed, WithBatch):
    """ReAGent (Zhao & Shan 2024): tokens that keep the target likely while the rest is replaced.

    ``a = softmax(ℓ)``, the mean of several probes: ≥ 0, no direction.

    A probe begins with random ℓ. Each step it replaces random tokens, each by any token of the same kind (with a
    leading space or not; letters, digits or signs), measures the drop δ of the target's probability, and adds
    ``log((1 + Δ) / (1 - Δ))`` to ℓ, where Δ is δ for replaced tokens and -δ for the others. It stops when the tokens
    with the highest ℓ suffice: with all others replaced, the target is still among the likeliest. Only probes that
    stopped count, if any did; ``diagnostics["stopped"]`` is their number, ``"rationale"`` the tokens that at least two
    of them (or the only one) rank among the highest.

    - ``top``: how many tokens have to suffice
    - ``tolerance``: among how many of the likeliest tokens the target has to be
    - ``rate``: the probability that a token is replaced in a step
    - ``probes``, ``max_steps``: the number of probes, and the most steps of each
    - ``seed``: of ℓ, the positions and their new tokens
    """

    top: Annotated[int, AtLeast(1, whole=True)] = 5
    tolerance: Annotated[int, AtLeast(1, whole=True)] = 3
    rate: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.3
    probes: Annotated[int, COUNT] = 8
    max_steps: Annotated[int, COUNT] = 300

    name: ClassVar = "reagent"
    paper: ClassVar[str] = (
        "Zhao & Shan, ReAGent: a model-agnostic feature attribution method for generative language models, 2024, "
        "arXiv:2402.00794"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "up to 2 · max_steps · probes F"
    scaled_by: ClassVar = ("max_steps", "probes")
    signed: ClassVar = False
    kinds: ClassVar = ONE_TOKEN
    adapted: ClassVar = "tokens of the same kind replace tokens, not predictions of a masked language model"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        refuse_hooks(self, prediction, "runs other tokens")

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work(forwards=2 * self.max_steps * self.probes)

    def explain(self, prediction: Prediction) -> Scores:
        replacer = same_kind(prediction)
        generators = [prompt_generator(self.seed, prediction.ids, number) for number in range(self.probes)]
        probes = [Probe(each, torch.from_numpy(each.random(len(prediction)))) for each in generators]
        batches = prediction.batches(self.batch)
        target = cast(int, prediction.target)

        @torch.no_grad()
        def read(contexts: Int[Tensor, "probe pos"]) -> Float[Tensor, "probe 2"]:
            log_probs = log_softmax(prediction.logits_of(contexts)[:, 0])
            own = log_probs[:, [target]]
            likelier = (log_probs > own).sum(-1, keepdim=True)
            return torch.cat([own.cpu().double().exp(), likelier.cpu().double()], 1)

        def measure(probes: Sequence[Probe], masks: Sequence[Bool[Tensor, "pos"]]) -> Float[Tensor, "2 probe"]:
            """Replace each probe's masked tokens: the target's probability, and the number of likelier tokens."""
            contexts = prediction.ids.repeat(len(probes), 1)
            for context, probe, mask in zip(contexts, probes, masks, strict=True):
                context[mask] = replacer(context[mask], probe.generator).to(context)
            return batches.map(read, contexts, len(prediction)).T

        clean = prediction.log_probs[target].exp().cpu().double()
        for _ in range(self.max_steps):
            searching = [probe for probe in probes if not probe.stopped]
            if not searching:
                break
            # Replace random tokens, and update beliefs by the drop of the target's probability.
            masks = [random_mask(probe.generator, len(prediction), self.rate) for probe in searching]
            after, _ = measure(searching, masks)
            for probe, mask, drop in zip(searching, masks, clean - after, strict=True):
                probe.belief += evidence(drop, mask)
            # Replace all but the tokens of the highest belief, and stop where those suffice.
            _, likelier = measure(searching, [~best(probe.belief, self.top) for probe in searching])
            for probe, above in zip(searching, likelier.tolist(), strict=True):
                probe.stopped = above < self.tolerance
        return aggregated(probes, self.top, prediction)


@dataclass(eq=False)
class Probe:
    """The state of a search, with random numbers that depend on the seed, the prompt and the probe's number."""

    generator: np.random.Generator
    belief: Float[Tensor, "pos"]
    stopped: bool = False


def random_mask(generator: np.random.Generator, length: int, rate: float | int) -> Bool[Tensor, "pos"]:
    """Draw positions with a probability, at least a single position."""
    mask = generator.random(length) < rate
    while not mask.any():
        mask = generator.random(length) < rate
    return torch.from_numpy(mask)


def evidence(drop: Float[Tensor, ""], mask: Bool[Tensor, "pos"]) -> Float[Tensor, "pos"]:
    """Return evidence from a drop of the target's probability: for replaced tokens, against the other tokens."""
    share = (torch.where(mask, drop, -drop) + 1) / 2
    return torch.logit(share.clamp(SURE, 1 - SURE))


def best(belief: Float[Tensor, "pos"], count: int) -> Bool[Tensor, "pos"]:
    order = belief.argsort(descending=True, stable=True)
    return torch.zeros(len(belief), dtype=torch.bool).index_fill(0, order[:count], True)


def aggregated(probes: Sequence[Probe], top: int, prediction: Prediction) -> Scores:
    """Average the probes that stopped, or all if none did; the rationale is the tokens that enough probes agree on."""
    stopped = [probe for probe in probes if probe.stopped]
    counted = stopped or probes
    shares = torch.stack([probe.belief.softmax(0) for probe in counted])
    votes = torch.stack([best(probe.belief, top) for probe in counted]).sum(0)
    if not stopped:
        warn(f"none of {len(probes)} probes found {top} tokens that suffice: raise top, tolerance or max_steps")
    facts = {"stopped": len(stopped), "rationale": (votes >= min(AGREED, len(counted))).nonzero()[:, 0].tolist()}
    return Scores(shares.mean(0).to(prediction.embeddings), facts)
