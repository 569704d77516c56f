"""Coalitions of tokens, and what is predicted when only they are left."""

import numpy as np
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict
from heta_lens.model.batching import Batches
from heta_lens.prediction.coalitions import each_token, placed, read_everywhere, removed, still_there, worths

MEMBERS = np.array([[1, 1, 0, 0], [0, 0, 0, 1]], dtype=bool)


def test_tokens_of_no_player_stay() -> None:
    masks = np.array([[True, False], [False, False]])
    assert still_there(MEMBERS, masks).tolist() == [[True, True, True, False], [False, False, True, False]]


def test_a_repeated_coalition_is_run_once() -> None:
    runs: list[int] = []

    def with_present(present: Tensor) -> Tensor:
        runs.append(len(present))
        return present.sum(1).double()

    masks = np.array([[True, False], [False, True], [True, False]])
    assert worths(MEMBERS, masks, with_present).tolist() == [3, 2, 3]
    assert runs == [2]


def test_players_values_are_at_their_tokens() -> None:
    prediction = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), 4))
    assert placed(prediction, MEMBERS, np.array([1.0, 2.0])).tolist() == [1, 1, 0, 2]
    assert len(each_token(prediction, keep_bos=False)) == 4
    assert len(each_token(prediction, keep_bos=True)) == 4 - prediction.begins


def test_with_every_token_the_prediction_is_the_clean_one() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4), 7)
    present = torch.ones(1, 4, dtype=torch.bool)
    with prediction.running():
        alone = removed(prediction, present, None, "log_prob", Batches(1), lambda _: None)
        everywhere = read_everywhere(prediction, prediction.embeddings[None], "log_prob", lambda _: None)
    torch.testing.assert_close(alone[0], prediction.log_probs[7])
    torch.testing.assert_close(everywhere[0, -1], prediction.log_probs[7])
