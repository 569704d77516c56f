"""Samples: what was drawn at random for each token, for some more often than for others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.stats import t as student
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Samples:
    """The first ``counts`` entries of each column of ``values`` were drawn; the others are 0."""

    values: Float[Tensor, "sample pos"]
    counts: Int[Tensor, "pos"]

    @classmethod
    def even(cls, values: Float[Tensor, "sample pos"]) -> "Samples":
        """As many for every token."""
        return cls(values, torch.full_like(values[0], len(values), dtype=torch.long))

    @classmethod
    def uneven(cls, drawn: Sequence[Float[Tensor, "_"]]) -> "Samples":
        counts = torch.tensor([len(samples) for samples in drawn], device=drawn[0].device)
        return cls(pad_sequence(list(drawn)), counts)

    @property
    def mean(self) -> Float[Tensor, "pos"]:
        """0 where nothing was drawn."""
        return self.values.sum(0) / self.counts.clamp(min=1)

    @property
    def deviations(self) -> Float[Tensor, "sample pos"]:
        """From the mean, scaled so that their squares add up to its squared standard error."""
        rows = torch.arange(len(self.values), device=self.counts.device)[:, None]
        own = torch.where(rows < self.counts, self.values - self.mean, 0)
        return own / (self.counts * (self.counts - 1)).clamp(min=1).sqrt().to(own)


def powered_ends(
    scores: Float[Tensor, "*#pos"],
    mean: Float[Tensor, "*#pos"],
    reach: Float[Tensor, "*#pos"],
    power: float,
) -> tuple[Float[Tensor, "*pos"], Float[Tensor, "*pos"]]:
    """Transform ``mean ± reach``, floored at 0, to the ends of scores that have ``mean ** power`` as a factor."""
    factors = [((mean + end).clamp(min=0) / mean) ** power for end in (-reach, reach)]
    one, other = (torch.where(scores == 0, 0, scores * factor) for factor in factors)
    return torch.minimum(one, other), torch.maximum(one, other)


def student_t(counts: Int[Tensor, "pos"], confidence: float = 0.95) -> Float[Tensor, "pos"]:
    """Student's t for means of so many samples; 0 where there is no spread to scale."""
    quantiles = student.ppf((1 + confidence) / 2, (counts - 1).clamp(min=1).cpu().numpy())
    return torch.where(counts.cpu() > 1, torch.from_numpy(quantiles), 0)
