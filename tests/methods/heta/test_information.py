"""The information term against one masked forward a token, and the divergences it is made of."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, predict, relative
from helpers.information import random_log_probs
from heta_lens._util.numerics import Direction, kl
from heta_lens.methods.heta.score import Reference, information
from heta_lens.model.batching import Batches
from heta_lens.prediction.masking import masked_copies

DIRECTIONS = get_args(Direction)
KINDS = "hooked-(standard|llama|gptj)|bridge-(gpt2|neox|native)"


def found(model: Any, ids: Tensor, **options: Any) -> Tensor:
    return explain(model, ids, variant="kl_only", **options).parts["information"]


def expected(model: Any, ids: Tensor, mask: Tensor, direction: str = "orig_masked") -> Tensor:
    with torch.no_grad():
        return oracles.information(plain_log_probs(model, ids), plain_embeddings(model, ids), mask, direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("build", zoo.models(KINDS))
def test_equals_one_masked_forward_a_token(build: Any, direction: Direction) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    zero = torch.zeros_like(plain_embeddings(model, ids)[0])
    assert relative(found(model, ids, kl=direction), expected(model, ids, zero, direction)) < 1e-8


@pytest.mark.parametrize("build", zoo.models("gpt2|gemma2|bloom"))
def test_every_mask_is_what_its_name_says(build: Any) -> None:
    """Gemma scales its embeddings and Bloom normalises them: masks are what the model would really see."""
    model = build()
    ids = zoo.prompt(model, 6)
    embeddings = plain_embeddings(model, ids)
    everything = torch.arange(model.cfg.d_vocab)
    seen = torch.cat([plain_embeddings(model, batch[None]) for batch in everything.split(zoo.N_CTX)])
    vector = torch.linspace(-1, 1, embeddings.shape[1], dtype=embeddings.dtype)
    for mask, stands_for in (
        ("zero", torch.zeros_like(vector)),
        ("mean", embeddings.mean(0)),
        ("vocab_mean", seen.mean(0)),
        (11, seen[11]),
        (vector, vector),
    ):
        assert relative(found(model, ids, mask=mask), expected(model, ids, stands_for)) < 1e-5, mask


@pytest.mark.parametrize("build", zoo.models(KINDS))
def test_a_mask_that_changes_nothing_gives_exactly_zero(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    attribution = explain(model, ids, variant="kl_only", mask=int(ids[0, 3]))
    same = ids[0] == ids[0, 3]
    assert (attribution.parts["information"][same] == 0).all()
    assert (attribution.parts["information"][~same] > 0).any()
    assert attribution.diagnostics["forwards"] == int((~same).sum()) + 1  # in which all tokens are masked


@pytest.mark.parametrize("build", zoo.models(KINDS))
def test_pinsker_holds_for_every_token(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    prediction = predict(model, ids)
    copies = masked_copies(prediction.embeddings, torch.arange(8), torch.zeros_like(prediction.embeddings[0]))
    with torch.no_grad():
        masked = prediction.log_probs_from(0)(copies)
    moved = (prediction.log_probs.exp() - masked.exp()).abs().sum(-1)
    assert (found(model, ids) >= moved.square() / 2).all()


@pytest.mark.parametrize("build", zoo.models("gpt2|llama"))
def test_one_set_of_masked_forwards_serves_many_targets(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    prediction = predict(model, ids)
    cleans = [prediction.log_probs, random_log_probs(1, model.cfg.d_vocab)[0]]
    references = [Reference(clean, clean[0], prediction.objective) for clean in cleans]
    batches: list[int] = []
    with torch.no_grad():
        both = information(
            lambda start: lambda copies: prediction.log_probs_from(start)(copies)[:, None].expand(-1, 2, -1),
            prediction.embeddings,
            torch.zeros_like(prediction.embeddings[0]),
            references,
            kl,
            by_start=[[0, 1, 2, 3], [4, 5]],
            batches=Batches(4),
            done=batches.append,
        ).divergence
    assert sum(batches) == 6
    assert relative(both[0], found(model, ids)) < 1e-9
    assert not torch.allclose(both[0], both[1])


@pytest.mark.parametrize("floor", [False, True])
def test_what_is_no_number_stays_none(floor: bool) -> None:
    """So that it is refused where it is read, and no floor makes it 0."""
    clean = torch.zeros(3).log_softmax(0)
    broken = information(
        lambda _: lambda copies: (copies.sum((1, 2)) * torch.nan)[:, None, None].expand(-1, 1, 3),
        torch.ones(2, 4),
        torch.zeros(4),
        [Reference(clean, clean[0], lambda _, log_probs: log_probs[:, 0])],
        kl,
        by_start=[[0, 1]],
        batches=Batches(4),
        done=lambda _: None,
        floor=floor,
    )
    assert broken.divergence.isnan().all() and broken.drop.isnan().all()


def test_a_chunk_runs_from_its_first_masked_token_and_only_whole_masks_are_left_out() -> None:
    """A token that shares an entry with the mask is still masked."""
    embeddings = torch.tensor([[1.0, 2.0], [0.0, 1.0], [0.0, 0.0], [3.0, 0.0], [2.0, 2.0]])
    runs: list[tuple[int, list[int]]] = []

    def log_probs_from(start: int) -> Callable[[Tensor], Tensor]:
        def log_probs(copies: Tensor) -> Tensor:
            runs.append((start, list(copies.shape)))
            before = embeddings[:start].sum(0).expand(len(copies), -1)
            return (before + copies.sum(1)).log_softmax(-1)[:, None]

        return log_probs

    clean = embeddings.sum(0, keepdim=True).log_softmax(-1)
    counted: list[int] = []
    reference = [Reference(clean[0], clean[0, 1], lambda logits, log_probs: log_probs[..., 1])]  # noqa: ARG005
    how: Any = {"by_start": [[0, 1, 2, 3], [4]], "batches": Batches(9), "done": counted.append}
    found = information(log_probs_from, embeddings, torch.zeros(2), reference, kl, **how)
    masked = (embeddings.sum(0) - embeddings).log_softmax(-1)
    torch.testing.assert_close(found.divergence[0], kl(clean, masked))
    torch.testing.assert_close(found.drop[0], (clean - masked)[:, 1])
    assert runs == [(0, [3, 5, 2]), (4, [1, 1, 2])]
    assert counted == [3, 1]
