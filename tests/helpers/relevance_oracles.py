"""Plain re-implementations of three families, in which every rule of a modified backward pass is spelled out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from helpers import zoo
from helpers.asking import plain_embeddings


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
