"""The memory that a method takes, by formulas from the sizes of a model; the model need not be there."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from heta_lens._util.options import check_at_least, chosen
from heta_lens.methods.base import Method
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.options import CAREFUL
from heta_lens.methods.heta.windows import spans_over
from heta_lens.methods.registry import as_written, method_of
from heta_lens.model.batching import Batches, Sizes, choose_batches
from heta_lens.model.loading import absent_model
from heta_lens.prediction.rerun import TAIL

GIB = 2**30
MOST_AT_ONCE = 2**20
PARTS, WINDOWS = 4, (512, 128)  # proposed: the last quarter of the layers, and windows
SHARED = ("flow", "value_norm", "mask", "kl", "batch")  # options that every variant has


class Step(NamedTuple):
    """The bytes that a step of a method holds at most beside the weights and the cache, with so many copies at once."""

    needed: int
    copies: int


def steps_of(
    method: Method,
    sizes: Sizes,
    tokens: int,
    longest: int,
    batches: Callable[..., Batches],
    most: int = MOST_AT_ONCE,
    predictions: int = 1,
) -> dict[str, Step]:
    """Return what each step holds, in runs of ``longest`` positions of a context of so many tokens.

    ``batches(wanted, longest, …)`` chooses the copies at once, of which there are at most ``most``; every run reads the
    distributions that the method or several predictions need.
    """
    wanted, how = getattr(method, "batch", 1), {"checkpoint": getattr(method, "checkpoint", False)}
    read = max(predictions, method.positions_read(tokens))

    def copies(products: bool, most: int) -> int:
        return max(1, min(most, batches(wanted, longest, products=products, read=read, **how).of(longest)))

    if not isinstance(method, Heta):
        at_once = copies(method.differentiates, most)
        each = sizes.gradient(tokens, tokens) if method.differentiates else sizes.forward(tokens, tokens, read)
        return {"runs": Step(at_once * each, at_once)}
    steps = {"gate": Step(sizes.forward(tokens, tokens), 1)}
    if method.weights[1]:
        at_once = copies(False, tokens)
        steps["information"] = Step(at_once * sizes.forward(longest, tokens, read), at_once)
    if method.estimator is None:
        return steps
    if not method.probed:
        return {**steps, "curvature": Step(sizes.gradient(longest, tokens), 1)}
    if "layers" in method.recipe.reads:
        sizes = sizes._replace(layers=method.layers)
    at_once = copies(True, most)
    graph, product = (needs(longest, tokens, **how) for needs in (sizes.graph, sizes.product))
    products = 0 if method.variant == "gn" else at_once * product  # of a gradient that has no second graph
    return {**steps, "curvature": Step(graph + products, at_once)}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that the tensors of a method take at once, on all devices together; allocators waste some more.

    ``steps`` holds the bytes of every step beside the ``weights`` and the ``cache``, and the copies of the prompt that
    run at once.
    """

    model: str
    method: str
    options: Mapping[str, Any]
    tokens: int
    weights: int
    cache: int
    steps: Mapping[str, Step]
    memory: int
    smaller: tuple["MemoryEstimate", ...] = ()

    @property
    def largest(self) -> str:
        """The step that holds the most."""
        return max(self.steps, key=lambda name: self.steps[name].needed)

    @property
    def needed(self) -> int:
        return self.weights + self.cache + self.steps[self.largest].needed

    @property
    def fits(self) -> bool:
        return self.needed <= self.memory

    @property
    def name(self) -> str:
        """The method or preset, and its options; HETA by its options alone."""
        return as_written(self.method, self.options)

    @property
    def sum(self) -> str:
        """The parts of ``needed``."""
        step = self.steps[self.largest]
        parts = {"weights": self.weights, "cache": self.cache, self.largest: step.needed}
        return " + ".join(f"{name} {size / GIB:.3g}" for name, size in parts.items()) + f" ({step.copies} at once)"

    def __repr__(self) -> str:
        rows = [
            f"  {each.name}: {each.needed / GIB:.3g}{'' if each.fits else ', too much'} = {each.sum}"
            for each in (self, *self.smaller)
        ]
        title = f"{self.model}, {self.tokens:,} tokens; GiB of {self.memory / GIB:.3g}, predicted"
        return "\n".join([title, *rows])


