"""The study of STUDY.md: every method on real models, on prompts whose evidence is known, and by interventions.

Scores, parts of HETA and effects of interventions are measured once a prompt; candidates are arithmetic on them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count, islice
from math import isnan
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import torch
import typer

import heta_lens
from benchmarks.outcomes import Outcomes
from heta_lens.data.families import FAMILIES
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.diagnostics import rank_correlation
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.statistics import Estimate, estimate
from heta_lens.metrics.evidence import evidence_mass, highest, reciprocal_rank, recovery
from heta_lens.metrics.scores import evidence_positions, ordinary
from heta_lens.prediction.prediction import Prediction

FOLDER = Path(__file__).parents[1] / "models"
FILES = FOLDER / "data"  # of published prompts: squad_subset.json, known_1000.json, ioi.json, agreement_nounpp.jsonl
MODELS = ("SmolLM2-135M-Instruct", "gemma-3-270m")
PUBLISHED = {
    "squad": ("squad_subset.json", {"neighbours": 1}),
    "known_facts": ("known_1000.json", {}),
    "ioi": ("ioi.json", {}),
    "agreement": ("agreement_nounpp.jsonl", {}),
}
MADE = ("key_value", "needle", "variable_tracking", "in_context_qa", "two_hop")
CHATS = ("key_value chat", "needle chat", "two_hop chat", "in_context_qa chat")
CHOOSING = ("squad", "known_facts", "ioi", "key_value", "needle", "variable_tracking", "in_context_qa")
SPLITS = ("dev", "test")
DRAWN, LONGEST = 400, 128  # prompts of a made family; tokens of a prompt
HOW = ("delete", "resample", "input")
LITERAL, SLOW_ONES = 30, 10  # prompts of a family and split for which these are measured

Setting = tuple[str, dict[str, Any]]
SETTINGS: Mapping[str, Setting] = {
    "careful": ("careful", {}),
    "fast": ("fast", {}),
    "attn_lrp": ("attn_lrp", {}),
    "gim": ("gim", {}),
    "gradient_norm": ("gradient_norm", {}),
    "input_x_gradient": ("input_x_gradient", {}),
    "grad_cam": ("grad_cam", {}),
    "jacobian_scope": ("jacobian_scope", {}),
    "integrated_gradients": ("integrated_gradients", {"steps": 16}),
    "discretized_integrated_gradients": ("discretized_integrated_gradients", {"steps": 16}),
    "leave_one_out": ("leave_one_out", {"effect": "log_prob", "mask": "zero"}),
    "leave_one_out mask=mean": ("leave_one_out", {"effect": "log_prob", "mask": "mean"}),
    "lime": ("lime", {"samples": 64}),
    "kernel_shap": ("kernel_shap", {"samples": 64}),
    "context_cite": ("context_cite", {"source": "token"}),
    "value_zeroing": ("value_zeroing", {}),
    "attention_rollout": ("attention_rollout", {}),
    "attention_last": ("attention_last", {}),
    "attention_norm": ("attention_norm", {}),
    "ifr": ("ifr", {}),
    "flash_trace": ("flash_trace", {}),
    "depass": ("depass", {}),
    "at2": ("at2", {}),
    "tdd": ("tdd", {}),
    "peering": ("peering", {}),
    "random": ("random", {}),
    "recency": ("recency", {}),
}
SLOW: Mapping[str, Setting] = {
    "reagent": ("reagent", {}),
    "faml": ("faml", {}),
    "sequential_integrated_gradients": ("sequential_integrated_gradients", {"steps": 8}),
    "causal_tracing": ("causal_tracing", {"samples": 2}),
}
PARTS: Mapping[str, dict[str, Any]] = {  # of HETA, from which candidates are worked out
    "gs": {"variant": "gs"},
    "target": {"variant": "kl_only", "information": "target"},
    "masked_orig": {"variant": "kl_only", "kl": "masked_orig"},
    "mean": {"variant": "kl_only", "mask": "mean"},
}


@cache
def model_of(name: str) -> Any:
    return heta_lens.load_model(FOLDER / name)


@cache
def at2_weights(name: str) -> Any:
    """Return the weights of AT2, fitted to the model on prompts that serve nothing else."""
    texts = suite("in_context_qa", split="dev", limit=40, seed=99)
    return heta_lens.fit_at2((ask(model_of(name), text) for text in texts), progress=False)


@cache
def prompts(family: str, split: str) -> list[Instance]:
    """Return the prompts of a family and split, in a fixed order."""
    name, _, chat = family.partition(" ")
    if name in PUBLISHED:
        file, options = PUBLISHED[name]
        every = suite(name, FILES / file, **options)
        own = [one for one in every if crc32(one.template.encode()) % 2 == SPLITS.index(split)]
        return sorted(own, key=lambda one: crc32(one.id.encode()))
    assert name in FAMILIES
    options: dict[str, Any] = {"chat": True} if chat else {}
    return suite(name, split=split, limit=DRAWN, **options)


def measured(name: str, family: str, split: str, number: int, *, literal: bool, slow: bool) -> dict[str, Any]:
    """Return everything that is known of a prompt, or why it does not count."""
    model, instance = model_of(name), prompts(family, split)[number]
    prediction = ask(model, instance)
    assert isinstance(prediction.target, int)
    right = _right(model, prediction, instance)
    known: dict[str, Any] = {"p": float(prediction.log_probs[prediction.target].exp()), "tokens": len(prediction)}
    if not right or len(prediction) > LONGEST:
        return known | {"left out": "long" if right else "wrong"}
    eligible = evidence_positions(instance, prediction, "eligible") if instance.eligible else ordinary(prediction)
    known |= {"template": instance.template, "eligible": eligible}
    known["gold"] = evidence_positions(instance, prediction, "gold")
    known["support"] = evidence_positions(instance, prediction, "support")
    groups = [[place] for place in eligible]
    for how in HOW:
        known[how] = heta_lens.causal.effects(prediction, how=how, groups=groups).tolist()

    def explained(method: str, options: dict[str, Any]) -> heta_lens.Attribution:
        return heta_lens.METHODS[method](progress=False, **options)(prediction)

    parts, scores, seconds, refused = dict[str, Any](), dict[str, Any](), dict[str, float](), dict[str, str]()
    if literal:
        found = explained("heta", {})
        scores["heta"] = _rounded(found.scores[eligible])
        parts["curvature"] = _rounded(found.parts["curvature"][eligible])
        seconds["heta"] = found.diagnostics["seconds"]
    for part, options in PARTS.items():
        found = explained("heta", options)
        parts[f"information {part}"] = _rounded(found.parts["information"][eligible])
        if part == "gs":
            parts |= {
                "gate": _rounded(found.parts["gate"][eligible]),
                "squared gradient": _rounded(found.parts["curvature"][eligible]),
            }
    for setting, (method, options) in {**SETTINGS, **(SLOW if slow else {})}.items():
        begun = time.process_time()
        try:
            given = {**options, "weights": at2_weights(name)} if setting == "at2" else options
            chosen = heta_lens.preset(method, progress=False) if method in heta_lens.PRESETS else None
            found = chosen(prediction) if chosen is not None else explained(method, given)
        except ValueError as error:
            refused[setting] = str(error)
            continue
        scores[setting] = _rounded(found.scores[eligible])
        seconds[setting] = time.process_time() - begun
    return known | {"parts": parts, "scores": scores, "seconds": _short(seconds), "refused": refused}


def _right(model: Any, prediction: Prediction, instance: Instance) -> bool:
    """Return whether the model answers; of agreement, whether the right number is the likelier one."""
    target, log_probs = prediction.target, prediction.log_probs
    assert isinstance(target, int)
    if instance.id.startswith("agreement") and instance.counterfactual is not None:
        other = ask(model, Instance("other", instance.text, instance.counterfactual.answer)).target
        assert isinstance(other, int)
        return bool(log_probs[target] > log_probs[other])
    return int(log_probs.argmax()) == target


def _rounded(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]


def _short(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in seconds.items()}


def turns(name: str, done: Callable[[tuple[Any, ...]], Any]) -> Iterator[tuple[str, str, int, bool, bool]]:
    """Yield prompts in turns over families and splits: each turn, the next of each that counts."""
    families = [*PUBLISHED, *MADE, *(CHATS if "Instruct" in name else ())]
    places = {(family, split): count() for family in families for split in SPLITS}
    counted = dict.fromkeys(places, 0)
    while places:
        for family, split in [*places]:
            for number in places[family, split]:
                if number >= len(prompts(family, split)):
                    del places[family, split]
                    break
                few = counted[family, split]
                yield family, split, number, few < LITERAL, few < SLOW_ONES
                if "left out" not in done((family, split, number)):
                    counted[family, split] += 1
                    break


app = typer.Typer()


# ------------------------------------------------------------------------------------------------------------- analysis
Row = Mapping[str, Any]


def root(one: Sequence[float], other: Sequence[float]) -> np.ndarray:
    return np.sqrt(np.abs(np.array(one)) * np.abs(np.array(other)))


def candidates(row: Row) -> dict[str, np.ndarray]:
    """Return the scores of every method and every candidate of HETA, on the eligible tokens."""
    parts: dict[str, Any] = {name: np.array(values) for name, values in row["parts"].items()}
    gate, squared, plain = parts["gate"], parts["squared gradient"], parts["information gs"]
    found = {
        "√(G·I)": root(squared, plain),
        "√(G·|Δ|)": root(squared, parts["information target"]),
        "√(G·I), masked‖original": root(squared, parts["information masked_orig"]),
        "√(G·I), mean mask": root(squared, parts["information mean"]),
        "G": squared,
        "I": plain,
        "G/ΣG + I/ΣI": squared / squared.sum() + plain / plain.sum(),
    }
    if "curvature" in parts:
        curvature = parts["curvature"]
        found |= {
            "√(S·I)": root(curvature, plain),
            "√(S·|Δ|)": root(curvature, parts["information target"]),
            "S": curvature,
            "S/ΣS + I/ΣI": curvature / curvature.sum() + plain / plain.sum(),
        }
    gated = {f"M·({name})": gate * values for name, values in found.items()}
    return {**{name: np.array(values) for name, values in row["scores"].items()}, **found, **gated}


def measures(row: Row, scores: np.ndarray) -> dict[str, float]:
    """Return the criterion of a prompt and what it is made of."""
    eligible = row["eligible"]
    gold = [eligible.index(place) for place in row["gold"] if place in eligible]
    values = torch.from_numpy(np.asarray(scores, dtype=float))
    sizes = values.abs()
    agreements = {how: rank_correlation(sizes, torch.tensor(row[how]).double().abs()) for how in HOW}
    agreements = {how: 0.0 if isnan(value) else value for how, value in agreements.items()}
    ranked = {
        "reciprocal rank": reciprocal_rank(values, gold),
        "first is evidence": float(highest(values, 1)[0] in gold),
        "evidence mass": evidence_mass(values, gold),
        "recovery of 10 %": recovery(values, gold),
    }
    both = (agreements["delete"] + agreements["resample"]) / 2
    return {"criterion": (ranked["reciprocal rank"] + both) / 2, **ranked, **agreements}


def outcomes(model: str) -> dict[tuple[str, str], list[Row]]:
    """Return the prompts that count, by family and split."""
    found: dict[tuple[str, str], list[Row]] = {}
    for (family, split, _), row in Outcomes(f"real_study-{model}").read().items():
        if "left out" not in row:
            found.setdefault((family, split), []).append(row)
    return found


def table(rows: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, Estimate]]:
    """Return the measures of every setting: the mean over families of the mean over prompts, with an interval."""
    collected: dict[str, dict[str, dict[str, list[tuple[float, str]]]]] = {}
    for family, prompts in rows.items():
        for row in prompts:
            for setting, scores in candidates(row).items():
                for measure, value in measures(row, scores).items():
                    if not isnan(value):
                        cells = collected.setdefault(setting, {}).setdefault(measure, {})
                        cells.setdefault(family, []).append((value, f"{family} {row['template']}"))
    return {
        setting: {measure: over_families(cells) for measure, cells in of.items() if cells.keys() == rows.keys()}
        for setting, of in collected.items()
    }


def over_families(cells: Mapping[str, Sequence[tuple[float, str]]]) -> Estimate:
    """Return the mean of the families' means; prompts weigh so that every family weighs the same."""
    share = [len(cell) * len(cells) for cell in cells.values()]
    total = sum(len(cell) for cell in cells.values())
    weighed = [
        (value * total / weight, cluster)
        for cell, weight in zip(cells.values(), share, strict=True)
        for value, cluster in cell
    ]
    values, clusters = zip(*weighed, strict=True)
    return estimate(list(values), list(clusters))


