"""GiLOT against optimal transport by linear programming, and the distributions of its authors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from helpers import zoo
from helpers.asking import hooked_up, plain_embeddings, plain_log_probs, predict, relative
from heta_lens.methods.gilot import Gilot

N, TARGET = 8, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
pytestmark = pytest.mark.filterwarnings("ignore:none of . probes found .* tokens that suffice:UserWarning")


def plain_transport(p: Tensor, q: Tensor, costs: Tensor) -> float:
    """The linear programme, written out: what leaves each token is p, what arrives is q."""
    rows, columns = costs.shape
    leaves = np.kron(np.eye(rows), np.ones(columns))
    arrives = np.kron(np.ones(rows), np.eye(columns))
    known = np.concatenate([p.numpy(), q.numpy()])
    return linprog(costs.numpy().ravel(), A_eq=np.vstack([leaves, arrives]), b_eq=known, method="highs").fun


def plain_distance(table: Tensor, log_p: Tensor, log_q: Tensor, share: float) -> float:
    union: set[int] = set()
    for log_probs in (log_p, log_q):
        reached = 0.0
        for token in log_probs.argsort(descending=True).tolist():
            if reached < share:
                union.add(token)
            reached += float(log_probs[token].exp())
    places = sorted(union)
    p, q = (log_probs[places].exp() / log_probs[places].exp().sum() for log_probs in (log_p, log_q))
    vectors = table[places].double()
    costs = torch.tensor(
        [[1 - float(a @ b / a.norm() / b.norm()) if a is not b else 0.0 for b in vectors] for a in vectors],
        dtype=torch.float64,
    )
    return plain_transport(p, q, costs)


@FAMILIES
def test_gilot_is_how_far_the_next_token_moves(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    clean, expected = log_probs(embeddings).double().detach(), []
    for place in range(5):
        masked = embeddings.clone()
        masked[place] = 0
        after = log_probs(masked).double().detach()
        expected.append(plain_distance(model.W_E.detach(), clean, after, 0.7))
    found = Gilot(nucleus=0.7)(predict(model, ids, TARGET))
    assert relative(found.scores, torch.tensor(expected, dtype=torch.float64)) < 1e-4
    assert found.diagnostics["forwards"] == 5 and not found.signed


def authors_distribution(model: Any, ids: Tensor, embeddings: Tensor, beams: int, written: int) -> Tensor:
    """The authors' p_J: a beam search writes J tokens; each beam's next-token distribution counts as it is likely.

    Transcribed from the definition: every step is a full run in float64, and the weight of a beam is the product of
    the probabilities of the J tokens that it consists of.
    """

    def following(beam: list[int]) -> Tensor:
        put = [("hook_embed", lambda live, hook: torch.cat([embeddings[None], live[:, len(embeddings) :]], 1))]  # noqa: ARG005
        with torch.no_grad():
            run = model.run_with_hooks(torch.tensor([[*ids[0].tolist(), *beam]]), fwd_hooks=put)
        return run[0, -1].double().softmax(-1)

    search: list[tuple[float, list[int]]] = [(1.0, [])]
    for _ in range(written):
        extended = [
            (likely * float(p), [*beam, token])
            for likely, beam in search
            for token, p in enumerate(following(beam).tolist())
        ]
        search = sorted(extended, key=lambda pair: -pair[0])[:beams]
    mixed = sum(likely * following(beam) for likely, beam in search)
    return mixed / mixed.sum()


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_gilot_looks_ahead_along_beams(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 4)
    embeddings = plain_embeddings(model, ids)
    clean, expected = authors_distribution(model, ids, embeddings, 2, 2), []
    for place in range(4):
        masked = embeddings.clone()
        masked[place] = 0
        moved = authors_distribution(model, ids, masked, 2, 2)
        expected.append(plain_distance(model.W_E.detach(), clean.log(), moved.log(), 0.7))
    asked = predict(model, ids, TARGET)
    found = Gilot(nucleus=0.7, length=3, beams=2)(asked)
    assert relative(found.scores, torch.tensor(expected, dtype=torch.float64)) < 1e-4
    assert found.diagnostics["forwards"] == Gilot(length=3, beams=2).work(asked).forwards == 5 * (1 + 2 * 2)
    assert relative(Gilot(nucleus=0.7, length=3, beams=2, batch=1)(asked).scores, found.scores) < 1e-9


def test_what_gilot_refuses() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    for nucleus in (0, 1.5):
        with pytest.raises(ValueError, match=f"nucleus={nucleus} "):
            Gilot(nucleus=nucleus)
    with pytest.raises(ValueError, match="'gilot' takes 108 positions, and this model has 64: make length=101 smaller"):
        Gilot(length=101)(predict(model, ids, TARGET))
    try:
        asked = predict(hooked_up(model), ids, TARGET)
        with pytest.raises(ValueError, match="'gilot' writes after the context, which hooks on the model"):
            Gilot(length=2)(asked)
        assert Gilot()(asked).scores.max() > 0
    finally:
        model.reset_hooks()
