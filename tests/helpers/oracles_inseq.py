"""Context reliance next to inseq's ``attribute-context``, which needs an environment of its own: ``make oracles``.

This file is also run by that environment's interpreter, given a place of files: texts go in, numbers come out.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TOLERANCE = 1e-4
ASKED = [
    {
        "context": "George was sick yesterday.",
        "current": " His colleagues asked him",
        "answer": " if he felt better now.",
    },
    {
        "context": "The red key opens the gate.",
        "current": " The blue key opens the",
        "answer": " gate, and the red key",
    },
]


def ours(folder: Path, asked: dict[str, str]) -> dict[str, Any]:
    import heta_lens

    model = heta_lens.load_model(folder, dtype="float64")
    ids = model.to_tokens(asked["context"] + asked["current"], prepend_bos=False)
    stop = model.to_tokens(asked["context"], prepend_bos=False).shape[1]
    found = heta_lens.context_reliance(
        model, ids, (0, stop), asked["answer"], method="gradient_norm", scale="prob", threshold=1.0
    )
    return {
        "divergences": found.divergences.tolist(),
        "positions": found.positions,
        "sources": [step.scores[:stop].tolist() for step in found.steps],
        "start": found.start,
    }


def theirs(folder: str, asked: dict[str, str]) -> dict[str, Any]:
    import inseq  # pyright: ignore[reportMissingImports]
    from inseq.commands.attribute_context.attribute_context import attribute_context_with_model  # pyright: ignore[reportMissingImports]
    from inseq.commands.attribute_context.attribute_context_args import AttributeContextArgs  # pyright: ignore[reportMissingImports]
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config: Any = AutoConfig.from_pretrained(folder)
    for name, value in (getattr(config, "rope_parameters", None) or {}).items():
        if name == "rope_theta":  # older versions read it under its former name
            config.rope_theta = value
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, attn_implementation="eager").double().eval()
    explainer = inseq.load_model(model, "saliency", tokenizer=PreTrainedTokenizerFast.from_pretrained(folder))
    given = AttributeContextArgs(
        model_name_or_path=folder,
        input_context_text=asked["context"],
        input_current_text=asked["current"],
        input_template="{context}{current}",
        output_current_text=asked["answer"],
        decoder_input_output_separator="",
        attribution_method="saliency",
        attributed_fn="contrast_prob_diff",
        show_viz=False,
    )
    found = attribute_context_with_model(given, explainer)
    return {
        "divergences": found.cti_scores,
        "places": [step.cti_idx for step in found.cci_scores],
        "sources": [step.input_context_scores for step in found.cci_scores],
    }


def compare(python: str, folder: str) -> bool:
    worst = 0.0
    for asked in ASKED:
        found = ours(Path(folder), asked)
        with tempfile.TemporaryDirectory() as place:
            written = Path(place, "found.json")
            subprocess.run([python, "-W", "ignore", __file__, folder, json.dumps(asked), str(written)], check=True)
            wanted = json.loads(written.read_text())
        order = sorted(range(len(wanted["places"])), key=wanted["places"].__getitem__)
        places = [wanted["places"][at] + found["start"] for at in order]
        if places != [*found["positions"]]:
            sys.stdout.write(f"inseq explains {places}, and heta_lens {found['positions']}\n")
            return False
        rows = [(found["divergences"], wanted["divergences"])]
        rows += [(row, wanted["sources"][at]) for row, at in zip(found["sources"], order, strict=True)]
        for one, other in rows:
            most = max(map(abs, other))
            worst = max(worst, *(abs(a - b) / most for a, b in zip(one, other, strict=True)))
    sys.stdout.write(f"context reliance: differs from inseq by {worst:.1e} of the largest number\n")
    return worst < TOLERANCE


if __name__ == "__main__":
    first, second, *others = sys.argv[1:]
    if others:
        Path(others[0]).write_text(json.dumps(theirs(first, json.loads(second))))
    else:
        sys.exit(not compare(first, second))
