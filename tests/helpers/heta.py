"""Known Hessians, functions in the place of models, and every variant of HETA on a short prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from helpers import oracles
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative, signs
from heta_lens.methods.heta.curvature import MatrixFrom, Task
from heta_lens.methods.heta.hessian import EVERYWHERE, HessianOperator, Places, hessian
from heta_lens.methods.heta.windows import Window
from heta_lens.model.batching import Batches
from heta_lens.model.tokenizer import TokenizerWrapper
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Rerun


@dataclass(frozen=True, eq=False)
class Dense(HessianOperator):
    """Products with a matrix that is there."""

    matrix: Tensor

    @property
    def like(self) -> Tensor:
        return self.matrix[:, :, 0, 0]

    def matmat(self, directions: Tensor, places: Places = EVERYWHERE) -> Tensor:
        span = places if isinstance(places, slice) else slice(places, places + 1)
        placed = directions if isinstance(places, slice) else directions[:, None]
        return torch.einsum("iajb,kjb->kia", self.matrix[:, :, span], placed)


def random_hessian(n: int, d: int) -> Tensor:
    matrix = torch.randn(n * d, n * d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (matrix + matrix.T).reshape(n, d, n, d)


@dataclass(frozen=True, eq=False)
class ToyRerun(Rerun):
    """A rerun whose logits are a function of all embeddings."""

    function: Callable[[Tensor], Tensor]

    def logits(self, states: Tensor) -> Tensor:
        before = self.prompt.embeddings[: self.start]
        rows = torch.stack([self.function(torch.cat([before, some])).reshape(-1) for some in states])
        return rows if self.read is None else rows[:, None].expand(-1, len(self.read), -1)


class Toy(Prediction):
    """A prediction whose logits, or whose only logit, are a function of the embeddings."""

    def __init__(self, g: Callable[[Tensor], Tensor], rows: list[list[float]] | Tensor, target: int = 0) -> None:
        embeddings = rows if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.float64)
        prompt = SimpleNamespace(
            embeddings=embeddings,
            ids=torch.arange(len(embeddings)),
            states=lambda _: embeddings,
            batches=lambda *_, **__: Batches(3),
            by_start=lambda positions, *_: [list(positions)],
            adapter=SimpleNamespace(layers=0, first_read=0),
            kept=None,
        )
        for name, value in {"prompt": prompt, "length": len(embeddings), "target": target, "g": g}.items():
            object.__setattr__(self, name, value)

    @property
    def adapter(self) -> Any:
        config = SimpleNamespace(normalization_type=None, positional_embedding_type="standard")
        model = SimpleNamespace(cfg=config)
        return SimpleNamespace(embedding_table=list, vocabulary=0, tokenizer=TokenizerWrapper(None), model=model)

    @property
    def logits(self) -> Tensor:
        return self.rerun().logits(self.embeddings[None])[0]

    @property
    def log_probs(self) -> Tensor:
        return self.logits.log_softmax(-1)

    def objective(self, logits: Tensor, log_probs: Tensor | None = None) -> Tensor:
        return logits[..., 0] if logits.shape[-1] == 1 else super().objective(logits, log_probs)

    def rerun(
        self, start: Any = 0, *, stop: Any = None, layer: int | None = None, read: Sequence[int] | None = None
    ) -> ToyRerun:
        end, read = len(self), None if read is None else tuple(read)
        prompt: Any = self.prompt
        return ToyRerun(prompt, self.objective, start, stop or end, end, layer, read, self.g)


def hessian_from(g: Callable[[Tensor], Tensor], at: Tensor, batch: int = 4) -> MatrixFrom:
    """The Hessian of a function over the embeddings from a place on."""
    return lambda start: hessian(Toy(g, at).rerun(start), Batches(batch))


def task_at(at: Tensor) -> Task:
    """A window over a whole context with these embeddings."""
    every = range(len(at))
    window = Window(Toy(torch.sum, at), every, every, alone=False, layer=None)
    return Task(window, Batches(64))


TARGET, N, PROBES, D = 7, 4, 3, 8

OWN: dict[str, dict[str, Any]] = {  # what each variant needs or should be given on a short prompt
    "full": {"probes": 2},
    "lr": {"rank": 3, "probes": 2},
    "ls": {"layers": 1, "probes": 2},
    "win": {"window": 3, "window_gate": "per_window", "probes": 2},
    "lr+win": {"window": 3, "rank": 3, "probes": 2},
    "ls+win": {"window": 3, "layers": 1, "probes": 2, "window_mode": "chunk", "window_gate": "per_window"},
    "gs": {},
    "gn": {"probes": 2},
    "transition_only": {},
    "hessian_only": {"probes": 2},
    "kl_only": {},
    "no_gate": {"probes": 2},
    "uniform_gate": {"probes": 2},
}


def dense(model: Any, ids: Tensor, target: int = TARGET) -> oracles.Hessian:
    """The Hessian of a token's log-probability by the prompt's embeddings."""
    log_probs = plain_log_probs(model, ids)
    return oracles.dense_hessian(lambda e: log_probs(e)[target], plain_embeddings(model, ids), functional=True)


def oracle_gate(model: Any, ids: Tensor) -> Tensor:
    """The gate by paths through the patterns that the model caches."""
    _, cache = model.run_with_cache(ids)
    layers = range(model.cfg.n_layers)
    patterns, values = ([cache[name, layer][0].double() for layer in layers] for name in ("pattern", "v"))
    outputs = [model.blocks[layer].attn.W_O.detach().double() for layer in layers]
    return oracles.gate_by_paths(patterns, values, outputs, p=1, flow="suffix")


def check_norms(bent: Tensor, close: float, curvature: Callable[..., Tensor]) -> None:
    """``curvature`` by every norm and support, against the dense matrix it should be of."""
    probes = signs(0, PROBES, *bent.shape[:2])
    for options, expected in (
        ({"probes": PROBES}, oracles.block_l1(bent, probes).mean(0)),
        ({"probes": PROBES, "support": "row"}, oracles.row_l1(bent, probes).mean(0)),
        ({"norm": "entrywise"}, oracles.entrywise_block(bent)),
        ({"norm": "entrywise", "support": "row"}, oracles.entrywise_row(bent)),
    ):
        assert relative(curvature(**options), expected) < close, options


def found(model: Any, ids: Tensor, variant: str, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, variant=variant, **OWN[variant] | options)
