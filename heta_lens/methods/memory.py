"""Run code on tensors without data, to see how many bytes it would hold; it takes no memory and little time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import Any

import torch
from einops import repeat
from torch.fx.experimental import _config

from heta_lens._util.options import check_at_least, check_names, written
from heta_lens._util.work import Allocations
from heta_lens.methods.heta.cost import counts, longest_run, product_batches
from heta_lens.methods.heta.curvature import OVERSAMPLING
from heta_lens.methods.heta.hessian import differentiate, gauss_newton, hessian, uncounted
from heta_lens.methods.heta.heta import Heta, flow_gate
from heta_lens.methods.heta.options import CAREFUL
from heta_lens.methods.heta.windows import Window
from heta_lens.methods.registry import named
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.model.hooks import EMBED, lean_names_filter, wrapped
from heta_lens.model.loading import absent_model, weights
from heta_lens.prediction.activations import Activations
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Prompt

aten = torch.ops.aten


class DryRun(Allocations):
    """Counts what code holds that runs on the ``meta`` device, where tensors have shapes and no numbers.

    What such code asks of its tensors is answered: every number is 0, every condition holds, any two tensors are equal.
    So the checks that it makes on the way pass, and it does what it does when all is well.
    """

    def __enter__(self) -> "DryRun":
        self._stack = ExitStack()
        without_data: Any = _config  # which its stubs do not know
        self._stack.enter_context(without_data.patch(meta_nonzero_assume_all_nonzero=True))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return args[0].dtype == torch.bool
        if func is aten.equal.default and args[0].is_meta:
            return True
        return super().__torch_dispatch__(func, types, args, kwargs)

    def peak(self) -> int:
        """The most bytes held at once since this was asked last."""
        most, self.most = self.most, self.now
        return most


# --------------------------------------------------------------------------------------------------- memory by dry run
# How much memory HETA takes on a model that is not there: every step runs once, on tensors without data.


GIB = 2**30
LOW_RANKS = 2  # times the rank: the directions that a low rank is found with, and their products
FEW = 3  # copies that are run; more add as much each
PARTS, WINDOWS = 4, (512, 128)  # that are proposed: the last quarter of the layers, and windows
SHARED = ("flow", "value_norm", "mask", "kl", "batch")  # options that every variant has


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that HETA's tensors take at once, on all devices together; what the allocator wastes comes on top.

    ``steps`` are the most that each of them holds beside the ``weights`` and the ``cache``, with ``batches`` copies of
    the prompt at once. ``forwards`` and ``hvps`` are how many runs and Hessian–vector products it takes.
    """

    model: str
    options: dict[str, Any]
    tokens: int
    weights: int
    cache: int
    steps: Mapping[str, int]
    batches: Mapping[str, int]
    memory: int
    forwards: int
    hvps: int
    smaller: tuple["MemoryEstimate", ...] = ()

    @property
    def largest(self) -> str:
        """The step that holds the most."""
        return max(self.steps, key=self.steps.__getitem__)

    @property
    def needed(self) -> int:
        return self.weights + self.cache + self.steps[self.largest]

    @property
    def fits(self) -> bool:
        return self.needed <= self.memory

    @property
    def name(self) -> str:
        name, options = named("heta", self.options)
        return written(options, "" if name == "heta" else name)

    @property
    def sum(self) -> str:
        """What ``needed`` is made of."""
        copies = self.batches.get(self.largest)
        at_once = f" ({copies} at once)" if copies else ""
        parts = {"weights": self.weights, "cache": self.cache, self.largest: self.steps[self.largest]}
        return " + ".join(f"{name} {size / GIB:.3g}" for name, size in parts.items()) + at_once

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
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> MemoryEstimate:
    """How much memory would HETA take, on a model of which only the configuration is there, and what takes less?

    Nothing is loaded, and no device is needed: the program itself runs on tensors that have no numbers.

    Args:
        config: a folder with a config.json, a name on the Hugging Face hub, or a configuration of transformers.
        tokens: the length of the prompt.
        memory: how many bytes the devices have, all together.
        dtype: of weights and activations; by default what the configuration says.
        revision: a branch, tag or commit of the hub.
        trust_remote_code: run the code that comes with the model.
        options: those of `Heta`.
    """
    check_at_least("tokens", tokens, 2, whole=True)
    check_at_least("memory", memory, 1)
    check_names(Heta, options)
    method = Heta(**options)
    adapter = ModelAdapter(absent_model(config, dtype, revision, trust_remote_code=trust_remote_code))
    longest = getattr(wrapped(adapter.model).config, "max_position_embeddings", None) or tokens
    if tokens > longest:
        raise ValueError(f"tokens={tokens}: this model reads {longest} at most")
    with DryRun() as held:
        prediction = prediction_without_data(adapter, tokens)
        cache = held.now
        shared = {"caching": held.peak() - cache}
        with prediction.running():
            method.check(prediction)
            if method.recipe.gate == "flow":
                flow_gate(method, prediction)
                shared["gate"] = held.peak() - cache
            meter = MemoryMeter(held, prediction, cache, shared, int(memory))
            own = meter.estimated(method)
            others = [] if own.fits else [meter.estimated(other) for other in _smaller(method, prediction)]
    smaller = sorted((other for other in others if other.needed < own.needed), key=lambda other: -other.needed)
    return replace(own, smaller=tuple(smaller))


