"""DePass: parts add up to what they are parts of, and are those of the authors' recursion."""

from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.attribution import Attribution
from heta_lens.methods.depass import DePass

N, TARGET, FOIL = 7, 7, 20
ALL = pytest.mark.parametrize("build", zoo.models("^(?!.*(gemma2|olmo2|gptoss|post_norm)$)"))
PLAIN = pytest.mark.parametrize("build", zoo.models("-(llama|phi3)$"))  # without a bias or an embedding of positions


def split(model: Any, target: Any = TARGET, **options: Any) -> Attribution:
    return DePass(**options)(predict(model, zoo.prompt(model, N), target))


def logit(model: Any, token: int = TARGET) -> float:
    with torch.no_grad():
        return float(model(zoo.prompt(model, N))[0, -1, token])


@ALL
def test_parts_add_up_to_the_logit(build: Any) -> None:
    """That they add up to the stream is checked at every layer, and raised where it is not so."""
    found = split(build())
    assert float(found.scores.sum()) + found.diagnostics["absorbed"] == pytest.approx(logit(build()), rel=1e-6)


@PLAIN
def test_where_there_is_nothing_but_tokens_they_have_all_of_it(build: Any) -> None:
    assert abs(split(build()).diagnostics["absorbed"]) < 1e-5 * abs(logit(build()))


def plain(model: Any, ids: Tensor) -> list[float]:
    """The authors' recursion on a Llama, one neuron after the other; what they drop goes on as a last part."""
    with torch.no_grad():
        _, cache = model.run_with_cache(ids)
        whole = model.original_model
        count, embeddings = ids.shape[1], cache["hook_embed"][0]
        parts = torch.cat([torch.eye(count)[:, :, None] * embeddings, torch.zeros_like(embeddings)[None]])

        def normed(norm: Any, stream: Tensor) -> Tensor:
            return parts * norm.weight / (stream.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()

        for number, layer in enumerate(whole.model.layers):
            attend, mlp, at = layer.self_attn, layer.mlp, f"blocks.{number}."
            size = attend.head_dim
            values = attend.v_proj(normed(layer.input_layernorm, cache[f"{at}hook_resid_pre"][0]))
            pattern = cache[f"{at}attn.hook_pattern"][0]
            heads = values.unflatten(-1, (-1, size)).repeat_interleave(len(pattern) * size // values.shape[-1], 2)
            parts = parts + attend.o_proj(torch.einsum("hqk,pkhd->pqhd", pattern, heads).flatten(2))
            middle = cache[f"{at}hook_resid_mid"][0]
            added, read = (
                mlp.gate_proj(normed(layer.post_attention_layernorm, middle)),
                layer.post_attention_layernorm(middle),
            )
            written = mlp.act_fn(mlp.gate_proj(read)) * mlp.up_proj(read)
            shares = [
                [shared(added[:, place, neuron].tolist(), place) for neuron in range(added.shape[2])]
                for place in range(count)
            ]
            parts = parts + mlp.down_proj(torch.tensor(shares).permute(2, 0, 1).to(written) * written)
        last = normed(whole.model.norm, cache[f"blocks.{number}.hook_resid_post"][0])[:, -1]
        return (last @ whole.lm_head.weight[TARGET])[:-1].tolist()


def shared(added: list[float], place: int) -> list[float]:
    """A neuron's shares at a place: the first token has all of its own, and none elsewhere."""
    live = {number: one for number, one in enumerate(added) if one != 0 and number > 0}
    if place == 0:
        live = {0: 1.0}
    most = max(live.values(), default=0.0)
    weights = {number: exp((one - most) / 0.1) for number, one in live.items()} or {len(added) - 1: 1.0}
    return [weights.get(number, 0.0) / sum(weights.values()) for number in range(len(added))]


@pytest.mark.parametrize("first", ["<bos>", 5])
def test_shares_are_the_authors_with_and_without_a_begin_of_text(first: Any) -> None:
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, N)
    ids[0, 0] = model.tokenizer.bos_token_id if first == "<bos>" else first
    found = DePass()(predict(model, ids, TARGET)).scores
    assert relative(found, torch.tensor(plain(model, ids))) < 1e-4


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
