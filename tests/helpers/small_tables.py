"""The least effort with which every table can be made."""

from heta_lens.evaluation.reproduce.rows import Effort

SMALL = Effort(
    limit=2,
    heta={"probes": 2, "support": "row"},
    smaller={"rank": 2, "window": 16, "layers": 1},
    shorter={
        "faml": {"steps": 2},
        "reagent": {"max_steps": 2},
        "causal_tracing": {"samples": 1, "layers": 1},
        "integrated_gradients": {"steps": 2},
        "context_cite": {"samples": 4, "held_out": 2},
        "gilot": {"distance": "kl"},
    },
    length=40,
)
