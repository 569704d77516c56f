"""What each metric measures, in a sentence: by its name, or by how the names of a family begin."""

from collections.abc import Mapping

DESCRIPTIONS: Mapping[str, str] = {
    "soft_nc": "How much more the prediction changes when tokens with high scores lose most of their embedding "
    "(normalised comprehensiveness).",
    "soft_ns": "How well the prediction stays as it was when tokens with high scores keep most of their embedding "
    "(normalised sufficiency).",
    "hard_nc": "How much the prediction changes without the tokens with the highest scores.",
    "hard_ns": "How well the prediction stays as it was with nothing but the tokens with the highest scores.",
    "aopc_del": "How much probability the target loses, on average, while tokens are removed from the highest score "
    "down.",
    "aopc_ins": "How much probability the target gains, on average, while tokens return from the highest score down.",
    "morf": "How fast the probability of the target falls while tokens are removed from the highest score down.",
    "lerf": "How fast the probability of the target falls while tokens are removed from the lowest score up: a good "
    "order loses little.",
    "abpc": "By how much removing from the highest score down does more than removing from the lowest score up.",
    "counterfactual_aopc": "How well the scores of the original prompt fit the counterfactual: AOPC-Del there, in the "
    "order of the original's scores.",
    "faithfulness_error": "By how much the scores of a random set of tokens, added up, miss what masking the set does.",
    "additivity_gap": "By how much the sum of all scores misses what masking the whole prompt does.",
    "first_is_evidence": "Whether the token with the highest score is in the passage that has the answer.",
    "evidence_mass": "How much of all scores lies on the passage that has the answer.",
    "f1": "How well the tokens with the highest scores match the gold tokens.",
    "span_f1": "How well the tokens with the highest scores match the gold tokens, for a whole answer.",
    "dsa": "How much of the scores lies on the passage that has the answer, less how much lies on the distractor "
    "before it.",
    "pass_5": "Whether a gold token is among the five with the highest scores.",
    "patch_correlation": "Whether tokens with higher scores have larger effects when they are patched.",
    "intervention_5": "How much less likely the target is once the five tokens with the highest scores are patched "
    "together.",
    "mean_effect_5": "How much less likely the target is once one of the five tokens with the highest scores is "
    "patched, on average.",
    "misattribution": "How many of the ten tokens with the highest scores have hardly any effect when patched.",
    "causal_pass_5": "Whether scores follow the evidence: a gold token is among the five highest on a counterfactual "
    "into which the evidence's activations were patched.",
    "sensitivity": "How much the scores change when all embeddings get a little noise.",
    "seed_variance": "How much the scores change with nothing but the random seed of the method.",
    "paraphrase_consistency": "Whether words keep their order by score when the prompt is paraphrased.",
    "weight_randomisation": "Whether the scores depend on what the model has learned: how much they are like those of "
    "the same model with its weights shuffled.",
    "verdict_change": "Whether the model still answers correctly if a claim is true, from the tokens of the story with "
    "the highest scores alone.",
    "tool_change": "Whether a sentence look-up finds the answer from the tokens with the highest scores.",
}


def described(name: str) -> str:
    """The sentence of a metric, or of its family; none for somebody's own metric."""
    families = [family for family in DESCRIPTIONS if name == family or name.startswith(f"{family}_")]
    return DESCRIPTIONS[max(families, key=len)] if families else ""
