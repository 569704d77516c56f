"""AttnLRP and GIM against plain implementations of three families, and conservation of relevance."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict, relative
from heta_lens.methods.relevance import AttnLrp, Gim, at_norms
from heta_lens.prediction.gradients import clean_gradients


class Rules(NamedTuple):
    """Shares of the gradients of queries, keys, values, a gate, what it multiplies, and of what neurons write."""

    query: float
    key: float
    value: float
    gate: float = 1.0
    other: float = 1.0
    after: float = 1.0
    slopes: bool = False  # an activation's own, in place of f(x) / x
    temperature: float = 1.0  # of the softmax that the gradient goes through


class TemperedSoftmax(torch.autograd.Function):
    """A softmax whose backward pass is that of a flatter one, without the factor 1 / temperature."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, temperature: float) -> Tensor:
        ctx.flatter = (scores / temperature).softmax(-1)
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        flatter = ctx.flatter
        return flatter * (gradient - (gradient * flatter).sum(-1, keepdim=True)), None


def passing(value: Tensor, share: float) -> Tensor:
    return share * value + (1 - share) * value.detach()


def normalised(x: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """With a bias it is a layer norm, which takes the mean away too."""
    x = x if bias is None else x - x.mean(-1, keepdim=True)
    result = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt().detach() * weight
    return result if bias is None else result + bias


def activated(x: Tensor, function: Callable[[Tensor], Tensor], rules: Rules) -> Tensor:
    return function(x) if rules.slopes else x * (function(x) / (x + 1e-10)).detach()


def rotated(x: Tensor, dimensions: int, adjacent: bool) -> Tensor:
    """The first dimensions of every head ``[pos, head, d_head]``, in pairs of neighbours or of halves."""
    out = x.clone()
    half = dimensions // 2
    for pair in range(half):
        one, two = (2 * pair, 2 * pair + 1) if adjacent else (pair, pair + half)
        angles = torch.arange(len(x), dtype=x.dtype)[:, None] * 10000 ** (-2 * pair / dimensions)
        out[..., one] = x[..., one] * angles.cos() - x[..., two] * angles.sin()
        out[..., two] = x[..., one] * angles.sin() + x[..., two] * angles.cos()
    return out


def attended(query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
    """``[pos, head, d_head]`` each; keys and values may have fewer heads, shared by neighbours."""
    n, heads, d_head = query.shape
    query, key, value = passing(query, rules.query), passing(key, rules.key), passing(value, rules.value)
    mixed = []
    for head in range(heads):
        group = head * key.shape[1] // heads
        table = query[:, head] @ key[:, group].T / d_head**0.5
        table = table.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
        mixed.append(TemperedSoftmax.apply(table, rules.temperature) @ value[:, group])
    return torch.cat(mixed, -1)


def gpt2_logits(weights: dict[str, Tensor], config: Any, e: Tensor, rules: Rules, still: int) -> Tensor:
    x = e + weights["transformer.wpe.weight"][: len(e)]
    for layer in range(config.n_layer):
        at = f"transformer.h.{layer}."
        h = normalised(x, config.layer_norm_epsilon, weights[at + "ln_1.weight"], weights[at + "ln_1.bias"])
        joint = h @ weights[at + "attn.c_attn.weight"] + weights[at + "attn.c_attn.bias"]
        qkv = [one.reshape(len(e), config.n_head, -1) for one in joint.chunk(3, -1)]
        x = x + attended(*qkv, rules) @ weights[at + "attn.c_proj.weight"] + weights[at + "attn.c_proj.bias"]
        h = normalised(x, config.layer_norm_epsilon, weights[at + "ln_2.weight"], weights[at + "ln_2.bias"])
        before = h @ weights[at + "mlp.c_fc.weight"] + weights[at + "mlp.c_fc.bias"]
        after = passing(activated(before, lambda x: gelu(x, approximate="tanh"), rules), rules.after)
        after = after.detach() if layer == still else after
        x = x + after @ weights[at + "mlp.c_proj.weight"] + weights[at + "mlp.c_proj.bias"]
    x = normalised(x, config.layer_norm_epsilon, weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"])
    return x[-1] @ weights["lm_head.weight"].T


def gptj_logits(weights: dict[str, Tensor], config: Any, e: Tensor, rules: Rules, still: int) -> Tensor:
    x = e
    for layer in range(config.n_layer):
        at = f"transformer.h.{layer}."
        h = normalised(x, config.layer_norm_epsilon, weights[at + "ln_1.weight"], weights[at + "ln_1.bias"])
        heads = [h @ weights[f"{at}attn.{of}_proj.weight"].T for of in "qkv"]
        query, key, value = (one.reshape(len(e), config.n_head, -1) for one in heads)
        query, key = (rotated(one, config.rotary_dim, adjacent=True) for one in (query, key))
        attention = attended(query, key, value, rules) @ weights[at + "attn.out_proj.weight"].T
        before = h @ weights[at + "mlp.fc_in.weight"].T + weights[at + "mlp.fc_in.bias"]
        after = passing(activated(before, lambda x: gelu(x, approximate="tanh"), rules), rules.after)
        after = after.detach() if layer == still else after
        x = x + attention + after @ weights[at + "mlp.fc_out.weight"].T + weights[at + "mlp.fc_out.bias"]
    x = normalised(x, config.layer_norm_epsilon, weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"])
    return x[-1] @ weights["lm_head.weight"].T + weights["lm_head.bias"]


def llama_logits(weights: dict[str, Tensor], config: Any, e: Tensor, rules: Rules, still: int) -> Tensor:
    x = e
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        h = normalised(x, config.rms_norm_eps, weights[at + "input_layernorm.weight"])
        d_head = config.hidden_size // config.num_attention_heads
        heads = [h @ weights[f"{at}self_attn.{of}_proj.weight"].T for of in "qkv"]
        query, key, value = (one.reshape(len(e), -1, d_head) for one in heads)
        query, key = (rotated(one, d_head, adjacent=False) for one in (query, key))
        x = x + attended(query, key, value, rules) @ weights[at + "self_attn.o_proj.weight"].T
        h = normalised(x, config.rms_norm_eps, weights[at + "post_attention_layernorm.weight"])
        gate = passing(activated(h @ weights[at + "mlp.gate_proj.weight"].T, silu, rules), rules.gate)
        product = gate.detach() * passing(h @ weights[at + "mlp.up_proj.weight"].T, rules.other)
        product = product + (gate - gate.detach()) * (h @ weights[at + "mlp.up_proj.weight"].T).detach()
        product = passing(product, rules.after)
        product = product.detach() if layer == still else product
        x = x + product @ weights[at + "mlp.down_proj.weight"].T
    return normalised(x, config.rms_norm_eps, weights["model.norm.weight"])[-1] @ weights["lm_head.weight"].T


LOGITS = {"gpt2": gpt2_logits, "gptj": gptj_logits, "llama": llama_logits}


def relevances(
    model: Any,
    family: str,
    rules: Rules,
    target: int | tuple[int, int],
    length: int,
    *,
    still: int = -1,
    base: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Relevances, and the log-probabilities they are of; the activation in the layer ``still`` is a constant."""
    source = zoo.huggingface(family)
    weights = {name: weight.detach() for name, weight in source.state_dict().items()}
    e = plain_embeddings(model, zoo.prompt(model, length)).double().requires_grad_()
    logits = LOGITS[family](weights, source.config, e, rules, still)
    objective = logits[target] if isinstance(target, int) else logits[target[0]] - logits[target[1]]
    (gradient,) = torch.autograd.grad(objective, e)
    change = e if base is None else e - base.double()
    return (change * gradient).sum(-1).detach(), logits.log_softmax(-1).detach()


N, TARGET, FOIL = 9, 7, 20

PLAIN = {
    "attn_lrp": Rules(query=0.25, key=0.25, value=0.5, gate=0.5, other=0.5),
    "cp_lrp": Rules(query=0, key=0, value=1, gate=0, other=1),
    "relp": Rules(query=1, key=1, value=1, gate=0.5, other=0.5),
}

RULE = pytest.mark.parametrize("rule", PLAIN)
FAMILY = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ALL = pytest.mark.parametrize("build", zoo.models("^(?!.*(gemma2|gptoss)$)"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))


def scores(model: Any, target: Any = TARGET, **options: Any) -> Tensor:
    return AttnLrp(**options)(predict(model, zoo.prompt(model, N), target)).scores


def exact(build: Any) -> bool:
    """Whether all of it is computed in float64: bridges of some families have norms and softmax in float32."""
    return build.args[0] == "gpt2" or build.func is zoo.hooked


@RULE
@FAMILY
def test_relevances_are_those_of_a_plain_implementation(build: Any, rule: str) -> None:
    model, (family, *_) = build(), build.args
    wanted, log_probs = relevances(model, family, PLAIN[rule], TARGET, N)
    plain = plain_log_probs(model, zoo.prompt(model, N))(plain_embeddings(model, zoo.prompt(model, N)))
    assert (
        relative(plain.detach(), log_probs) < 1e-6
    )  # of the same model, but for norms that Hugging Face takes in float32
    assert relative(scores(model, rule=rule), wanted) < (1e-9 if exact(build) else 1e-6)


@contextmanager
def without(model: Any, pattern: str) -> Iterator[None]:
    """The model, with these parameters at 0."""
    named = [(name, weight) for name, weight in model.named_parameters() if re.search(pattern, name)]
    kept = [weight.detach().clone() for _, weight in named]
    try:
        for _, weight in named:
            weight.data.zero_()
        yield
    finally:
        for (_, weight), before in zip(named, kept, strict=True):
            weight.data.copy_(before)


BIASES = r"(?<![a-zA-Z])b(_[A-Z]|_in|_out)?$|bias$|wpe|W_pos|\bpos\b|pos_embed"


def logit(model: Any) -> float:
    with torch.no_grad():
        return float(model(zoo.prompt(model, N))[0, -1, TARGET])


@ALL
def test_without_biases_and_positions_constant_attention_hands_all_of_the_logit_on(build: Any) -> None:
    model = build()
    with without(model, BIASES):
        found = AttnLrp(rule="cp_lrp")(predict(model, zoo.prompt(model, N), TARGET))
        assert abs(float(found.scores.sum()) / logit(model) - 1) < 1e-4
        assert abs(found.diagnostics["absorbed"]) < 1e-4 * abs(logit(model))


@RULE
@ONE_EACH
def test_without_attention_all_of_it_comes_from_the_last_token(build: Any, rule: str) -> None:
    model = build()
    with without(model, BIASES + r"|attn.*(W_V|v_proj|c_attn|\bv\b|qkv)"):
        found = scores(model, rule=rule)
        assert found[:-1].abs().max() < 1e-12
        assert abs(float(found[-1]) / logit(model) - 1) < 1e-4


def test_what_no_token_received_is_what_biases_and_positions_receive() -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    weights = [weight for name, weight in model.named_parameters() if re.search(BIASES, name)]
    with prediction.adapter.hooked(AttnLrp(rule="cp_lrp").hooks(prediction.adapter)):
        value = prediction.read(prediction.rerun().logits(prediction.embeddings[None])[0], "logit")
    gradients = torch.autograd.grad(value, weights, allow_unused=True)
    pairs = zip(weights, gradients, strict=True)
    received = sum(float((weight.detach() * gradient).sum()) for weight, gradient in pairs if gradient is not None)
    found = AttnLrp(rule="cp_lrp")(prediction)
    assert abs(received) > 0.1 and found.diagnostics["absorbed"] == pytest.approx(received, rel=1e-6)


@FAMILY
def test_somebodys_hooks_stay_and_what_they_put_in_place_passes_on_nothing(build: Any) -> None:
    model, (family, *_) = build(), build.args
    ids, name = zoo.prompt(model, N), "blocks.0.mlp.hook_post"
    clean = model.run_with_cache(ids, names_filter=[name])[1][name]
    with model.hooks(fwd_hooks=[(name, lambda live, hook: clean)]):  # noqa: ARG005
        found = scores(model)
    assert relative(found, relevances(model, family, PLAIN["attn_lrp"], TARGET, N, still=0)[0]) < 1e-6
    assert relative(found, scores(model)) > 0.01


@pytest.mark.parametrize(
    ("family", "says"),
    [("gemma2", "a model that caps its attention scores or logits: choose another"), ("gptoss", "mixes experts")],
)
def test_what_has_no_rule_is_refused_before_any_work(family: str, says: str, forwards: Any) -> None:
    model = zoo.bridge(family)
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    runs = forwards(model)
    with pytest.raises(ValueError, match=f"method='attn_lrp' has no rule for .*{says}"):
        AttnLrp()(prediction)
    assert not runs


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"act_fn": "solu"}, "has the activation 'solu'"),
        ({"act_fn": "gelu_ln"}, "has the activation 'gelu_ln'"),
        ({"gated_mlp": True}, "has MLPs of which layer 0 is not seen to be gated"),
        ({"clip_qkv": 8.0}, "clips queries, keys and values"),
        ({"use_split_qkv_input": True}, "has an input of its own for every head"),
    ],
)
def test_what_the_config_tells_is_refused(settings: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    for name, value in settings.items():
        monkeypatch.setattr(model.cfg, name, value, raising=False)
    with pytest.raises(ValueError, match=says):
        AttnLrp()(prediction)


def test_what_no_hook_shows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    points = prediction.adapter.points
    missing = {name: point for name, point in points.items() if name != "blocks.1.attn.hook_k"}
    monkeypatch.setitem(vars(prediction.adapter), "points", missing)
    with pytest.raises(ValueError, match=re.escape("has no blocks.1.attn.hook_k")):
        AttnLrp()(prediction)
    gated = {**points, "blocks.0.attn.hook_q_gate": points["hook_embed"]}
    monkeypatch.setitem(vars(prediction.adapter), "points", gated)
    with pytest.raises(ValueError, match=re.escape("gates what attention writes (blocks.0.attn.hook_q_gate)")):
        AttnLrp()(prediction)
    monkeypatch.setitem(vars(prediction.adapter), "points", points)
    model.blocks[0].mlp.add_module("inner", torch.nn.LayerNorm(2))
    try:
        with pytest.raises(ValueError, match="has a LayerNorm that shows no scale"):
            AttnLrp()(prediction)
    finally:
        del model.blocks[0].mlp.inner


SHARES = {"query": 0.25, "key": 0.25, "value": 0.5}
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$|hooked-gptj"))


def scores_of_gim(model: Any, target: Any = TARGET, **options: Any) -> Tensor:
    return Gim(**{"mask": "zero", **options})(predict(model, zoo.prompt(model, N), target)).scores


@pytest.mark.parametrize("temperature", [1, 2, 3.5])
@FAMILIES
def test_scores_are_those_of_a_plain_implementation(build: Any, temperature: float) -> None:
    model, (family, *_) = build(), build.args
    plain, _ = relevances(model, family, Rules(**SHARES, slopes=True, temperature=temperature), TARGET, N)
    assert relative(scores_of_gim(model, temperature=temperature), plain) < 1e-6


@ONE_EACH
def test_the_change_from_a_mask_is_what_is_multiplied(build: Any) -> None:
    model, (family, *_) = build(), build.args
    rules = Rules(**SHARES, slopes=True, temperature=2)
    ids = zoo.prompt(model, N)
    base = plain_embeddings(model, ids)[3]
    found = scores_of_gim(model, mask=int(ids[0, 3]))
    assert relative(found, relevances(model, family, rules, TARGET, N, base=base)[0]) < 1e-6
    assert found[3] == 0  # the token is its own mask


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

    from heta_lens.methods.relevance import at_attention

    prediction = predict(model, zoo.prompt(model, N), TARGET)
    with prediction.running():
        run = clean_gradients(
            [prediction],
            lambda prediction, logits: prediction.read(logits, "logit"),
            lambda adapter: [*at_norms(adapter), *at_attention(adapter, (1 / 4, 1 / 4, 1 / 2))],
        )
    return einsum(prediction.embeddings, run.gradients[0], "pos d, pos d -> pos")


@pytest.mark.parametrize("build", zoo.models(zoo.HIDE_SOFTMAX))
def test_a_model_whose_softmax_cannot_be_changed_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="hooks do not change that of layer 0 of this model: load it as a Hooked"):
        scores_of_gim(build())


@pytest.mark.every_model
@pytest.mark.parametrize("build", zoo.models("^(?!bridge-(gptj|native|gptoss|gemma2)$)"))
def test_the_temperature_reaches_the_scores_of_every_other_model(build: Any) -> None:
    model = build()
    flat, steep = (scores_of_gim(model, temperature=temperature) for temperature in (3, 1))
    assert relative(flat, steep) > 0.001