def prediction_without_data(adapter: ModelAdapter, tokens: int) -> Prediction:
    """Of a lean cache of a prompt of so many tokens."""
    ids = torch.zeros(1, tokens, dtype=torch.long, device=adapter.device)
    try:
        with torch.no_grad():
            cache = adapter.cache(ids, lean_names_filter)
    except RuntimeError as error:
        name = str(adapter.dtype).removeprefix("torch.")
        raise ValueError(f"this model cannot run without data in {name} ({error}): try another dtype") from error
    cached = Activations({name: activation[0] for name, activation in cache.items()})
    embeddings = cached[EMBED].float()
    log_probs = torch.zeros(adapter.vocabulary, device=adapter.device)
    return Prediction(Prompt(adapter, cached, ids[0], embeddings, {tokens: log_probs}, {}, (), 0.0), tokens, 0)


@dataclass(frozen=True, eq=False)
class MemoryMeter:
    """Runs steps of HETA on a prediction without data; what the ``cache`` and the ``shared`` steps hold is known."""

    held: DryRun
    prediction: Prediction
    cache: int
    shared: Mapping[str, int]
    memory: int

    @cached_property
    def weights(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in weights(self.prediction.adapter.model))

    @cached_property
    def model(self) -> str:
        adapter = self.prediction.adapter
        inner = wrapped(adapter.model)
        # Of a matrix that was taken apart the parts are parameters too, but there is one storage.
        count = sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in weights(adapter.model))
        large = f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.2f} million"
        named = large if count >= 1e5 else f"{count:,}"
        return f"{type(inner).__name__} of {named} parameters in {str(adapter.dtype).split('.')[-1]}"

    def estimated(self, method: Heta) -> MemoryEstimate:
        fresh = replace(self.prediction.prompt, prefix=None, clean_streams={})  # without what was run before
        prediction = replace(self.prediction, prompt=fresh)
        windows, prompt = _different(method.windows(prediction), method.overlap), prediction.prompt
        free = max(1, (self.memory - self.weights - self.cache) // 2)  # as `attribute` leaves the other half alone
        longest, steps, batches = longest_run(method, windows), dict(self.shared), dict[str, int]()
        work = counts(method, [prediction])
        if method.weights[1]:
            batches["information"] = min(prompt.batches(method.batch, longest, free=free).of(longest), len(prediction))
            steps["information"] = self._most(_run_masked, windows, batches["information"])
        if method.estimator is not None:
            batches["curvature"] = min(product_batches(method, windows, free).of(longest), max(1, work.hvps))
            steps["curvature"] = self._most(partial(_take_products, method), windows, batches["curvature"])
        return MemoryEstimate(
            model=self.model,
            options=method.chosen,
            tokens=len(prediction),
            weights=self.weights,
            cache=self.cache,
            steps=steps,
            batches=batches,
            memory=self.memory,
            forwards=work.forwards,
            hvps=work.hvps,
        )

    def _most(self, run: Callable[[Window, int], object], windows: Sequence[Window], copies: int) -> int:
        """The most that any of these windows' runs holds; of many copies, by what the third adds to two."""

        def most(few: int) -> int:
            self.held.peak()
            for window in windows:
                run(window, few)
            return self.held.peak() - self.cache

        if copies <= FEW:
            return most(copies)
        third = most(FEW)
        return third + (copies - FEW) * (third - most(FEW - 1))


def _different(windows: Sequence[Window], overlap: float | int) -> list[Window]:
    """The first window, one in the middle, and all near the end: some of these run together with what follows them."""
    last = range(len(windows))[-ceil(1 / (1 - overlap)) - 1 :]
    return [windows[place] for place in sorted({0, len(windows) // 2, *last})]


@torch.no_grad()
def _run_masked(window: Window, copies: int) -> None:
    """So many masked copies at once."""
    rerun = window.prediction.rerun(window.start, stop=window.stop)
    rerun.log_probs(repeat(rerun.states, "pos d -> copy pos d", copy=copies))


def _take_products(method: Heta, window: Window, copies: int) -> None:
    """A gradient graph, and so many products through it at once; or the gradient alone."""
    if not method.probed:
        differentiate(window.rerun(), again=False)
        return
    if method.variant == "gn":
        operator = gauss_newton(window.rerun(), Batches(copies), uncounted)
    else:
        operator = hessian(window.rerun(), Batches(copies), uncounted, checkpoint=method.checkpoint)
    kept = LOW_RANKS * (method.rank + OVERSAMPLING) if "rank" in method.recipe.reads else 0
    _subspace = operator.like.new_empty(kept, *operator.like.shape)
    operator.matmat(operator.like.new_zeros(copies, *operator.like.shape))


def _smaller(method: Heta, prediction: Prediction) -> Iterator[Heta]:
    """Options that take less memory, for the method as it is."""
    if method.variant != "full" or not method.weights[0] or method.interactions:
        return
    shared = {name: value for name, value in method.chosen.items() if name in SHARED}
    if not method.checkpoint:
        yield Heta(checkpoint=True, **{name: method.chosen[name] for name in method.effective})
    yield Heta(variant="ls", layers=max(1, prediction.adapter.layers // PARTS), **shared)
    yield from (Heta(variant="win", window=window, **shared) for window in WINDOWS if window <= len(prediction) // 2)
    yield Heta(**CAREFUL, **{name: value for name, value in shared.items() if name not in ("flow", "value_norm")})
    yield Heta(variant="kl_only", **shared)
