"""GIM against plain re-implementations of three families, and its limits."""

from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import plain_embeddings, predict, relative
from helpers.relevance_oracles import Rules, relevances
from heta_lens.methods.relevance import AttnLrp, Gim

N, TARGET, FOIL = 9, 7, 20
SHARES = {"query": 0.25, "key": 0.25, "value": 0.5}
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$|hooked-gptj"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))


def scores(model: Any, target: Any = TARGET, **options: Any) -> Tensor:
    return Gim(**{"mask": "zero", **options})(predict(model, zoo.prompt(model, N), target)).scores


@pytest.mark.parametrize("temperature", [1, 2, 3.5])
@FAMILIES
def test_scores_are_those_of_a_plain_implementation(build: Any, temperature: float) -> None:
    model, (family, *_) = build(), build.args
    plain, _ = relevances(model, family, Rules(**SHARES, slopes=True, temperature=temperature), TARGET, N)
    assert relative(scores(model, temperature=temperature), plain) < 1e-6


@ONE_EACH
def test_gates_may_be_halved(build: Any) -> None:
    model, (family, *_) = build(), build.args
    after = 0.5 if family == "llama" else 1.0  # GPT-2 has none
    plain, _ = relevances(model, family, Rules(**SHARES, after=after, slopes=True, temperature=2), TARGET, N)
    assert relative(scores(model, halve_gates=True), plain) < 1e-6


@ONE_EACH
def test_the_change_from_a_mask_is_what_is_multiplied(build: Any) -> None:
    model, (family, *_) = build(), build.args
    rules = Rules(**SHARES, slopes=True, temperature=2)
    ids = zoo.prompt(model, N)
    base = plain_embeddings(model, ids)[3]
    found = scores(model, mask=int(ids[0, 3]))
    assert relative(found, relevances(model, family, rules, TARGET, N, base=base)[0]) < 1e-6
    assert found[3] == 0  # the token is its own mask


@ONE_EACH
def test_a_contrast_is_the_difference_of_logits(build: Any) -> None:
    model = build()
    assert relative(scores(model, (TARGET, FOIL)), scores(model) - scores(model, FOIL)) < 1e-6


@pytest.mark.parametrize("build", zoo.models("hooked-attn_only"))
def test_without_neurons_at_temperature_1_it_is_attn_lrp(build: Any) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    plain = AttnLrp()(prediction).scores
    assert relative(Gim(mask="zero", temperature=1)(prediction).scores, plain) < 1e-9
    assert relative(Gim(mask="zero")(prediction).scores, plain) > 0.01


@pytest.mark.parametrize("build", zoo.models("hooked-sinks"))
def test_a_sink_takes_part_in_the_softmax(build: Any) -> None:
    """At temperature 1 the gradient is that of the model itself, sink included."""
    model = build()
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    assert relative(Gim(mask="zero", temperature=1)(prediction).scores, _untempered(model)) < 1e-6
    assert relative(Gim(mask="zero")(prediction).scores, _untempered(model)) > 0.01


def _untempered(model: Any) -> Tensor:
    """With every other rule, and the softmax as it is."""
    from einops import einsum

    from heta_lens._util.work import Work
    from heta_lens.methods.relevance import SHARES as OWN
    from heta_lens.methods.relevance import at_attention, at_norms, modified_gradient

    prediction = predict(model, zoo.prompt(model, N), TARGET)
    hooks = [*at_norms(prediction.adapter), *at_attention(prediction.adapter, OWN)]
    with prediction.running():
        _, gradient = modified_gradient(prediction, hooks, Work())
    return einsum(prediction.embeddings, gradient, "pos d, pos d -> pos")


def test_the_default_mask_is_a_blank() -> None:
    model = heta_lens.load_demo_model()
    ids = model.to_tokens("The key was put in the box by Leo.")
    prediction = predict(model, ids, " box")
    assert Gim().mask == "space"
    pad = model.tokenizer.pad_token_id  # no token of the demo model writes a blank
    assert torch.equal(Gim()(prediction).scores, Gim(mask=pad)(prediction).scores)


@pytest.mark.parametrize("build", zoo.models(zoo.HIDE_SOFTMAX))
def test_a_model_whose_softmax_cannot_be_changed_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="hooks do not change that of layer 0 of this model: load it as a Hooked"):
        scores(build())


@pytest.mark.every_model
@pytest.mark.parametrize("build", zoo.models("^(?!bridge-(gptj|native|gptoss|gemma2)$)"))
def test_the_temperature_reaches_the_scores_of_every_other_model(build: Any) -> None:
    model = build()
    flat, steep = (scores(model, temperature=temperature) for temperature in (3, 1))
    assert relative(flat, steep) > 0.001


def test_what_has_no_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="method='gim' has no rule for a model that caps its attention scores"):
        scores(zoo.bridge("gemma2"))


@ONE_EACH
def test_half_precision_is_close(build: Any) -> None:
    found = scores(build(torch.bfloat16))
    assert found.isfinite().all()
    assert relative(found, scores(build())) < 0.1
