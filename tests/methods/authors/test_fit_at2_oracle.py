"""The loss of AT2 next to its authors' package, wherever that is installed: ``make oracles`` does so.

On import it downloads a sentence splitter, which the loss does without: a stand-in keeps it off the network.
"""

import sys
from types import SimpleNamespace

import pytest
import torch

from helpers.asking import relative
from heta_lens.methods.at2 import correlation

with pytest.MonkeyPatch.context() as stand_ins:
    stand_ins.setitem(sys.modules, "nltk", SimpleNamespace(download=lambda *_, **__: None))
    stand_ins.setitem(sys.modules, "spacy", SimpleNamespace())
    stand_ins.setitem(sys.modules, "spacy.lang.en", SimpleNamespace(English=None))
    theirs = pytest.importorskip("at2.attribution.trainer")


def test_correlations_and_their_gradients_are_theirs() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 32, 3, 4, dtype=torch.float64, generator=generator)
    log_odds = 5 * torch.randn(6, 32, dtype=torch.float64, generator=generator)
    weights = torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()
    predicted = torch.einsum("lh,pmlh->pm", weights, features)
    loss = theirs.PearsonCorrelationLoss(reduction="none")(predicted, log_odds)
    ours = correlation(weights, features, log_odds)
    assert relative(ours.detach(), -loss.detach()) < 1e-7  # they add 1e-8 to a divisor
    gradients = [torch.autograd.grad(value.mean(), weights, retain_graph=True)[0] for value in (ours, -loss)]
    assert relative(*gradients) < 1e-7
