"""The columns of every printed table: which metric, on which prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heta_lens.evaluation.reproduce.paper_values import printed
from heta_lens.evaluation.reproduce.table_cells import Measure

BENCHMARKS = ("longra", "tellmewhy", "wikibio")
TITLES = {"longra": "LongRA", "tellmewhy": "TellMeWhy", "wikibio": "WikiBio"}
CURATED = ("curated",)

SUPERVISED = "DSA: of annotated tokens, less all of the distracting segment, as shares of both"
UNSAID = "Sensitivity: noise of 0.01 of the embeddings' size, 5 runs, scores over their maximum; the paper says neither"
CALIBRATED = "Faithfulness: one scale is fitted to all scores, since the paper names none"


@dataclass(frozen=True)
class Recipe:
    """How a table's cells are made. ``turned``: printed rows are what is measured, and columns are methods.

    ``extra`` are options of HETA in this table alone.
    """

    measures: Mapping[str, Measure]
    turned: bool = False
    extra: Mapping[str, Any] | None = None


def _faithfulness() -> Recipe:
    return Recipe(
        {
            f"{TITLES[name]}, {title}": Measure(metric, (name,))
            for name in BENCHMARKS
            for title, metric in (("Soft-NC", "soft_nc"), ("Soft-NS", "soft_ns"))
        }
    )


DSA = Measure("dsa", CURATED, note=SUPERVISED)
SENSITIVITY = Measure("sensitivity", ("tellmewhy",), note=UNSAID)
VOICES = Measure("paraphrase_consistency", ("voices",))
F1 = Measure("f1", CURATED)
TOGETHER = {"batch": 8}  # as the paper has it, so that memory can be compared


def _runtime(table: str) -> Recipe:
    return Recipe(
        {
            "AOPC": Measure("aopc_del", ("long",)),
            "DSA": Measure("dsa", ("long",), note=SUPERVISED),
            "Runtime (s)": _seconds(table),
            "Peak Mem (GB)": Measure("memory", ("long",), note=BESIDE),
        },
        extra=TOGETHER,
    )


def _seconds(table: str) -> Measure:
    prompts = printed()[table].prompts
    return Measure(
        "seconds", ("long",), times=prompts, note=f"Runtime: a prompt's seconds on this machine, times {prompts:,}"
    )


BESIDE = "Memory: the most that tensors held at once beside the model, in GiB, of the first prompt"

RECIPES: Mapping[str, Recipe] = {
    "main": _faithfulness(),
    "qwen": _faithfulness(),
    "dsa": Recipe({"DSA": DSA}),
    "components": Recipe(
        {"Soft-NC": Measure("soft_nc", BENCHMARKS), "Soft-NS": Measure("soft_ns", BENCHMARKS), "DSA": DSA}
    ),
    "beta_gamma": Recipe(
        {
            "Faithfulness": Measure("faithfulness_error_calibrated", ("tellmewhy",), note=CALIBRATED),
            "Sensitivity": SENSITIVITY,
            "Robustness": VOICES,
            "F1 (Alignment)": F1,
        }
    ),
    "robustness": Recipe({"Sensitivity": SENSITIVITY, "Act./Pass. Robustness": VOICES, "F1 (Alignment)": F1}),
    "hessian": Recipe(
        {"Runtime (s)": _seconds("hessian"), "AOPC": Measure("aopc_del", ("long",)), "F1": Measure("f1", ("long",))},
        extra=TOGETHER,
    ),
    "long_context": Recipe(
        {"AOPC": Measure("aopc_del", ("long",)), "Runtime (s)": _seconds("long_context")}, extra=TOGETHER
    ),
    "decoding": Recipe(
        {
            title: Measure(f"grid_{metric}", CURATED, beside={"target tokens per prompt": "grid_tokens"})
            for title, metric in (("Soft-NC", "soft_nc"), ("Soft-NS", "soft_ns"), ("DSA", "dsa"))
        },
        turned=True,
    ),
    "compute_quality": Recipe(
        {
            "AOPC": Measure("aopc_del", ("long",)),
            "DSA": Measure("dsa", ("long",), note=SUPERVISED),
            "Runtime": _seconds("compute_quality"),
            "Memory": Measure("memory_share", ("long",), note=f"{BESIDE}, in units of the full method's"),
            "ε(W)": Measure(
                "edge_gap",
                ("long",),
                note="ε(W): half the difference to the full method's shares within 16 tokens of where windows meet",
            ),
        },
        extra=TOGETHER,
    ),
    "causal_gate": Recipe(
        {
            "Patch-Corr": Measure(
                "patch_correlation",
                BENCHMARKS,
                note="Patch-Corr: 1 for a ranking by the same intervention; the paper's causal tracing is by another",
            ),
            "Intervention@5": Measure(
                "intervention_5",
                BENCHMARKS,
                note="Intervention@5: the five tokens' values are patched together, in nats",
            ),
            "Misattr.": Measure("misattribution", BENCHMARKS),
        }
    ),
    "causal_downstream": Recipe(
        {
            "Causal Pass@5": Measure(
                "causal_pass_5",
                ("counterfactuals",),
                beside={"a random order passes": "causal_pass_5_chance", "unpatched": "causal_pass_5_unpatched"},
            ),
            "CF-AOPC": Measure("counterfactual_aopc", ("counterfactuals",)),
            "Fact EMΔ": Measure("verdict_change", ("claims",)),
            "Tool Hit@1Δ": Measure("tool_change", ("tools",)),
            "Span-F1": Measure("span_f1", CURATED),
            "Decoding Δ%": Measure("few_all", CURATED),
        }
    ),
    **{name: _runtime(name) for name in ("runtime_gptj", "runtime_phi", "runtime_qwen", "runtime_llama")},
    "extended_faithfulness": Recipe(
        {
            "MoRF": Measure("morf", ("longra",), times=100, note="MoRF and LeRF: areas of the drop, times 100"),
            "LeRF": Measure("lerf", ("longra",), times=100),
            "ABPC": Measure("abpc", ("longra",)),
            "AOPC-Del": Measure("aopc_del", ("longra",)),
            "AOPC-Ins": Measure("aopc_ins", ("longra",)),
        }
    ),
}
