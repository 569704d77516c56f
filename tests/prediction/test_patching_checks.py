"""Which patches are refused, before any run."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import predict
from heta_lens.prediction.patching import effects

N, TARGET, OTHER = 5, 7, 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "output"}, "how='output' is not one of 'edge_patch', 'resid_patch', 'input'"),
        ({"patterns": "live"}, "patterns='live' is not one of 'frozen', 'recomputed'"),
        ({"scale": "nats"}, "scale='nats' is not one of 'log_prob'"),
        ({"mask": "none"}, "mask='none' is not one of zero, mean, vocab_mean, pad, space, a token id"),
        ({"mask": torch.zeros(3)}, "mask has 3 entries; this model's embeddings have 8"),
        ({"mask": torch.full((8,), torch.nan)}, "the effect of group 0 is nan"),
        ({"batch": 0}, "batch=0 must be at least 1"),
        ({"how": "input", "patterns": "recomputed"}, "patterns='recomputed' is for how='edge_patch', not for how='inp"),
        ({"how": "resid_patch"}, "layer=None with how='resid_patch': only how='resid_patch' has a layer"),
        ({"layer": 1}, "layer=1 with how='edge_patch': only how='resid_patch' has a layer, and needs one"),
        ({"how": "resid_patch", "layer": 2}, "layer=2 is none of the layers 0 to 1 this model has"),
        ({"how": "resid_patch", "layer": -1}, "layer=-1 is none of the layers 0 to 1 this model has: write 1"),
        ({"how": "resid_patch", "layer": -3}, "layer=-3 is none of the layers 0 to 1 this model has$"),
        ({"how": "resid_patch", "layer": "first"}, "layer='first' is none of the layers 0 to 1"),
        ({"groups": []}, "groups holds no group of positions"),
        ({"groups": [[0], []]}, "group 1 is empty: name a position"),
        ({"groups": [[0, N]]}, f"position {N} is none of the {N} positions of the context"),
        ({"groups": [[-1]]}, f"position -1 is none of the {N} positions .*counted from 0: write {N - 1}$"),
        ({"groups": [[2, 1, 2]]}, "group 0 names position 2 more than once"),
        ({"groups": [[0.5]]}, f"position 0.5 is none of the {N} positions of the context"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=message):
        effects(predict(model, zoo.prompt(model, N), TARGET), **options)


@pytest.mark.usefixtures("unchecked")
def test_groups_that_are_no_list_are_refused() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(TypeError, match="groups=5 is not a list of groups of positions: write"):
        effects(predict(model, zoo.prompt(model, N), TARGET), groups=5)  # type: ignore[arg-type]


def test_a_model_whose_queries_cannot_be_held_is_refused_unless_they_move(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    monkeypatch.delitem(prediction.adapter.points, "blocks.1.attn.hook_q")
    with pytest.raises(
        ValueError, match=r"this TransformerBridge has no blocks\.1\.attn\.hook_q, which patterns='frozen' needs"
    ):
        effects(prediction)
    assert effects(prediction, patterns="recomputed").shape == (N,)


@pytest.mark.usefixtures("unchecked")
def test_a_reference_that_does_not_fit_is_refused_before_any_run(forwards: Any) -> None:
    model, stranger = zoo.bridge("gpt2"), zoo.bridge("gptj")
    prediction, longer = predict(model, zoo.prompt(model, N), TARGET), predict(model, zoo.prompt(model, N + 1), TARGET)
    elsewhere = predict(stranger, zoo.prompt(stranger, N), TARGET)
    ran = forwards(model)
    with pytest.raises(ValueError, match=f"the reference has {N + 1} tokens, and the prediction {N}"):
        effects(prediction, reference=longer)
    with pytest.raises(ValueError, match="the reference is of another TransformerBridge, not of the same model"):
        effects(prediction, reference=elsewhere)
    for mask, said in (("mean", "'mean'"), (3, "3"), (torch.zeros(8), "a vector of 8")):
        with pytest.raises(ValueError, match=f"mask={said} and a reference both say what is put in: give only one"):
            effects(prediction, reference=prediction, mask=mask)
    with pytest.raises(ValueError, match="is none of the"):
        effects(prediction, groups=[[N]])
    with pytest.raises(TypeError, match="group 0=1 is not a list of positions"):
        effects(prediction, groups=[1, 2])  # type: ignore[list-item]
    assert not ran
