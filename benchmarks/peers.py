"""The same work by other libraries and by heta_lens: seconds, forwards, memory, and the difference of the scores.

Captum runs in this process, given the model's embeddings; inseq, lxt and context-cite run in an environment of their
own (`peers_worker`, `make .venv/oracles/ready`).
"""

import csv
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import captum
import captum.attr
import matplotlib.pyplot as plt
import torch
from captum._utils.models.linear_model import SkLearnRidge
from torch import Tensor
from transformers import AutoModelForCausalLM

import heta_lens
from benchmarks import pages
from benchmarks.models import SMOLLM2, TEXT
from benchmarks.pages import Table, number
from benchmarks.peers_worker import Ran, Side, peak
from benchmarks.reference import naive_curvature, naive_information
from heta_lens._util.python import quietly, versions
from heta_lens._util.text import sentences
from heta_lens.diagnostics import rank_correlation
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED

COLUMNS = ["work", "peer, s", "ours, s", "peer / ours", "peer, forwards", "ours, forwards", "peer, MiB", "ours, MiB",
           "largest difference", "ρ", "ρ of two seeds of ours"]  # fmt: skip

REPEATS, COPIES, PROBES = 3, 16, 5
TRIED = 2  # runs of a batch size, of which the faster counts
HERE = {"captum": captum.__version__}
ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv" / "oracles" / "bin" / "python"
ATTENTIONS = "sdpa", "eager"  # implementations of attention by transformers; ours is eager
UNKNOWN = 0  # the token that inseq puts in the place of others


TOKENS, STEPS, LIME, SHAP = 43, 20, 50, 100  # of the prompt, integrated gradients; samples of LIME and KernelSHAP


@dataclass(frozen=True, eq=False)
class Asked:
    model: Any
    ids: Tensor
    cache: Any
    target: int

    @property
    def begins(self) -> bool:
        """Whether the first token only marks the beginning of the text."""
        return int(self.ids[0, 0]) == self.model.tokenizer.bos_token_id

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
        begun = time.process_time()
        attribution = quietly(lambda: explain(**work.options))
        taken = time.process_time() - begun
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
    if "seed" not in vars(method):
        return "–"
    other = replace(work, options={**work.options, "seed": vars(method)["seed"] + 1})
    return f"{rank_correlation(found, ours(asked, other).run(1).scores.double()):.3f}"


