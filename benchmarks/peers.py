"""The same work by other libraries and by heta_lens: seconds, forwards, memory, and the difference of the scores.

Captum runs in this process, given the model's embeddings; inseq, lxt and context-cite run in an environment of their
own (`peers_elsewhere`, `make .venv/oracles/ready`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import captum
import captum.attr
import torch
from captum._utils.models.linear_model import SkLearnRidge
from torch import Tensor
from transformers import AutoModelForCausalLM

import heta_lens
from benchmarks import pages
from benchmarks.models import MODELS, STORIES3M, available, prompt
from benchmarks.pages import Table, number
from benchmarks.peak_memory import peak
from benchmarks.reference import naive_curvature, naive_information
from heta_lens._util.python import quietly, versions
from heta_lens.diagnostics import rank_correlation
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED

COLUMNS = ["work", "peer, s", "ours, s", "peer / ours", "peer, forwards", "ours, forwards", "peer, MiB", "ours, MiB",
           "largest difference", "ρ", "ρ of two seeds of ours"]  # fmt: skip

TRIED = 2  # runs of a batch size, of which the faster counts


class Ran(NamedTuple):
    """The scores of a run, its seconds, and the rows that passed through the model."""

    scores: Tensor
    seconds: float
    rows: int


class Side(NamedTuple):
    """A side of a comparison, a peer or heta_lens: run and peak memory by batch size."""

    run: Callable[[int], Ran]
    peak: Callable[[int], float]


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt of a model, and its cache."""

    model: Any
    ids: Tensor
    cache: Any
    target: int

    @classmethod
    def of(cls, model: Any, ids: Tensor) -> "Asked":
        logits, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        return cls(model, ids, cache, int(logits[0, -1].argmax()))


@dataclass(frozen=True, eq=False)
class Work:
    """The same work by a peer and by heta_lens; exact work has the same scores."""

    title: str
    peer: Side
    method: str
    options: dict[str, Any]
    exact: bool
    batches: tuple[int, ...] = (4, 16, 64)  # of which the peer's best is taken; ours chooses its own
    scores: Callable[[heta_lens.Attribution], Tensor] = field(default=lambda attribution: attribution.scores)


def ours(asked: Asked, work: Work) -> Side:
    """Return `attribute` as users call the function, with the check of the cache."""
    explain = partial(heta_lens.attribute, asked.cache, asked.target, method=work.method, tokens=asked.ids)

    def run(_: int) -> Ran:
        begun = time.perf_counter()
        attribution = quietly(lambda: explain(**work.options))
        taken = time.perf_counter() - begun
        checks = attribution.diagnostics["checks"].values()
        rows = attribution.diagnostics["forwards"] + sum(counts.get("forwards", 0) for counts in checks)
        return Ran(work.scores(attribution), taken, rows)

    return Side(run, lambda batch: peak(partial(run, batch)))


def row(asked: Asked, work: Work, repeats: int) -> list[str]:
    """Return the cells of both sides, in runs that took turns."""
    own, peer = ours(asked, work), work.peer
    batch = work.batches[0]
    if len(work.batches) > 1:
        peer.run(batch)  # whose first run is its slowest
        batch = min(work.batches, key=lambda batch: min(peer.run(batch).seconds for _ in range(TRIED)))
    theirs, mine = peer.run(batch), own.run(batch)
    expected = torch.as_tensor(theirs.scores, dtype=torch.float64)
    found = torch.as_tensor(mine.scores, dtype=torch.float64)
    taken = [(peer.run(batch).seconds, own.run(batch).seconds) for _ in range(repeats)]
    ratios = [peers / our for peers, our in taken]
    gap = float((found - expected).abs().max() / expected.abs().max())
    return [
        work.title,
        *(number(median(times)) for times in zip(*taken, strict=True)),
        f"{number(median(ratios))} ({number(min(ratios))}–{number(max(ratios))})",
        str(theirs.rows),
        str(mine.rows),
        *(f"{side.peak(batch):.0f}" for side in (peer, own)),
        f"{gap:.0e}" if work.exact else "–",
        f"{rank_correlation(found, expected):.3f}",
        between_seeds(asked, work, found),
    ]


def between_seeds(asked: Asked, work: Work, found: Tensor) -> str:
    """Return the rank correlation with another seed of ours, a bound for peers that draw samples."""
    method = heta_lens.METHODS[work.method](**work.options)
    if not method.random:
        return "–"
    other = replace(work, options={**work.options, "seed": vars(method)["seed"] + 1})
    return f"{rank_correlation(found, ours(asked, other).run(1).scores.double()):.3f}"


