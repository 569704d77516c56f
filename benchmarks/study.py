"""The study of STUDY.md: every method on two real models, on prompts whose evidence is known, and by interventions.

Scores, parts of HETA and effects of interventions are measured once a prompt; candidates are arithmetic on them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from subprocess import check_output as run_command
from typing import Annotated, Any, TypeAlias, TypeVar

import torch
import typer
from torch import Tensor

import heta_lens
from benchmarks.outcomes import Outcomes
from benchmarks.study_prompts import KINDS, Question, questions
from heta_lens.attribution import Attribution
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.methods.registry import method_of
from heta_lens.metrics.scores import evidence_positions
from heta_lens.model.batching import MASKED
from heta_lens.prediction.masking import Mask, mask_vector, masked_copies
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Rerun

FOLDER = Path(__file__).parents[1] / "models"
MODELS = ("SmolLM2-135M-Instruct", "gemma-3-270m")
WANTED = {MODELS[0]: {"dev": 12, "test": 36}, MODELS[1]: {"test": 24}}  # right answers of a family
LONGEST, LONG = {"squad_paragraph": 160}, 80  # tokens of a prompt; those longer than LONG have fewer measurements
FOURTH, EIGHTH = 4, 8  # interventions are measured on every fourth prompt, slower methods on every eighth
DRAWN, DRAWS = 8, 4  # other targets; resampled texts, twice
ALONE = {MODELS[0]: 4, MODELS[1]: 2}  # every so many-th test prompt has the scores of literal HETA too
FITTED = 40  # prompts to fit AT2

RUNNER_UP, WRONG = "runner-up", "wrong form"  # other targets

T = TypeVar("T")
Setting: TypeAlias = tuple[str, dict[str, Any]]
ALWAYS: Mapping[str, Setting] = {
    "fast": ("attn_lrp", {"rule": "cp_lrp"}),  # the preset when the protocol was written
    **{
        method: (method, {})
        for method in (
            *("attn_lrp", "gim", "input_x_gradient", "grad_cam", "jacobian_scope", "attention_rollout"),
            *("attention_last", "attention_norm", "ifr", "flash_trace", "peering", "at2", "random"),
        )
    },
}
TOLD_APART = ("fast", "attn_lrp")  # also explain why one form of a verb or pronoun rather than the other
SLOWER: Mapping[str, Setting] = {
    **{
        method: (method, {})
        for method in (*("heta", "integrated_gradients", "lime", "kernel_shap", "depass", "value_zeroing"),)
    },
    "context_cite": ("context_cite", {"source": "token"}),
}


@cache
def model_of(name: str) -> Any:
    return heta_lens.load_model(FOLDER / name)


@cache
def at2_weights(name: str) -> Path:
    """Return the file of AT2's weights, fitted to the model on prompts that serve nothing else."""
    path = FOLDER / f"at2-{name}.safetensors"
    if not path.exists():
        texts = suite("in_context_qa", split="dev", limit=FITTED, seed=99)
        heta_lens.fit_at2((ask(model_of(name), text) for text in texts), progress=False).save(path)
    return path


# ---------------------------------------------------------------------------------------------------------- measurement
def measured(name: str, family: str, split: str, number: int) -> dict[str, Any]:
    """Return what is measured on every prompt, or why it does not count."""
    try:
        return {"commit": commit(), **known_of(name, family, split, number)}
    except (ValueError, RuntimeError) as error:
        return {"commit": commit(), "left out": "error", "why": str(error)}


@cache
def commit() -> str:
    """Return the commit that measures, with a mark if files were changed since."""
    return run_command(["git", "describe", "--always", "--dirty"], cwd=FOLDER.parent, text=True).strip()