class Embedded:
    """The target's log-probability as a function of a batch of embeddings, with a count of rows."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.rows = asked, 0
        self.embeddings = asked.cache["hook_embed"].detach()
        self.baseline = torch.zeros_like(self.embeddings)
        if asked.begins:
            self.baseline[:, 0] = self.embeddings[:, 0]  # the token that begins the text stays, as in ours
        self.tokens = torch.arange(asked.ids.shape[1])[None, :, None].expand_as(self.embeddings)  # of each entry

    def __call__(self, batch: Tensor) -> Tensor:
        self.rows += len(batch)
        ids = self.asked.ids.expand(len(batch), -1)
        replace = [("hook_embed", lambda live, hook: batch.to(live.dtype))]  # noqa: ARG005
        logits = self.asked.model.run_with_hooks(ids, fwd_hooks=replace)[:, -1]
        return logits.log_softmax(-1)[:, self.asked.target]


def integrated_gradients(steps: int, g: Embedded, batch: int) -> Tensor:
    method: Any = captum.attr.IntegratedGradients(g)
    embeddings = g.embeddings.clone().requires_grad_()
    return method.attribute(embeddings, g.baseline, n_steps=steps, internal_batch_size=batch)[0].sum(-1).detach()


@torch.no_grad()
def perturbed(make: Callable[[Embedded], Any], options: dict[str, Any], g: Embedded, batch: int) -> Tensor:
    """Return the scores of a method that changes some of the tokens at a time."""
    given = {"baselines": g.baseline, "feature_mask": g.tokens, "perturbations_per_eval": batch} | options
    return make(g).attribute(g.embeddings, **given)[0, :, 0]


def by_captum(asked: Asked) -> list[Work]:
    def peer(explain: Callable[[Embedded, int], Tensor]) -> Side:
        g = Embedded(asked)
        return Side.of(partial(explain, g), lambda: g.rows)

    ablation = partial(perturbed, captum.attr.FeatureAblation, {"baselines": 0.0})
    ridge = partial(captum.attr.Lime, interpretable_model=SkLearnRidge(alpha=1.0))
    lime = partial(perturbed, ridge, {"n_samples": LIME})
    kernel_shap = partial(perturbed, captum.attr.KernelShap, {"n_samples": SHAP})
    return [
        Work(
            f"integrated gradients, {STEPS} steps",
            peer(partial(integrated_gradients, STEPS)),
            "integrated_gradients",
            {"steps": STEPS, "mask": "zero"},
            True,
        ),
        Work("leave one out", peer(ablation), "leave_one_out", {}, True),
        Work(f"LIME, {LIME} samples", peer(lime), "lime", {"samples": LIME}, False),
        Work(
            f"KernelSHAP, {SHAP} samples", peer(kernel_shap), "kernel_shap", {"samples": SHAP - 2}, False
        ),  # and both ends
    ]


def naive_implementation(asked: Asked, gate: Tensor) -> Side:
    """Return equation 4 as written: a product for every token and probe, a run of the whole prompt for every token."""
    n = asked.ids.shape[1]

    def explain(_: int) -> Tensor:
        curvature = naive_curvature(asked.model, asked.ids, asked.target, range(n), PROBES, 0)
        return gate * (curvature + naive_information(asked.model, asked.ids, range(n))) / 2

    return Side.of(explain, partial(next, count(step=n + 2)))


def by_hand(asked: Asked) -> Work:
    """Return the work of the naive implementation, with the gate of heta_lens, which needs no run."""
    gate = heta_lens.attribute(asked.cache, asked.target, tokens=asked.ids, variant="transition_only").scores
    loop = naive_implementation(asked, gate)
    return Work(f"HETA, {PROBES} probes", loop, "heta", {"probes": PROBES}, False, batches=(1,))


# --------------------------------------------------------------------------------------- peers of another environment
@contextmanager
def elsewhere(asked: Asked) -> Iterator[list[Work]]:
    """Yield the work of peers, who have loaded SmolLM2 and wait."""
    ids, begins = asked.ids[0].tolist(), int(asked.begins)
    text = asked.model.tokenizer.decode(ids[begins:])
    spans = sentences(text)
    if len(spans) < 2:
        raise ValueError(f"context-cite needs a prompt of two sentences or more, not {text!r}: choose a longer one")
    given = {
        "model": str(SMOLLM2),
        "ids": ids,
        "target": asked.target,
        "text": text,
        "answer": asked.model.tokenizer.decode([*ids[begins:], asked.target])[len(text) :],
        "steps": STEPS,
        "sources": [text[start:stop] for start, stop in spans[:-1]],
        "query": text[spans[-1][0] :],
    }
    before = text[: spans[-1][0]].rstrip()  # a blank belongs to the token after it
    query = (begins + len(asked.model.tokenizer(before, add_special_tokens=False).input_ids), len(ids))
    with ExitStack() as stack:

        def peer(name: str, attention: str) -> Side:
            return stack.enter_context(worker(name, given | {"attention": attention}))

        integrated = {"steps": STEPS, "mask": UNKNOWN, "keep_bos": False}
        masked = {"effect": "log_prob", "mask": UNKNOWN}
        cited = {"query": (query,), "held_out": 0}
        works = [Work("lxt: AttnLRP, eager", peer("attn_lrp", "eager"), "attn_lrp", {}, True, batches=(1,))]
        for how in ATTENTIONS:
            gradients, occlusion = peer("integrated_gradients", how), peer("occlusion", how)
            title = f"inseq: integrated gradients, {STEPS} steps, {how}"
            works += [
                Work(title, gradients, "integrated_gradients", integrated, True),
                Work(
                    f"inseq: occlusion, {how}",
                    occlusion,
                    "leave_one_out",
                    masked,
                    True,
                    scores=lambda own: own.scores.abs(),
                ),
                Work(
                    f"context-cite: 64 ablations, {how}",
                    peer("context_cite", how),
                    "context_cite",
                    cited,
                    False,  # what they keep of the prompt is tokenized again, what we keep is not
                    scores=lambda own: torch.tensor(own.diagnostics["source_scores"]),
                ),
            ]
        yield works


@contextmanager
def worker(name: str, given: dict[str, Any]) -> Iterator[Side]:
    """Yield a peer that answers requests with lines of JSON."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "given.json").write_text(json.dumps(given))
        command = [PYTHON, "-W", "ignore", "-m", "benchmarks.peers_worker", name, folder]
        pipe, threads = subprocess.PIPE, {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=others | threads) as process:
            requests, answers = process.stdin, process.stdout
            assert requests is not None and answers is not None

            def ask(what: str, batch: int) -> Any:
                with suppress(BrokenPipeError):
                    requests.write(json.dumps([what, batch]) + "\n")
                    requests.flush()
                if not (answer := answers.readline()):
                    raise RuntimeError(f"{name} ended without an answer: its message is above")
                return json.loads(answer)

            def run(batch: int) -> Ran:
                scores, seconds, rows = ask("run", batch)
                return Ran(torch.tensor(scores), seconds, rows)

            yield Side(run, partial(ask, "peak"))
            with suppress(BrokenPipeError):
                requests.close()


