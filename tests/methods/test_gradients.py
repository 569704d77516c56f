"""Methods of one gradient against autograd, plain hooks, captum and worked identities."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, plain_embeddings, predict, relative
from helpers.gradients import OTHER, TARGET, N, on, plain, scores, slope
from heta_lens.methods.gradients import GradCam, GradientNorm, InputXGradient, JacobianScope, SmoothGrad, differentiable
from heta_lens.methods.integrated_gradients import GradientShap
from heta_lens.prediction.prediction import Prediction, prompt_generator

MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
CLEAN: list[dict[str, Any]] = [
    {"method": "input_x_gradient"},
    {"method": "gradient_norm", "scale": "prob"},
    {"method": "attn_lrp"},
    {"method": "attn_lrp", "rule": "relp"},
    {"method": "gim"},
    {"method": "heta", "variant": "gs", "gamma": 0},
]


@pytest.mark.parametrize("options", CLEAN, ids=str)
@pytest.mark.parametrize("build", zoo.models("bridge-llama|hooked-gpt2"))
def test_the_run_that_checks_the_cache_serves_the_gradient(
    build: Any, options: dict[str, Any], forwards: Callable[[Any], list[Any]]
) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache, chosen = cache_of(model, ids), {name: value for name, value in options.items() if name != "method"}
    expected = heta_lens.METHODS[options["method"]](**chosen)(Prediction.from_cache(cache, TARGET, tokens=ids))
    runs = forwards(model)
    found = heta_lens.attribute(cache, TARGET, tokens=ids, **options)
    assert len(runs) == found.diagnostics["forwards"] == expected.diagnostics["forwards"]
    assert found.diagnostics["checks"]["cache"] == {}
    assert relative(found.scores, expected.scores) < 1e-6


@pytest.mark.parametrize("options", [*CLEAN[:5], {"method": "integrated_gradients", "steps": 3}], ids=str)
def test_the_targets_of_a_span_share_forwards(options: dict[str, Any], forwards: Callable[[Any], list[Any]]) -> None:
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    alone = [heta_lens.attribute(cache, position=place, tokens=ids, **options) for place in range(3, N)]
    runs = forwards(model)
    span = heta_lens.attribute_span(cache, 3, tokens=ids, **options)
    assert len(runs) <= 3
    for step, single in zip(span.steps, alone, strict=True):
        assert relative(step.scores, single.scores) < 1e-6
        assert step.diagnostics["backwards"] == single.diagnostics["backwards"]


@MODEL
def test_one_gradient_is_what_autograd_says(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids, TARGET)
    embeddings = plain_embeddings(model, ids)
    scales: tuple[Any, ...] = ("log_prob", "prob", "logit", "log_odds")
    for scale in scales:
        gradient = slope(plain(model, ids, scale=scale), embeddings)
        assert relative(InputXGradient(scale=scale)(asked).scores, (gradient * embeddings).sum(-1)) < 1e-6
        assert relative(GradientNorm(scale=scale)(asked).scores, gradient.square().sum(-1).sqrt()) < 1e-6


def test_a_contrast_of_what_is_not_linear_follows_the_difference_of_gradients() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    gradient = slope(plain(model, ids), embeddings) - slope(plain(model, ids, OTHER), embeddings)
    assert relative(scores(GradientNorm(), model, ids, (TARGET, OTHER)), gradient.norm(dim=-1)) < 1e-9
    sides = [scores(GradCam(layer=0), model, ids, target) for target in ((TARGET, OTHER), (OTHER, TARGET))]
    assert (sides[0] * sides[1] == 0).all() and (sides[0] + sides[1] > 0).all()


@MODEL
@pytest.mark.parametrize("layer", [None, 0, 1])
def test_grad_cam_is_what_hooks_find(build: Callable[..., Any], layer: int | None) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    name = f"blocks.{1 if layer is None else layer}.hook_resid_post"
    clean = model.run_with_cache(ids, names_filter=[name])[1][name][0]

    def g(states: Tensor) -> Tensor:
        replace = [(name, lambda live, hook: states[None].to(live.dtype))]  # noqa: ARG005
        return on(model.run_with_hooks(ids, fwd_hooks=replace)[0, -1], TARGET, "prob")

    gradient = slope(g, clean)
    asked = predict(model, ids, TARGET)
    found = GradCam(layer=layer, scale="prob")(asked)
    assert relative(found.scores, (clean @ gradient.mean(0)).relu()) < 1e-6
    assert found.diagnostics["layer"] == (1 if layer is None else layer)


FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gemma2)$"))


def scope_scores(model: Any, **options: Any) -> Tensor:
    return JacobianScope(**options)(predict(model, zoo.prompt(model, N), TARGET)).scores


def log_probs(model: Any) -> tuple[Tensor, Tensor]:
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    leaf = prediction.embeddings.clone().requires_grad_()
    with prediction.running():
        return leaf, prediction.rerun().logits(leaf[None])[0].log_softmax(-1)


@FAMILIES
def test_all_of_fisher_is_the_mean_square_of_every_log_probabilitys_gradient(build: Any) -> None:
    leaf, values = log_probs(build())
    squares = torch.zeros(N, dtype=leaf.dtype)
    for value in values:
        (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
        squares += value.detach().exp() * gradient.square().sum(-1)
    assert relative(scope_scores(build(), rank=None), squares) < 1e-6


@pytest.mark.parametrize("width", [8, 72])  # a wide matrix is not written out
@pytest.mark.parametrize("rank", [1, 2])
def test_the_largest_eigenvectors_of_fisher_count(width: int, rank: int) -> None:
    model = zoo.bridge("llama", d_model=width)
    leaf, values = log_probs(model)
    by_value = torch.stack([torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in values])
    prediction = predict(model, zoo.prompt(model, N), TARGET)
    with prediction.running(), differentiable(prediction) as run:
        logits = run.logits.log_softmax(-1)
        by_y = torch.stack([torch.autograd.grad(value, run.y, retain_graph=True)[0] for value in logits])
    weighted = values.detach().exp()[:, None] * by_y
    strengths, vectors = torch.linalg.eigh(weighted.T @ by_y)
    directions = (weighted @ vectors[:, -rank:]) / strengths[-rank:]  # those of y, as sums of log-probabilities
    squares = torch.einsum("vr,vpd->rpd", directions, by_value).square().sum(-1)
    assert relative(scope_scores(model, rank=rank), strengths[-rank:] @ squares) < 1e-6


def test_a_certain_prediction_has_no_scope() -> None:
    model = zoo.bridge.__wrapped__("llama", d_model=72)
    model.unembed.hook_out.add_hook(lambda logits, hook: logits * 1e6)  # noqa: ARG005
    assert not scope_scores(model).any()


@FAMILIES
def test_temperature_is_the_gradient_of_the_length_of_what_is_read(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), TARGET)
    with prediction.running(), differentiable(prediction) as run:
        (gradient,) = torch.autograd.grad(run.y.norm(), run.leaf, retain_graph=True)
        jacobian = [torch.autograd.grad(entry, run.leaf, retain_graph=True)[0] for entry in run.y]
    found = JacobianScope(scope="temperature")(prediction).scores
    assert relative(found, gradient.norm(dim=-1)) < 1e-12
    assert (found.square() <= torch.stack(jacobian).square().sum((0, 2))).all()


@FAMILIES
def test_the_run_that_is_differentiated_is_the_model_s(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), TARGET)
    with prediction.running(), differentiable(prediction) as run:
        assert relative(run.logits.detach(), prediction.logits) < 1e-9
        logit = run.logits[TARGET]
        (by_y,) = torch.autograd.grad(logit, run.y, retain_graph=True)
        (pulled,) = torch.autograd.grad(run.y, run.leaf, by_y)
    semantic = GradientNorm(scale="logit")(prediction).scores
    assert relative(pulled.norm(dim=-1), semantic) < 1e-9


def test_folded_weights_leave_the_length_without_a_meaning() -> None:
    folded = zoo.bridge.__wrapped__("gpt2")
    folded.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(ValueError, match=r"scope='temperature' reads how long .* choose scope='fisher'"):
        scope_scores(folded, scope="temperature")
    assert relative(scope_scores(folded, rank=None), scope_scores(zoo.bridge("gpt2"), rank=None)) < 1e-6


# ------------------------------------------------------------------------------------------------------ random points
def gradients_at(model: Any, ids: Tensor, places: Tensor) -> Tensor:
    """By autograd, a run each."""
    from helpers.asking import plain_log_probs

    log_probs, found = plain_log_probs(model, ids), list[Tensor]()
    for place in places:
        leaf = place.clone().requires_grad_()
        found.append(torch.autograd.grad(log_probs(leaf)[TARGET], leaf)[0])
    return torch.stack(found)


@MODEL
def test_smooth_grad_averages_gradients_of_noisy_copies(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    generators = [prompt_generator(3, ids[0], number) for number in range(4)]
    noise = torch.stack([torch.from_numpy(one.standard_normal(embeddings.shape)) for one in generators]).to(embeddings)
    copies = embeddings + 0.1 * (embeddings.max() - embeddings.min()) * noise
    expected = gradients_at(model, ids, copies).mean(0).norm(dim=-1)
    assert relative(scores(SmoothGrad(samples=4, noise=0.1, seed=3), model, ids, TARGET), expected) < 1e-4
    plainly = scores(GradientNorm(), model, ids, TARGET)
    assert relative(scores(SmoothGrad(samples=2, noise=0), model, ids, TARGET), plainly) < 1e-6


@MODEL
def test_gradient_shap_is_the_slope_at_random_points(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings = plain_embeddings(model, ids)
    alphas = torch.from_numpy(prompt_generator(0, ids[0]).random(5)).to(embeddings)
    expected = (gradients_at(model, ids, alphas[:, None, None] * embeddings).mean(0) * embeddings).sum(-1)
    method = GradientShap(steps=5, mask="zero", keep_bos=False)
    assert relative(scores(method, model, ids, TARGET), expected) < 1e-4


def test_gradient_shap_is_integrated_gradients_within_its_errors() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    found = heta_lens.attribute(cache, TARGET, tokens=ids, method="gradient_shap", steps=400)
    exact = heta_lens.attribute(cache, TARGET, tokens=ids, method="integrated_gradients")
    error = found.standard_errors["scores"]
    assert isinstance(error, Tensor)
    assert ((found.scores - exact.scores).abs() <= 4 * error + 1e-6).all()


@pytest.mark.parametrize("scope", ["temperature", "fisher"])
def test_scopes_read_their_own_position_under_hooks_of_a_user(scope: Any) -> None:
    model = zoo.bridge.__wrapped__("gpt2")
    ids, method = zoo.prompt(model, 8), {"method": "jacobian_scope", "scope": scope, "position": 5}
    expected = heta_lens.attribute(cache_of(model, ids), tokens=ids, **method)
    model.blocks[0].hook_out.add_hook(lambda live, hook: live)  # noqa: ARG005
    found = heta_lens.attribute(cache_of(model, ids), tokens=ids, **method)
    assert relative(found.scores, expected.scores) < 1e-5