def known_of(name: str, family: str, split: str, number: int) -> dict[str, Any]:
    model, question = model_of(name), questions(family, split)[number]
    instance = question.instance
    size = model.to_tokens(instance.text).shape[1]
    if size > LONGEST.get(family, LONG):
        return {"left out": "long"}
    prediction = ask(model, instance)
    assert isinstance(prediction.target, int)
    visible, last = (~method_of("recency", {})(prediction).hidden).nonzero().flatten().tolist(), len(prediction) - 1
    eligible = evidence_positions(instance, prediction, "eligible") if instance.eligible else visible
    eligible = [place for place in eligible if place != last]  # the prediction is read there
    known: dict[str, Any] = {"tokens": len(prediction), "p": short(prediction.log_probs[prediction.target].exp())[0]}
    if not right(KINDS[family], prediction, question, [*eligible, last]):
        return known | {"left out": "wrong"}
    gold = evidence_positions(instance, prediction, "gold")
    if not {*gold} < {*eligible}:
        raise ValueError(f"gold {gold} is not among the eligible tokens {eligible}")
    known |= {"template": instance.template, "visible": visible, "eligible": eligible, "gold": gold}
    others = other_targets(prediction, question)
    targets = [prediction.target, *others.values()]
    log_probs = short(prediction.log_probs[targets])
    words = [prediction.tokenizer.write(token).strip().lower() for token in (*prediction.ids.tolist(), targets[0])]
    known["copies"] = [place for place in visible if words[place] == words[-1]]
    known |= {"targets": targets, "log probs": log_probs, "others": [*others]}
    seconds, at2 = dict[str, float](), {"at2": ("at2", {"weights": at2_weights(name)})}
    parts, effects = parts_of(prediction, visible, others, seconds), dict[str, Any]()
    found, refused = attributions(prediction, {**ALWAYS, **at2}, seconds)
    scores = {setting: short(one.scores[visible]) for setting, one in found.items()}
    for setting in TOLD_APART if WRONG in others else ():
        apart = replace(prediction, target=(prediction.target, others[WRONG]))
        method, options = ALWAYS[setting]
        scores[f"{setting}, {WRONG}"] = short(method_of(method, options)(apart).scores[visible])
    return known | {"parts": parts, "effects": effects, "scores": scores, "seconds": seconds, "refused": refused}


def turn_of(family: str, nth: int, tokens: int) -> int | None:
    """Return how rare the turn of the ``nth`` prompt of a family is: EIGHTH, FOURTH or None."""
    place, is_long = nth + [*KINDS].index(family), family in LONGEST and tokens > LONG
    if place % EIGHTH == 0:  # families begin apart, so that each turn has its share of them
        return FOURTH if is_long else EIGHTH
    return FOURTH if place % FOURTH == 0 and not is_long else None


def heta_alone(name: str, family: str, split: str, nth: int, tokens: int) -> bool:
    """Return whether the ``nth`` prompt of a family has the scores of literal HETA, and of no other slower method."""
    place, is_long = nth + [*KINDS].index(family), family in LONGEST and tokens > LONG
    return split == "test" and not is_long and place % ALONE[name] == 0 and place % EIGHTH != 0


def added(
    name: str,
    family: str,
    split: str,
    number: int,
    *,
    known: dict[str, Any],
    settings: Mapping[str, Setting],
    intervene: bool = True,
) -> dict[str, Any]:
    """Return what is measured in some turns: effects of interventions, and scores of slower methods."""
    prediction, seconds = ask(model_of(name), questions(family, split)[number].instance), dict[str, float]()
    effects = effects_of(prediction, known["eligible"], seconds) if intervene else {}
    more: dict[str, Any] = {"commit": commit(), "effects": effects}
    found, refused = attributions(prediction, settings, seconds)
    scores, parts = {setting: short(one.scores[known["visible"]]) for setting, one in found.items()}, dict[str, Any]()
    if "heta" in found:
        parts["curvature"] = short(found["heta"].parts["curvature"][known["visible"]])
        whole = {**found["heta"].parts, "score": found["heta"].scores}
        more["first, last, sum"] = {name: short(one[[0, -1]]) + short(one.sum()) for name, one in whole.items()}
    return more | {"parts": parts, "scores": scores, "seconds": seconds, "refused": refused}


def attributions(
    prediction: Prediction, settings: Mapping[str, Setting], seconds: dict[str, float]
) -> tuple[dict[str, Attribution], dict[str, str]]:
    """Return what methods found, by setting, and the messages of those that refused."""
    found, refused = dict[str, Attribution](), dict[str, str]()
    for setting, (method, options) in settings.items():
        try:
            run = method_of(method, {"progress": False, **options})
            found[setting] = timed(seconds, setting, partial(run, prediction))
        except (ValueError, RuntimeError) as error:
            refused[setting] = str(error)
    return found, refused