def estimate_memory(
    config: Any,
    tokens: int,
    *,
    memory: float | int,
    method: str | Method = "heta",
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> MemoryEstimate:
    """Predict the memory of a method on a model of which only the configuration is there, and list what takes less.

    Nothing is loaded or run, and no device is needed.

    Args:
        config: a folder with a config.json, a name on the Hugging Face hub, or a configuration of transformers.
        tokens: the length of the prompt.
        memory: the bytes of the devices, all together.
        method: the name of a method or preset, or a ready method.
        dtype: of weights and activations; by default the configuration's.
        revision: a branch, tag or commit of the hub.
        trust_remote_code: run the code that comes with the model.
        options: options of the method.
    """
    check_at_least("tokens", tokens, 2, whole=True)
    check_at_least("memory", memory, 1)
    wanted = method_of(method, options)
    model = absent_model(config, dtype, revision, trust_remote_code=trust_remote_code)
    most = getattr(model.config, "max_position_embeddings", None) or tokens
    if tokens > most:
        raise ValueError(f"tokens={tokens}: this model reads {most} at most")
    sizes = Sizes.of(model.config, model.dtype.itemsize)
    count, cache = sum(each.numel() for each in model.parameters()), sizes.cache(tokens)
    weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    free = max(1, (int(memory) - weights - cache) // 2)  # as `attribute` leaves the other half alone

    def batches(wanted: int | Literal["auto"], queries: int, **how: Any) -> Batches:
        return choose_batches(wanted, sizes, torch.device("meta"), queries, tokens, free=free, **how)

    def estimated(method: Method) -> MemoryEstimate:
        longest = tokens
        if isinstance(method, Heta) and method.recipe.windowed:
            span = max(map(len, spans_over(tokens, method.window, method.overlap)))
            longest = min(span + TAIL, tokens) if method.window_mode == "frozen" else span
        return MemoryEstimate(
            model=f"{type(model).__name__} of {_counted(count)} parameters in {str(model.dtype)[6:]}",
            method=method.name,
            options=chosen(method),
            tokens=tokens,
            weights=weights,
            cache=cache,
            steps=steps_of(method, sizes, tokens, longest, batches),
            memory=int(memory),
        )

    own = estimated(wanted)
    others = [] if own.fits else map(estimated, _smaller(wanted, sizes.layers, tokens))
    smaller = sorted((other for other in others if other.needed < own.needed), key=lambda other: -other.needed)
    return replace(own, smaller=tuple(smaller))


def _counted(parameters: int) -> str:
    if parameters >= 1e8:
        return f"{parameters / 1e9:.2f} billion"
    return f"{parameters / 1e6:.2f} million" if parameters >= 1e5 else f"{parameters:,}"


def _smaller(method: Method, layers: int, tokens: int) -> Iterator[Heta]:
    """Yield settings of HETA that take less memory than the full method."""
    if not isinstance(method, Heta) or method.variant != "full" or not method.weights[0] or method.interactions:
        return
    shared = {name: value for name, value in method.chosen.items() if name in SHARED}
    if not method.checkpoint:
        yield Heta(checkpoint=True, **{name: method.chosen[name] for name in method.effective})
    yield Heta(variant="ls", layers=max(1, layers // PARTS), **shared)
    yield from (Heta(variant="win", window=window, **shared) for window in WINDOWS if window <= tokens // 2)
    yield Heta(**CAREFUL, **{name: value for name, value in shared.items() if name not in ("flow", "value_norm")})
    yield Heta(variant="kl_only", **shared)
