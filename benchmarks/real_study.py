"""The study of STUDY.md: every method on real models, on prompts whose evidence is known, and by interventions.

Scores, parts of HETA and effects of interventions are measured once a prompt; candidates are arithmetic on them.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
import typer

import heta_lens
from benchmarks.study import Place, at2_weights, divergence, measure, model_of, short
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.methods.registry import method_of
from heta_lens.metrics.scores import evidence_positions, ordinary
from heta_lens.model.batching import MASKED
from heta_lens.prediction.masking import Mask, mask_vector, masked_copies
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Rerun

FOLDER = Path(__file__).parents[1] / "models"
FILES = FOLDER / "data"  # of published prompts: squad_subset.json, known_1000.json, ioi.json, agreement_nounpp.jsonl
MODELS = ("SmolLM2-135M-Instruct", "gemma-3-270m")
PUBLISHED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "squad": ("squad_subset.json", {"neighbours": 1}),
    "known_facts": ("known_1000.json", {}),
    "ioi": ("ioi.json", {}),
    "agreement": ("agreement_nounpp.jsonl", {}),
}
MADE: Mapping[str, dict[str, Any]] = {
    "key_value": {},
    "needle": {"words": 30},
    "variable_tracking": {},
    "in_context_qa": {},
    "two_hop": {},
}
CHAT: Mapping[str, dict[str, Any]] = {"key_value": {}, "needle": {"words": 10}, "two_hop": {}, "in_context_qa": {}}
CHATS = tuple(f"{name} chat" for name in CHAT)
CHOOSING = ("squad", "known_facts", "ioi", "key_value", "needle", "variable_tracking", "in_context_qa")
SPLITS = ("dev", "test")
HOW = ("delete", "resample", "zero")
DRAWN, LONGEST, FITTED = 400, 80, 40  # prompts of a made family; tokens of a prompt; prompts to fit AT2
SOME = {MODELS[0]: 3, MODELS[1]: 1}  # SOMETIMES is measured on the first prompts of a family and split
SLOWEST, SHORT = 2, 30  # SLOW on this one, by SmolLM2, if it has at most so many tokens

Setting = tuple[str, dict[str, Any]]
ALWAYS: Mapping[str, Setting] = {
    **{
        method: (method, {})
        for method in (
            *("fast", "attn_lrp", "gim", "gradient_norm", "input_x_gradient", "grad_cam", "jacobian_scope"),
            *("attention_rollout", "attention_last", "attention_norm", "ifr", "flash_trace", "depass", "peering"),
            *("at2", "random", "recency"),
        )
    },
    "integrated_gradients": ("integrated_gradients", {"steps": 16}),
}
SOMETIMES: Mapping[str, Setting] = {
    "heta": ("heta", {}),
    "lime": ("lime", {"samples": 64}),
    "kernel_shap": ("kernel_shap", {"samples": 64}),
    "context_cite": ("context_cite", {"source": "token"}),
    "discretized_integrated_gradients": ("discretized_integrated_gradients", {"steps": 16}),
    "value_zeroing": ("value_zeroing", {}),
    "tdd": ("tdd", {}),
}
SLOW: Mapping[str, Setting] = {
    "reagent": ("reagent", {}),
    "faml": ("faml", {}),
    "sequential_integrated_gradients": ("sequential_integrated_gradients", {"steps": 8}),
    "causal_tracing": ("causal_tracing", {"samples": 2}),
}


@cache
def prompts(family: str, split: str) -> list[Instance]:
    """Return the prompts of a family and split, in a fixed order."""
    name, _, chat = family.partition(" ")
    if name in PUBLISHED:
        file, options = PUBLISHED[name]
        every = suite(name, str(FILES / file), **options)
        own = [one for one in every if crc32(one.template.encode()) % 2 == SPLITS.index(split)]
        return sorted(own, key=lambda one: crc32(one.id.encode()))
    options = {**MADE[name], **({"chat": True, **CHAT[name]} if chat else {})}
    return suite(name, None, split=split, limit=DRAWN, **options)


def measured(name: str, family: str, split: str, number: int, *, nth: int) -> dict[str, Any]:
    """Return everything that is known of a prompt, the ``nth`` of its family and split, or why it does not count."""
    model, instance = model_of(name), prompts(family, split)[number]
    prediction = ask(model, instance)
    assert isinstance(prediction.target, int)
    known: dict[str, Any] = {"p": short(prediction.log_probs[prediction.target].exp())[0], "tokens": len(prediction)}
    if len(prediction) > LONGEST:
        return known | {"left out": "long"}
    if not _right(model, prediction, instance):
        return known | {"left out": "wrong"}
    eligible = evidence_positions(instance, prediction, "eligible") if instance.eligible else ordinary(prediction)
    known |= {"template": instance.template, "eligible": eligible}
    known["gold"] = evidence_positions(instance, prediction, "gold")
    known["support"] = evidence_positions(instance, prediction, "support")
    groups = [[place] for place in eligible]
    for how in ("delete", "resample"):
        known[how] = short(heta_lens.causal.effects(prediction, how=how, groups=groups))

    parts: dict[str, Any] = {mask: masked(prediction, mask, eligible) for mask in ("zero", "mean")}
    squared = method_of("heta", {"variant": "gs", "gamma": 0, "progress": False})(prediction)
    parts["gate"] = short(squared.parts["gate"][eligible])
    parts["squared gradient"] = short(squared.parts["curvature"][eligible])
    if nth < SOME[name]:
        known["others"] = other_interventions(prediction, instance, groups)
    slow = nth == SLOWEST and len(prediction) <= SHORT and name == MODELS[0]
    scores, seconds, refused = dict[str, Any](), dict[str, float](), dict[str, str]()
    settings = {**ALWAYS, **(SOMETIMES if nth < SOME[name] else {}), **(SLOW if slow else {})}
    for setting, (method, options) in settings.items():
        begun = time.process_time()
        try:
            given = options | ({"weights": at2_weights(name)} if setting == "at2" else {})
            found = method_of(method, {"progress": False, **given})(prediction)
        except ValueError as error:
            refused[setting] = str(error)
            continue
        seconds[setting] = round(time.process_time() - begun, 2)
        scores[setting] = short(found.scores[eligible])
        if setting == "heta":
            parts["curvature"] = short(found.parts["curvature"][eligible])
            whole = {**found.parts, "score": found.scores}
            known["first, last, sum"] = {name: short(one[[0, -1]]) + short(one.sum()) for name, one in whole.items()}
    return known | {"parts": parts, "scores": scores, "seconds": seconds, "refused": refused}


def other_interventions(
    prediction: Prediction, instance: Instance, groups: Sequence[Sequence[int]]
) -> dict[str, list[float]]:
    """Return the drops of log p under interventions that the criterion does not ask for."""
    middle = prediction.adapter.layers // 2
    ways: dict[str, dict[str, Any]] = {
        "pad mask": {"how": "input", "mask": "pad"},
        "edge patch": {"how": "edge_patch"},
        "stream patch": {"how": "resid_patch", "layer": middle},
    }
    if instance.counterfactual is not None:
        other = ask(prediction.adapter.model, instance.counterfactual)
        if len(other) == len(prediction):
            ways["counterfactual"] = {"how": "input", "reference": other}
            ways["counterfactual edge patch"] = {"how": "edge_patch", "reference": other}
    found = dict[str, list[float]]()
    for way, options in ways.items():
        with suppress(ValueError):  # as of a tokenizer without a pad token
            found[way] = short(heta_lens.causal.effects(prediction, groups=groups, **options))
    return found


@torch.no_grad()
def masked(prediction: Prediction, mask: Mask, eligible: Sequence[int]) -> dict[str, list[float]]:
    """Mask each eligible token, and return the divergences of Eq. 3 in both directions and the drops of log p."""
    length, clean, found = len(prediction), prediction.log_probs, list[torch.Tensor]()
    target = prediction.target
    assert isinstance(target, int)
    batches = prediction.batches("auto", length)
    with prediction.running():
        vector = mask_vector(prediction, mask)
        for group in prediction.by_start(eligible, length, MASKED):
            start = group[0]
            rerun = prediction.rerun(start, read=[length - 1])

            def run(places: torch.Tensor, start: int = start, rerun: Rerun = rerun) -> torch.Tensor:
                copies = masked_copies(prediction.embeddings[start:], places - start, vector)
                other = rerun.logits(copies)[:, 0].log_softmax(-1)
                drops = clean[target] - other[:, target]
                return torch.stack([divergence(clean, other), divergence(other, clean), drops], 1)

            found.append(batches.map(run, torch.tensor(group), length - start))
    names = ("orig||masked", "masked||orig", "drop")
    return dict(zip(names, map(short, torch.cat(found).unbind(1)), strict=True))


def _right(model: Any, prediction: Prediction, instance: Instance) -> bool:
    """Return whether the model answers; of agreement, whether the right number is the likelier one."""
    target, log_probs = prediction.target, prediction.log_probs
    assert isinstance(target, int)
    if instance.id.startswith("agreement") and instance.counterfactual is not None:
        other = ask(model, Instance("other", instance.text, instance.counterfactual.answer)).target
        assert isinstance(other, int)
        return bool(log_probs[target] > log_probs[other])
    return int(log_probs.argmax()) == target


def places_of(name: str) -> dict[Place, tuple[int, int]]:
    families = [*PUBLISHED, *MADE, *(CHATS if "Instruct" in name else ())]
    counts = {(family, split): len(prompts(family, split)) for family in families for split in SPLITS}
    return {place: (count, count) for place, count in counts.items()}


def run(model: str, minutes: float = 110, prompts: int | None = None) -> None:
    """Measure prompts that have no outcome yet, in turns over the families."""
    measure(f"real_study-{model}", places_of(model), partial(measured, model), minutes, prompts)


if __name__ == "__main__":
    typer.run(run)