@app.command()
def write(model: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}.")], split: str = "dev") -> None:
    """Print the measures of every setting, the highest criterion first."""
    rows = {family: found for (family, own), found in outcomes(model).items() if own == split}
    print({family: len(found) for family, found in rows.items()})  # noqa: T201
    found = {setting: of for setting, of in table(rows).items() if "criterion" in of}
    for setting, of in sorted(found.items(), key=lambda item: -item[1]["criterion"].value):
        cells = (f"{name} {of[name].value:.2f} [{of[name].low:.2f}, {of[name].high:.2f}]" for name in of)
        print(f"{setting:34s}", "  ".join(cells))  # noqa: T201


@app.command()
def run(
    model: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}.")],
    minutes: Annotated[float, typer.Option(help="How long to measure.")] = 110,
    prompts: Annotated[int | None, typer.Option(help="How many prompts to measure at most.")] = None,
) -> None:
    """Measure prompts that have no outcome yet, in turns over the families."""
    torch.set_num_threads(1)
    kept, begun = Outcomes(f"real_study-{model}"), time.monotonic()
    known = kept.read()
    for family, split, number, literal, slow in islice(turns(model, known.__getitem__), prompts):
        if (family, split, number) not in known:
            if time.monotonic() - begun > 60 * minutes:
                return
            kept.measure([(family, split, number)], partial(measured, model, literal=literal, slow=slow))
            known |= kept.read()


if __name__ == "__main__":
    app()