def other_targets(prediction: Prediction, question: Question) -> dict[str, int]:
    """Return other targets: the runner-up, the other form of a verb or pronoun, and those that are drawn."""
    likely = prediction.log_probs.argsort(descending=True).tolist()
    found = {RUNNER_UP: next(token for token in likely if token != prediction.target)}
    if len(question.wrong) == 1:
        found[WRONG] = prediction.spell(question.wrong[0])[0]
    return found | {f"drawn {at}": token for at, token in enumerate(drawn_targets(prediction))}


def timed(seconds: dict[str, float], name: str, run: Callable[[], T]) -> T:
    """Return what a function returns, and note the seconds of the processor."""
    begun = time.process_time()
    found = run()
    seconds[name] = round(time.process_time() - begun, 2)
    return found


def right(kind: str, prediction: Prediction, question: Question, eligible: Sequence[int]) -> bool:
    """Return whether the answer is likelier than the other answers, the context's words, or all other words."""
    assert isinstance(prediction.target, int)
    log_probs = prediction.log_probs
    if question.wrong:
        others = {prediction.spell(wrong)[0] for wrong in question.wrong} - {prediction.target}
    elif kind == "patterns":
        others = {int(log_probs.argmax())} - {prediction.target}
    else:
        others = {*prediction.ids[[*eligible]].tolist()} - {prediction.target}
    return all(log_probs[prediction.target] > log_probs[other] for other in others)


def parts_of(
    prediction: Prediction, visible: Sequence[int], others: Mapping[str, int], seconds: dict[str, float]
) -> dict[str, Any]:
    """Return what candidates of HETA are made of, for the target and for the others."""
    target = prediction.target
    gradient = method_of("gradient_norm", {"progress": False})

    def squared(target: Any) -> list[float]:
        return short(gradient(replace(prediction, target=target)).scores[visible].square())

    drawn = {token: token for name, token in others.items() if name.startswith("drawn")}
    by_token = timed(seconds, "others", lambda: {token: squared(token) for token in drawn})
    gate = method_of("heta", {"variant": "transition_only", "progress": False})
    apart = {name: squared((target, others[name])) for name in (RUNNER_UP, WRONG) if name in others}
    return {
        **timed(seconds, "zero", partial(masked, prediction, "zero", visible, [*others.values()])),
        "squared gradient": timed(seconds, "squared gradient", partial(squared, target)),
        "gate": short(timed(seconds, "gate", partial(gate, prediction)).parts["gate"][visible]),
        "squared gradient, contrast": apart,
        "squared gradient, others": [by_token[token] for name, token in others.items() if name.startswith("drawn")],
    }


def effects_of(prediction: Prediction, eligible: Sequence[int], seconds: dict[str, float]) -> dict[str, Any]:
    """Return the drops of log p by other masks, by deletion, and by resampling (two means of as many draws)."""
    groups = [[place] for place in eligible]
    effects = partial(heta_lens.causal.effects, prediction, groups=groups)
    return {
        **{
            mask: timed(seconds, mask, partial(masked, prediction, mask, eligible, []))["drop"]
            for mask in ("mean", "space")
        },
        "delete": short(timed(seconds, "delete", partial(effects, how="delete"))),
        "resample": timed(
            seconds,
            "resample",
            lambda: [short(effects(how="resample", draws=DRAWS, seed=seed)) for seed in range(2)],
        ),
    }


def drawn_targets(prediction: Prediction) -> list[int]:
    """Draw other targets from the model's prediction without the target, with a seed that is the prompt's."""
    assert isinstance(prediction.target, int)
    chances = prediction.log_probs.double().exp()
    chances[prediction.target] = 0
    generator = torch.Generator().manual_seed(int(prediction.ids.sum()))
    return torch.multinomial(chances.cpu(), DRAWN, replacement=True, generator=generator).tolist()