class Embedded:
    """The target's log-probability as a function of a batch of embeddings, with a count of rows."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.rows = asked, 0
        self.embeddings = asked.cache["hook_embed"].detach()
        self.baseline = torch.zeros_like(self.embeddings)
        self.baseline[:, 0] = self.embeddings[:, 0]  # the token that begins the text stays, as in ours
        self.tokens = torch.arange(asked.ids.shape[1])[None, :, None].expand_as(self.embeddings)  # of each entry

    def __call__(self, batch: Tensor) -> Tensor:
        self.rows += len(batch)
        ids = self.asked.ids.expand(len(batch), -1)
        replace = [("hook_embed", lambda live, hook: batch.to(live.dtype))]  # noqa: ARG005
        logits = self.asked.model.run_with_hooks(ids, fwd_hooks=replace)[:, -1]
        return logits.log_softmax(-1)[:, self.asked.target]


def integrated_gradients(g: Embedded, batch: int) -> Tensor:
    method: Any = captum.attr.IntegratedGradients(g)
    embeddings = g.embeddings.clone().requires_grad_()
    return method.attribute(embeddings, g.baseline, n_steps=50, internal_batch_size=batch)[0].sum(-1).detach()


@torch.no_grad()
def perturbed(make: Callable[[Embedded], Any], options: dict[str, Any], g: Embedded, batch: int) -> Tensor:
    """Return the scores of a method that changes some of the tokens at a time."""
    given = {"baselines": g.baseline, "feature_mask": g.tokens, "perturbations_per_eval": batch} | options
    return make(g).attribute(g.embeddings, **given)[0, :, 0]


def by_captum(asked: Asked) -> list[Work]:
    peer = partial(_embedded, asked)
    ablation = partial(perturbed, captum.attr.FeatureAblation, {"baselines": 0.0})
    ridge = partial(captum.attr.Lime, interpretable_model=SkLearnRidge(alpha=1.0))
    lime = partial(perturbed, ridge, {"n_samples": 200})
    kernel_shap = partial(perturbed, captum.attr.KernelShap, {"n_samples": 500})
    return [
        Work(
            "integrated gradients, 50 steps",
            peer(integrated_gradients),
            "integrated_gradients",
            {"steps": 50, "mask": "zero"},
            True,
        ),
        Work("leave one out", peer(ablation), "leave_one_out", {"effect": "log_prob"}, True),
        Work("LIME, 200 samples", peer(lime), "lime", {"samples": 200}, False),
        Work("KernelSHAP, 500 samples", peer(kernel_shap), "kernel_shap", {"samples": 498}, False),  # and both ends
    ]


def _embedded(asked: Asked, explain: Callable[[Embedded, int], Tensor]) -> Side:
    g = Embedded(asked)

    def run(batch: int) -> Ran:
        before, begun = g.rows, time.perf_counter()
        scores = explain(g, batch)
        return Ran(scores, time.perf_counter() - begun, g.rows - before)

    return Side(run, lambda batch: peak(partial(explain, g, batch)))


def naive_implementation(asked: Asked, gate: Tensor, probes: int = 10, seed: int = 0) -> Side:
    """Return equation 4 as written: a product for every token and probe, a run of the whole prompt for every token."""
    n = asked.ids.shape[1]

    def explain() -> Tensor:
        curvature = naive_curvature(asked.model, asked.ids, asked.target, range(n), probes, seed)
        return gate * (curvature + naive_information(asked.model, asked.ids, range(n))) / 2

    def run(_: int) -> Ran:
        begun = time.perf_counter()
        scores = explain()
        return Ran(scores, time.perf_counter() - begun, n + 2)

    return Side(run, lambda _: peak(explain))


def by_hand(asked: Asked) -> list[Work]:
    """Return the work of the naive implementation, with the gate of heta_lens, which needs no run."""
    gate = heta_lens.attribute(asked.cache, asked.target, tokens=asked.ids, variant="transition_only").scores
    loop = naive_implementation(asked, gate)
    return [
        Work("HETA", loop, "heta", {}, False, batches=(1,)),
        Work("HETA, groups=None", loop, "heta", {"groups": None}, True, batches=(1,)),
    ]


LENGTH, REPEATS, COPIES = 67, 3, 16
HERE = {"captum": captum.__version__}


def write() -> None:
    for name in available(["stories3M", "demo"]):
        title, asked = f"captum, and the naive implementation of HETA, {name}", asked_of(name)
        pages.write("peers", [table(title, asked, by_captum(asked) + by_hand(asked), HERE)])
    from benchmarks.peers_elsewhere import PYTHON

    if available(["stories3M"]) and PYTHON.exists():
        pages.write("peers", [with_others("inseq, lxt and context-cite, stories3M")])


def with_others(title: str) -> Table:
    from benchmarks.peers_elsewhere import elsewhere, versions_elsewhere

    asked = asked_of("stories3M")
    with elsewhere(STORIES3M, asked) as works:
        made = table(title, asked, works, versions_elsewhere())
    return replace(made, note=f"{made.note} {models_alone(asked)}")


def models_alone(asked: Asked) -> str:
    """Return the seconds of a gradient by the models alone."""
    theirs, inputs = AutoModelForCausalLM.from_pretrained(STORIES3M).eval(), asked.cache[EMBED]
    runs = {
        type(theirs).__name__: lambda states: theirs(inputs_embeds=states).logits,
        type(asked.model).__name__: lambda states: asked.model.run_with_hooks(
            asked.ids.expand(len(states), -1), fwd_hooks=[(EMBED, lambda *_, **__: states)]
        ),
    }
    for parameter in theirs.parameters():
        parameter.requires_grad_(False)

    def seconds(run: Callable[[Tensor], Tensor]) -> float:
        states = inputs.repeat(COPIES, 1, 1).requires_grad_()
        begun = time.perf_counter()
        with ModelAdapter(asked.model).undisturbed():
            torch.autograd.grad(run(states)[:, -1, asked.target].sum(), states)
        return time.perf_counter() - begun

    taken = [[seconds(run) for run in runs.values()] for _ in range(1 + 2 * REPEATS)][1:]
    medians = (
        f"{number(median(times))} s ({name})" for name, times in zip(runs, zip(*taken, strict=True), strict=True)
    )
    return f"A gradient of {COPIES} copies of the prompt, by the models alone: {', '.join(medians)}."


def asked_of(name: str) -> Asked:
    model = MODELS[name]()
    return Asked.of(model, prompt(name, model, LENGTH))


def table(title: str, asked: Asked, works: list[Work], peers: dict[str, str]) -> Table:
    theirs, own = (", ".join(map(" ".join, used.items())) for used in (peers, versions()))
    note = f"{asked.ids.shape[1]} tokens, {torch.get_num_threads()} threads. Peers: {theirs}. Ours: {own}."
    return Table(title, COLUMNS, [row(asked, work, REPEATS) for work in works], note=note)
