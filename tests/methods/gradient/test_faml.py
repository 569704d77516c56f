"""fAML, learned for one prediction: a plain transcription with torch's own Adam, and toys."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict, relative
from heta_lens._util.work import Work
from heta_lens.methods.integrated_gradients import Faml, log_others
from heta_lens.model.tokenizer import TokenizerWrapper
from heta_lens.prediction.prediction import Prediction

N, TARGET = 6, 7
QUICK: dict[str, Any] = {"steps": 5, "rate": 1.5, "mask": "zero"}


class Toy(Prediction):
    """A prediction of no model: its logits are any function of the embeddings."""

    def __init__(self, logits: Callable[[Tensor], Tensor], rows: list[list[float]], target: int) -> None:
        embeddings = torch.tensor(rows, dtype=torch.float64)
        clean = logits(embeddings[None])[0].log_softmax(-1)
        prompt = SimpleNamespace(embeddings=embeddings, ids=torch.arange(len(rows)), log_probs={len(rows): clean})
        for name, value in {"prompt": prompt, "length": len(rows), "target": target, "function": logits}.items():
            object.__setattr__(self, name, value)

    @property
    def adapter(self) -> Any:
        return SimpleNamespace(embedding_table=list, vocabulary=0, tokenizer=TokenizerWrapper(None))

    def log_probs_from(self, start: int = 0, stop: int | None = None, layer: int | None = None) -> Any:  # noqa: ARG002
        return lambda states: self.function(states).log_softmax(-1)


def slow(model: Any, ids: Tensor, method: Faml, reference: Tensor, target: int = TARGET) -> tuple[Tensor, list[float]]:
    """The masks by the formula, one run after the other, with torch's optimiser."""
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    clean = log_probs(embeddings).detach().exp()
    theta = torch.full((len(embeddings),), 2.0, dtype=torch.float64, requires_grad=True)
    adam, losses = torch.optim.Adam([theta], lr=method.rate), []
    for _ in range(method.steps):
        m = theta.sigmoid()[:, None]
        like = log_probs(m * embeddings + (1 - m) * reference)
        unlike = log_probs((1 - m) * embeddings + m * reference)
        little = (
            torch.nn.functional.binary_cross_entropy(m, torch.zeros_like(m)) if method.penalty == "bce" else m.mean()
        )
        missed = -torch.log(1 - unlike[target].exp())
        loss = method.fidelity * -(clean * like).sum() + method.sparsity * little + method.complement * missed
        theta.grad = torch.autograd.grad(loss, theta)[0]
        adam.step()
        losses.append(float(loss.detach()))
    return theta.detach().sigmoid(), losses


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
def test_masks_are_what_the_formula_says(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    method = Faml(steps=3)
    found = method(predict(model, ids, TARGET))
    embeddings = plain_embeddings(model, ids)
    reference = plain_embeddings(model, torch.full((1, N), model.tokenizer.pad_token_id))
    reference[0] = embeddings[0]
    expected, losses = slow(model, ids, method, reference)
    expected[0] = 0
    assert relative(found.scores, expected) < 1e-6
    assert found.diagnostics["first_loss"] == pytest.approx(losses[0])
    assert found.diagnostics["last_loss"] == pytest.approx(losses[-1])
    assert not found.signed and (found.scores < 1).all() and "network" in found.diagnostics["adapted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"fidelity": 0},
        {"sparsity": 2.0, "penalty": "l1"},
        {"complement": 3.0},
        {"rate": 0.5, "steps": 4},
        {"mask": "mean"},
        {"keep_bos": False},
    ],
    ids=str,
)
def test_options_do_what_the_formula_says(options: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    asked = predict(model, ids, TARGET)
    method = Faml(**QUICK | options)
    embeddings = plain_embeddings(model, ids)
    reference = embeddings.mean(0).expand(N, -1) if method.mask == "mean" else torch.zeros_like(embeddings)
    if method.keep_bos:
        reference = torch.cat([embeddings[:1], reference[1:]])
    expected = slow(model, ids, method, reference)[0]
    expected[: int(method.keep_bos)] = 0
    found = method(asked).scores
    assert relative(found, expected) < 1e-9
    assert relative(Faml(**QUICK)(asked).scores, found) > 1e-3


def test_the_only_token_that_is_used_is_the_one_that_is_kept() -> None:
    toy = Toy(lambda states: torch.cat([4 * states[:, 2], -4 * states[:, 2]], -1), [[1.0]] * 5, 0)
    explained = Faml(mask="zero").explain(toy, Work())
    found, facts = explained.scores, explained.diagnostics
    assert int(found.argmax()) == 2 and found[2] > 0.9 and found[[0, 1, 3, 4]].max() < 0.3
    assert facts["last_loss"] < facts["first_loss"]


def test_nothing_is_kept_for_a_prediction_that_nothing_is_needed_for() -> None:
    toy = Toy(lambda states: torch.cat([0 * states[:, 0], 0 * states[:, 0]], -1), [[1.0]] * 3, 1)
    assert Faml(mask="zero").explain(toy, Work()).scores.max() < 0.3
    everything = Faml(mask="zero", sparsity=0).explain(toy, Work()).scores
    assert everything.tolist() == pytest.approx([torch.tensor(2.0).sigmoid().item()] * 3)


def test_masks_near_their_ends_are_fine() -> None:
    toy = Toy(lambda states: torch.cat([50 * states[:, 0], 0 * states[:, 0]], -1), [[1.0]] * 3, 0)
    found = Faml(mask="zero", rate=5.0).explain(toy, Work()).scores
    assert found.isfinite().all() and (found >= 0).all() and (found <= 1).all()


def test_what_is_left_of_a_sure_thing_keeps_its_digits() -> None:
    log_probs = torch.tensor([60.0, 0.0, 0.0], dtype=torch.float64).log_softmax(-1)
    assert float(log_others(log_probs, 0)) == pytest.approx(torch.tensor(2.0).log().item() - 60)
    assert float(log_others(log_probs, 1)) == pytest.approx(0, abs=1e-12)


def test_a_token_that_reaches_nothing_only_fades() -> None:
    model, n = zoo.bridge("mistral"), 12
    ids, deaf = zoo.prompt(model, n), n - 1 - 2 * (zoo.SLIDING_WINDOW - 1)
    found = Faml(steps=5)(predict(model, ids, TARGET)).scores
    assert torch.allclose(found[1:deaf], found[1].expand(deaf - 1)) and found[1] < 0.88


def test_it_does_what_it_foresees_and_the_same_again() -> None:
    model = zoo.bridge("gpt2")
    asked = predict(model, zoo.prompt(model, N), TARGET)
    method = Faml(steps=3)
    torch.manual_seed(0)
    first = method(asked)
    torch.manual_seed(1)
    assert torch.equal(first.scores, method(asked).scores)
    assert {kind: first.diagnostics[kind] for kind in ("forwards", "backwards")} == method.work(asked)
    assert method.work(asked) == {"forwards": 6, "backwards": 6}


def test_hooks_of_the_users_stay_active() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    method = Faml(**QUICK, keep_bos=False)
    before = method(predict(model, ids, TARGET)).scores
    model.hook_dict["blocks.0.hook_resid_post"].add_hook(lambda live, hook: live * 0.5)  # noqa: ARG005
    try:
        under = method(predict(model, ids, TARGET)).scores
        expected = slow(model, ids, method, torch.zeros_like(plain_embeddings(model, ids)))[0]
    finally:
        model.reset_hooks(including_permanent=True)
    assert relative(under, expected) < 1e-9 and relative(under, before) > 1e-3


def test_kinds_of_model_agree() -> None:
    if not zoo.HAS_HOOKED:
        pytest.skip("there is one kind of model")
    one, other = (
        Faml(steps=4)(predict(model, zoo.prompt(model, N), TARGET)).scores
        for model in (zoo.hooked("gpt2"), zoo.bridge("gpt2"))
    )
    assert relative(one, other) < 1e-9


def test_what_cannot_be_done_is_refused(unchecked: None) -> None:  # noqa: ARG001
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with pytest.raises(ValueError, match="'faml' explains one token, and cannot contrast it with another"):
        Faml()(predict(model, ids, (TARGET, 20)))
    with pytest.raises(ValueError, match="sparsity=-1 must be at least 0"):
        Faml(sparsity=-1)
    with pytest.raises(ValueError, match="rate=0 must be at least 1e-06"):
        Faml(rate=0)
    with pytest.raises(ValueError, match="penalty='l2' is not one of 'bce', 'l1'"):
        Faml(penalty="l2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask=1000 is not a token id of this model"):
        Faml(mask=1000)(predict(model, ids, TARGET))
