"""The same work by captum and by heta_lens: seconds, forwards, memory, and how far the scores differ.

`python -m benchmarks.peers` writes PEERS.md. Both explain one prompt with the same model, baseline and target. Ours is
`attribute(cache, method=...)` as it is called, with its check of the cache; captum is given the model's embeddings and
the batch size at which it is fastest. Runs take turns, and seconds are medians.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import captum.attr
import torch
import typer
from captum._utils.models.linear_model import SkLearnRidge
from torch import Tensor

import heta_lens
from benchmarks import stories3m
from benchmarks.report import Table, number, show, write
from benchmarks.speed.flops_and_memory import peak
from benchmarks.speed.models import MODELS, prompt
from heta_lens._util.caller_warnings import quietly
from heta_lens._util.versions import versions
from heta_lens.diagnostics import rank_correlation

PAGE = Path(__file__).parent / "PEERS.md"
LENGTH, REPEATS = 67, 5
BATCHES = (1, 4, 16, 64, 256)  # of which a peer's best is taken
COLUMNS = ["work", "peer, s", "ours, s", "peer / ours", "peer, forwards", "ours, forwards", "peer, MiB", "ours, MiB",
           "largest difference", "ρ"]  # fmt: skip
LEGEND = """# Peers

Written by `python -m benchmarks.peers`. **peer / ours** is the median of runs that took turns, with the least and the
most. **largest difference** is relative to the largest score; methods that draw their own samples have none, and ρ (the
rank correlation) says how near they come. **MiB** are what tensors held at most beyond the model and the cache."""


class Case(NamedTuple):
    """One prompt: the model's cache of it, and its embeddings as captum is given them."""

    model: Any
    ids: Tensor
    cache: Any
    target: int
    embeddings: Tensor
    baseline: Tensor

    @classmethod
    def of(cls, model: Any, ids: Tensor) -> "Case":
        logits, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        embeddings = cache["hook_embed"].detach()
        baseline = torch.zeros_like(embeddings)
        baseline[:, 0] = embeddings[:, 0]  # the token that begins the text stays, as in ours
        return cls(model, ids, cache, int(logits[0, -1].argmax()), embeddings, baseline)

    @property
    def tokens(self) -> Tensor:
        """Which embedding entries belong to which token."""
        return torch.arange(self.ids.shape[1])[None, :, None].expand_as(self.embeddings)


class Counted:
    """The target's log-probability as a function of a batch of embeddings, and how many rows it has run."""

    def __init__(self, case: Case) -> None:
        self.case, self.rows = case, 0

    def __call__(self, batch: Tensor) -> Tensor:
        self.rows += len(batch)
        ids = self.case.ids.expand(len(batch), -1)
        replace = [("hook_embed", lambda live, hook: batch.to(live.dtype))]  # noqa: ARG005
        logits = self.case.model.run_with_hooks(ids, fwd_hooks=replace)[:, -1]
        return logits.log_softmax(-1)[:, self.case.target]


Peer = Callable[[Case, Counted, int], Tensor]  # scores by token, with a batch size


def integrated_gradients(case: Case, g: Counted, batch: int) -> Tensor:
    method: Any = captum.attr.IntegratedGradients(g)
    embeddings = case.embeddings.clone().requires_grad_()
    return method.attribute(embeddings, case.baseline, n_steps=50, internal_batch_size=batch)[0].sum(-1)


@torch.no_grad()
def ablation(case: Case, g: Counted, batch: int) -> Tensor:
    method: Any = captum.attr.FeatureAblation(g)
    return method.attribute(case.embeddings, 0.0, feature_mask=case.tokens, perturbations_per_eval=batch)[0, :, 0]


@torch.no_grad()
def lime(case: Case, g: Counted, batch: int) -> Tensor:
    method: Any = captum.attr.Lime(g, interpretable_model=SkLearnRidge(alpha=1.0))
    return method.attribute(
        case.embeddings, case.baseline, feature_mask=case.tokens, n_samples=200, perturbations_per_eval=batch
    )[0, :, 0]


@torch.no_grad()
def kernel_shap(case: Case, g: Counted, batch: int) -> Tensor:
    method: Any = captum.attr.KernelShap(g)
    return method.attribute(
        case.embeddings, case.baseline, feature_mask=case.tokens, n_samples=500, perturbations_per_eval=batch
    )[0, :, 0]


class Work(NamedTuple):
    """The same work by a peer and by us, and whether both should find the same scores."""

    peer: Peer
    method: str
    options: dict[str, Any]
    exact: bool


WORK = {
    "integrated gradients, 50 steps": Work(integrated_gradients, "integrated_gradients", {"steps": 50}, True),
    "leave one out": Work(ablation, "leave_one_out", {"effect": "log_prob"}, True),
    "LIME, 200 samples": Work(lime, "lime", {"samples": 200}, False),
    "KernelSHAP, 500 samples": Work(kernel_shap, "kernel_shap", {"samples": 498}, False),  # and both ends
}


def main(
    length: Annotated[int, typer.Option(min=2, help="Tokens of the prompt.")] = LENGTH,
    repeats: Annotated[int, typer.Option(min=1, help="How often both are timed in turn.")] = REPEATS,
) -> None:
    tables = [
        table(name, length, repeats)
        for name in ("stories3M", "demo")
        if name != "stories3M" or stories3m.MODEL.is_dir()
    ]
    for one in tables:
        show(one.title, one.columns, one.rows)
    if (length, repeats) == (LENGTH, REPEATS):
        write(PAGE, LEGEND, tables)


def table(name: str, length: int, repeats: int) -> Table:
    model = MODELS[name]()
    case = Case.of(model, prompt(name, model, length))
    note = f"{length} tokens, {torch.get_num_threads()} threads; captum {captum.__version__}, " + ", ".join(
        map(" ".join, versions().items())
    )
    return Table(
        f"captum, {name}", COLUMNS, [[title, *row(case, work, repeats)] for title, work in WORK.items()], note=note
    )


def row(case: Case, work: Work, repeats: int) -> list[str]:
    counted = Counted(case)
    batch = min(BATCHES, key=lambda batch: seconds(partial(work.peer, case, counted, batch)))
    counted.rows = 0
    peer, ours = partial(work.peer, case, counted, batch), partial(attributed, case, work)
    expected, attribution = peer(), ours()
    rows, checks = counted.rows, attribution.diagnostics["checks"]
    forwards = attribution.diagnostics["forwards"] + sum(counts.get("forwards", 0) for counts in checks.values())
    taken = [(seconds(peer), seconds(ours)) for _ in range(repeats)]
    ratios = [theirs / own for theirs, own in taken]
    gap = float((attribution.scores - expected).abs().max() / expected.abs().max())
    return [
        *(number(median(times)) for times in zip(*taken, strict=True)),
        f"{number(median(ratios))} ({number(min(ratios))}–{number(max(ratios))})",
        str(rows),
        str(forwards),
        *(f"{peak(run):.0f}" for run in (peer, ours)),
        f"{gap:.0e}" if work.exact else "–",
        f"{rank_correlation(attribution.scores, expected.detach()):.3f}",
    ]


def attributed(case: Case, work: Work) -> heta_lens.Attribution:
    explain = partial(heta_lens.attribute, case.cache, case.target, method=work.method, tokens=case.ids)
    return quietly(lambda: explain(**work.options))


def seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


if __name__ == "__main__":
    typer.run(main)
