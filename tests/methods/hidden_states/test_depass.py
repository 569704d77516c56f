"""DePass: parts add up to what they are parts of, and proportional shares are a gradient under other rules."""

from functools import partial
from typing import Any

import pytest
import torch
from einops import einsum
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens._util.work_counting import Work
from heta_lens.attribution import Attribution
from heta_lens.methods.gradient.attn_lrp import AttnLrp
from heta_lens.methods.gradient.backward_rules import Parted, activated, at_attention, at_norms, modified_gradient, part
from heta_lens.methods.hidden_states.depass import SHARES, DePass
from heta_lens.model.norms_and_neurons import neurons

N, TARGET, FOIL = 7, 7, 20
ALL = pytest.mark.parametrize("build", zoo.models("^(?!.*(gemma2|olmo2|gptoss|post_norm)$)"))
PLAIN = pytest.mark.parametrize("build", zoo.models("-(llama|phi3)$"))  # without a bias or an embedding of positions
SHARE = pytest.mark.parametrize("share", SHARES)


def split(model: Any, target: Any = TARGET, **options: Any) -> Attribution:
    return DePass(**options)(predict(model, zoo.prompt(model, N), target))


def logit(model: Any, token: int = TARGET) -> float:
    with torch.no_grad():
        return float(model(zoo.prompt(model, N))[0, -1, token])


@SHARE
@ALL
def test_parts_add_up_to_the_logit(build: Any, share: Any) -> None:
    """That they add up to the stream is checked at every layer, and raised where it is not so."""
    found = split(build(), share=share)
    assert float(found.scores.sum()) + found.diagnostics["absorbed"] == pytest.approx(logit(build()), rel=1e-6)


@pytest.mark.parametrize("share", ["softmax", "max", "linear"])
@PLAIN
def test_where_there_is_nothing_but_tokens_they_have_all_of_it(build: Any, share: Any) -> None:
    assert abs(split(build(), share=share).diagnostics["absorbed"]) < 1e-5 * abs(logit(build()))


@pytest.mark.parametrize("build", zoo.models("-gpt2$"))
def test_proportional_shares_of_plain_neurons_are_cp_lrp(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), TARGET)
    linear = DePass(share="linear", ignore_first=False)(prediction).scores
    assert relative(linear, AttnLrp(rule="cp_lrp")(prediction).scores) < 1e-6


@PLAIN
def test_proportional_shares_of_gated_neurons_leave_what_is_gated_alone(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), TARGET)
    adapter = prediction.adapter
    hooks = [*at_norms(adapter), *at_attention(adapter, (0.0, 0.0, 1.0))]
    for layer in range(adapter.layers):
        mlp, into = neurons(adapter, layer), list[Parted]()
        assert mlp is not None and mlp.gated is not None
        hooks += [(mlp.before, partial(part, into)), (mlp.gated, Tensor.detach), (mlp.after, partial(activated, into))]
    with prediction.running():
        _, gradient = modified_gradient(prediction, hooks, Work())
    plain = einsum(prediction.embeddings, gradient, "pos d, pos d -> pos")
    assert relative(DePass(share="linear", ignore_first=False)(prediction).scores, plain) < 1e-6


@PLAIN
def test_the_colder_the_softmax_the_more_it_gives_to_the_largest(build: Any) -> None:
    most = split(build(), share="max").scores
    apart = [relative(split(build(), temperature=temperature).scores, most) for temperature in (1, 1e-2, 1e-5)]
    assert apart[0] > apart[1] > apart[2] < 1e-3


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_a_contrast_is_the_difference_of_logits(build: Any) -> None:
    both = split(build(), (TARGET, FOIL)).scores
    assert relative(both, split(build()).scores - split(build(), FOIL).scores) < 1e-9


@PLAIN
def test_a_token_that_begins_the_text_gets_no_neurons_elsewhere(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    for first, differs in ((model.tokenizer.bos_token_id, True), (5, False)):
        ids[0, 0] = first
        ignored, counted = (DePass(ignore_first=ignore)(predict(model, ids, TARGET)).scores for ignore in (True, False))
        assert (relative(ignored, counted) > 1e-3) == differs


def test_neurons_are_shared_by_hand() -> None:
    added = torch.tensor([[2.0, -1.0], [1.0, 0.0], [0.0, -3.0]])
    shares = {name: share(added, added != 0, 1.0) for name, share in SHARES.items()}
    thirds = torch.tensor([2 / 3, 1 / 3, 0])
    assert relative(shares["linear"], torch.stack([thirds, torch.tensor([0.25, 0, 0.75])], 1)) < 1e-6
    assert shares["max"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert relative(shares["relu"], torch.stack([thirds, torch.zeros(3)], 1)) < 1e-6
    assert (
        relative(shares["softmax"][:2, 0], torch.tensor([2.0, 1.0]).softmax(0)) < 1e-6 and shares["softmax"][2, 0] == 0
    )


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("gemma2", "cannot split a model that caps its attention scores or logits"),
        ("olmo2", r"after layer 0 its parts miss the residual stream by .*%, so something in it is not known"),
    ],
)
def test_what_it_does_not_know_is_refused(family: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split(zoo.bridge(family))