def versions_elsewhere() -> dict[str, str]:
    """Return the versions of the libraries in the other environment."""
    names = ("inseq", "lxt", "context_cite", "transformers", "torch")
    program = f"from importlib.metadata import version; print(*map(version, {names}))"
    printed = subprocess.run([PYTHON, "-c", program], check=True, capture_output=True, text=True).stdout
    return dict(zip(names, printed.split(), strict=True))


# ------------------------------------------------------------------------------------------------------------ the page
def write() -> None:
    asked = asked_of_smollm2()
    works = [*by_captum(asked), by_hand(asked)]
    pages.write("peers", [table("captum, and the naive implementation of HETA, SmolLM2", asked, works, HERE)])
    with elsewhere(asked) as works:
        made = table("inseq, lxt and context-cite, SmolLM2", asked, works, versions_elsewhere())
    pages.write("peers", [replace(made, note=f"{made.note} {models_alone(asked)}")])
    picture()


def picture() -> None:
    """Draw peer / ours by work, of every table on SmolLM2, with the least and the most."""
    ratio = re.compile(r"([\d.]+) \(([\d.]+)–([\d.]+)\)")
    found = []
    for path in sorted(pages.CSV.glob("peers-*smollm2.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                by = "" if row["work"].startswith(("inseq", "lxt", "context-cite")) else "Captum: "
                by = "naive loop: " if row["work"].startswith("HETA") else by
                found.append((by + row["work"], *map(float, ratio.fullmatch(row["peer / ours"]).groups())))  # type: ignore[union-attr]
    names, middles, lows, highs = zip(*sorted(found, key=lambda each: each[1]), strict=True)
    figure, axes = plt.subplots(figsize=(7, 0.32 * len(names) + 1), layout="constrained")
    axes.hlines(names, lows, highs, color="tab:blue", linewidth=2)
    axes.plot(middles, names, "o", color="tab:blue")
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10], labels=["0.5", "1", "2", "5", "10"])
    axes.set_xlabel("processor time, peer / ours: right of 1, ours is faster")
    pages.save_figure(figure, ROOT / "docs" / "peers.webp")
    plt.close(figure)


def models_alone(asked: Asked) -> str:
    """Return the seconds of a gradient by the models alone."""
    theirs, inputs = AutoModelForCausalLM.from_pretrained(SMOLLM2).eval(), asked.cache[EMBED]
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
        begun = time.process_time()
        with ModelAdapter(asked.model).undisturbed():
            torch.autograd.grad(run(states)[:, -1, asked.target].sum(), states)
        return time.process_time() - begun

    taken = [[seconds(run) for run in runs.values()] for _ in range(1 + 2 * REPEATS)][1:]
    medians = (
        f"{number(median(times))} s ({name})" for name, times in zip(runs, zip(*taken, strict=True), strict=True)
    )
    return f"A gradient of {COPIES} copies of the prompt, by the models alone: {', '.join(medians)}."


def asked_of_smollm2() -> Asked:
    model = heta_lens.load_model(SMOLLM2)
    return Asked.of(model, model.to_tokens(TEXT)[:, 1 : TOKENS + 1])  # whose own tokenizer begins no text


def table(title: str, asked: Asked, works: list[Work], peers: dict[str, str]) -> Table:
    theirs, own = (", ".join(map(" ".join, used.items())) for used in (peers, versions()))
    note = f"{asked.ids.shape[1]} tokens, {torch.get_num_threads()} threads. Peers: {theirs}. Ours: {own}."
    rows = [row(asked, work, 1 if work.method == "heta" else REPEATS) for work in works]
    return Table(title, COLUMNS, rows, note=note)
