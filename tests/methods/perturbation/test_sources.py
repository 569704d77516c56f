"""What is predicted without each source, against plain runs of the ids, or of the embeddings, that are left."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.ablations import TARGET, found, ids_of
from helpers.asking import plain_embeddings, plain_log_probs, predict, relative
from heta_lens._util.work_counting import Work
from heta_lens.methods.perturbation.arc_jsd import ArcJsd
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import log_softmax

SCATTERED = np.array([[p in part for p in range(8)] for part in ((1, 2), (0,), (3, 6), (5, 6, 7), (2, 3, 4, 5, 6, 7))])


def rows_without_each(prediction: Prediction, ablate: Any, batch: Any) -> Tensor:
    rows: list[Tensor] = []

    def read(logits: Tensor) -> Tensor:
        rows.extend(log_softmax(logits))
        return torch.arange(len(rows) - len(logits), len(rows)).double()

    with prediction.running():
        order = ArcJsd(ablate=ablate, batch=batch).without_each(prediction, SCATTERED, read, Work())
    return torch.stack(rows)[order.astype(int)]


BATCH = pytest.mark.parametrize("batch", [1, "auto"])


@BATCH
@pytest.mark.parametrize("build", zoo.models("."))
def test_what_is_removed_is_removed_from_the_ids(build: Callable[..., Any], batch: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    rows = rows_without_each(predict(model, ids, TARGET), "remove", batch)
    with torch.no_grad():
        plain = [model(ids[:, ~torch.from_numpy(gone)])[0, -1].double().log_softmax(-1) for gone in SCATTERED]
    assert relative(rows, torch.stack(plain)) < 1e-5


@BATCH
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
def test_what_is_masked_keeps_its_place(build: Callable[..., Any], batch: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    rows = rows_without_each(predict(model, ids, TARGET), "mask", batch)
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    plain = [log_probs(torch.where(torch.from_numpy(gone)[:, None], 0, embeddings)).detach() for gone in SCATTERED]
    assert relative(rows, torch.stack(plain)) < 1e-5


def test_a_run_begins_where_its_source_did(forwards: Callable[[Any], list[Any]]) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    prediction = predict(model, ids, TARGET)
    _ = prediction.prompt.kept
    runs = forwards(model)
    places = ArcJsd(batch=1)(prediction).diagnostics["source_positions"]
    read = ids.shape[1]
    assert [run[0].shape[1] for run in runs] == [read - place[0] - len(place) for place in places[:-1]] + [read - 1]


def test_the_only_source_leaves_a_token_that_begins_the_text() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of("The cat", bos=False)
    some = found(model, ArcJsd(), ids)
    with torch.no_grad():
        begun = model(torch.tensor([[zoo.tokenizer().bos_token_id]]))[0, -1].log_softmax(-1)
        clean = model(ids)[0, -1].log_softmax(-1)
    middle = (begun.exp() + clean.exp()).log() - np.log(2)
    expected = sum((one.exp() * (one - middle)).sum() for one in (begun, clean)) / 2
    assert some.diagnostics["source_scores"] == pytest.approx([float(expected)], rel=1e-4)