@torch.no_grad()
def masked(prediction: Prediction, mask: Mask, places: Sequence[int], others: Sequence[int]) -> dict[str, Any]:
    """Mask each token, and return the divergences of Eq. 3 in both directions, and the drops of targets."""
    length, clean, found = len(prediction), prediction.log_probs, list[Tensor]()
    tokens = [prediction.target, *others]
    batches = prediction.batches("auto", length)
    with prediction.running():
        vector = mask_vector(prediction, mask)
        for group in prediction.by_start(places, length, MASKED):
            start = group[0]
            rerun = prediction.rerun(start, read=[length - 1])

            def run(own: Tensor, start: int = start, rerun: Rerun = rerun) -> Tensor:
                copies = masked_copies(prediction.embeddings[start:], own - start, vector)
                other = rerun.logits(copies)[:, 0].log_softmax(-1)
                divergences = torch.stack([divergence(clean, other), divergence(other, clean)], 1)
                return torch.cat([divergences, clean[tokens] - other[:, tokens]], 1)

            found.append(batches.map(run, torch.tensor(group), length - start))
    forth, back, drop, *of_others = map(short, torch.cat(found).unbind(1))
    return {"orig||masked": forth, "masked||orig": back, "drop": drop, "drop, others": of_others}


def divergence(one: Tensor, other: Tensor) -> Tensor:
    return (one.exp() * (one - other)).sum(-1).clamp(min=0)


def short(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.reshape(-1).tolist()]


Place: TypeAlias = tuple[str, str]  # a family and a split


def places_of(name: str) -> dict[Place, tuple[int, int]]:
    """Return how many prompts every family and split has, and how many right answers are wanted."""
    families = [family for family, kind in KINDS.items() if kind != "chats" or "Instruct" in name]
    wanted = WANTED[name]
    return {(family, split): (len(questions(family, split)), wanted[split]) for family in families for split in wanted}


def turns(
    places: Mapping[Place, tuple[int, int]], done: Callable[[tuple[Any, ...]], Any]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield prompts in turns over families and splits: each turn, the next of each that counts, until enough count."""
    numbers = {place: iter(range(available)) for place, (available, _) in places.items()}
    counted = dict.fromkeys(places, 0)
    while numbers:
        for place in [*numbers]:
            for number in numbers[place] if counted[place] < places[place][1] else ():
                yield *place, number, counted[place]
                if "left out" not in done((*place, number)):
                    counted[place] += 1
                    break
            else:
                del numbers[place]


# ------------------------------------------------------------------------------------------------------------- outcomes
def main(
    model: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}.")],
    minutes: Annotated[float, typer.Option(help="How long to measure.")] = 110,
    prompts: Annotated[int | None, typer.Option(help="How many prompts to measure at most.")] = None,
    slower: Annotated[bool, typer.Option(help="Add interventions and slower methods to measured prompts.")] = False,
    heta: Annotated[bool, typer.Option(help="Add literal HETA to other measured prompts of test.")] = False,
) -> None:
    """Measure prompts that have no outcome yet, in turns over the families, and store all outcomes."""
    torch.set_num_threads(1)
    every, begun = Outcomes(f"study-{model}"), time.monotonic()
    part = "-slower" if slower else "-heta" if heta else ""
    outcomes, known = Outcomes(f"study-{model}{part}"), every.read()
    done = outcomes.read() if part else known
    for family, split, number, nth in islice(turns(places_of(model), known.__getitem__), prompts):
        key, own = (family, split, number), partial(measured, model)
        if part:
            if key not in known:
                break
            row = known[key]
            turn = None if "left out" in row else turn_of(family, nth, row["tokens"])
            if slower and turn:
                own = partial(added, model, known=row, settings=SLOWER if turn == EIGHTH else {})
            elif heta and "left out" not in row and heta_alone(model, family, split, nth, row["tokens"]):
                own = partial(added, model, known=row, settings={"heta": SLOWER["heta"]}, intervene=False)
            else:
                continue
        if key not in done:
            if time.monotonic() - begun > 60 * minutes:
                break
            done |= outcomes.measure([key], own, done)
    outcomes.pack()


if __name__ == "__main__":
    typer.run(main)
