"""Methods and presets by name: HETA, rival methods, and methods of further packages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, TypeAlias

from heta_lens._util.files import brief
from heta_lens._util.options import check_choice, check_names, hint, is_object_name, named_object
from heta_lens._util.presets import PRESETS, as_preset, method_and_options
from heta_lens._util.python import plugins
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Method, Scores, Work
from heta_lens.methods.results import checked_scores
from heta_lens.prediction.prediction import Prediction

MethodLike: TypeAlias = str | Method | Callable[[Prediction], Any]
"""A name, a ready method, or a function of a prediction that returns scores."""

GROUP = "heta_lens.methods"  # of entry points, by which another package adds methods

BUILT_IN = {
    "heta": "heta.heta:Heta",
    "integrated_gradients": "integrated_gradients:IntegratedGradients",
    "sequential_integrated_gradients": "integrated_gradients:SequentialIntegratedGradients",
    "discretized_integrated_gradients": "integrated_gradients:DiscretizedIntegratedGradients",
    "gradient_shap": "integrated_gradients:GradientShap",
    "input_x_gradient": "gradients:InputXGradient",
    "gradient_norm": "gradients:GradientNorm",
    "smooth_grad": "gradients:SmoothGrad",
    "grad_cam": "gradients:GradCam",
    "attn_lrp": "relevance:AttnLrp",
    "gim": "relevance:Gim",
    "jacobian_scope": "gradients:JacobianScope",
    "attention_rollout": "attention:AttentionRollout",
    "attention_last": "attention:AttentionLast",
    "attention_norm": "attention:AttentionNorm",
    "at2": "at2:At2",
    "ifr": "information_flow:Ifr",
    "flash_trace": "information_flow:FlashTrace",
    "value_zeroing": "attention:ValueZeroing",
    "leave_one_out": "leave_one_out:LeaveOneOut",
    "lime": "surrogates:Lime",
    "kernel_shap": "surrogates:KernelShap",
    "context_cite": "surrogates:ContextCite",
    "arc_jsd": "leave_one_out:ArcJsd",
    "attribot": "leave_one_out:AttriBot",
    "shapiq": "shapiq:Shapiq",
    "progressive_inference": "hidden_states:ProgressiveInference",
    "reagent": "reagent:Reagent",
    "gilot": "gilot:Gilot",
    "tdd": "hidden_states:Tdd",
    "depass": "depass:DePass",
    "causal_tracing": "causal_tracing:CausalTracing",
    "faml": "integrated_gradients:Faml",
    "peering": "hidden_states:Peering",
    "sea_cot": "sea_cot:SeaCot",
    "random": "controls:RandomScores",
    "recency": "controls:Recency",
}
"""Module and class of each method; the module is imported when the method is looked up."""

ALIASES = {
    "ig": "integrated_gradients",
    "ixg": "input_x_gradient",
    "grad_x_input": "input_x_gradient",
    "attnlrp": "attn_lrp",
    "dpa": "attn_lrp",  # Dual Path Attribution
    "rollout": "attention_rollout",
    "loo": "leave_one_out",
    "shap": "kernel_shap",
}
"""Short names, which can be looked up but are not listed."""


# --------------------------------------------------------------------------------------------------- function as method
@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionMethod(Method):
    """A function as a method: without options, at an unknown cost, and signed if a score is below 0."""

    family: ClassVar = "function"
    cost: ClassVar = "not known"
    signed: ClassVar = False
    function: ClassVar[Callable[[Prediction], Any]]

    def explained(self, predictions: Sequence[Prediction], groups: int = 1) -> list[Attribution]:
        results = super().explained(predictions, groups)
        return [replace(result, signed=bool((result.scores < 0).any())) for result in results]

    def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
        return Work()

    def explain(self, prediction: Prediction) -> Scores:
        scores = type(self).function(prediction)
        return scores if isinstance(scores, Scores) else Scores(checked_scores(self.name, scores, prediction))


def as_method(method: Any, name: str = "") -> type[Method]:
    """Return a method's class unchanged, or a class that wraps a function, under the function's name by default."""
    if isinstance(method, type) and issubclass(method, Method):
        if name and getattr(method, "name", name) != name:
            raise ValueError(f"it is registered as {name!r}, but its class has the name {method.name!r}")
        return method
    if isinstance(method, type) or not callable(method):
        raise TypeError(f"{brief(method)} is neither a heta_lens.Method nor a function (prediction) -> scores")
    name = name or getattr(method, "__name__", type(method).__name__)
    names = {"name": name, "function": staticmethod(method), "__doc__": method.__doc__, "__module__": method.__module__}
    return type(name, (FunctionMethod,), names)


# ------------------------------------------------------------------------------------------------------------ registry
class MethodRegistry(Mapping[str, type[Method]]):
    """Method classes by name; a built-in method is imported on lookup, and further packages when names are listed.

    Other packages register a `Method` class, or a function ``f(prediction) -> scores``, as an entry point of the group
    ``heta_lens.methods``. A method that cannot be imported, or whose name is taken, is left out with a warning.
    Any object can be named as ``module:object``. `ALIASES` are looked up, and not listed.
    """

    @cached_property
    def plugins(self) -> dict[str, tuple[type[Method], str]]:
        """Methods of further packages, each with the package."""
        return plugins(GROUP, (*BUILT_IN, *ALIASES), lambda name, given, package: (as_method(given, name), package))

    def __getitem__(self, name: str) -> type[Method]:
        name = ALIASES.get(name, name)
        if name in BUILT_IN:
            module, _, kind = BUILT_IN[name].partition(":")
            return getattr(import_module(f"heta_lens.methods.{module}"), kind)
        return as_method(named_object(name)) if is_object_name(name) else self.plugins[name][0]

    def __iter__(self) -> Iterator[str]:
        yield from (*BUILT_IN, *self.plugins)

    def __len__(self) -> int:
        return len(BUILT_IN) + len(self.plugins)

    def origin(self, name: str) -> str:
        """Return the package of a method."""
        if is_object_name(name):
            return name.partition(":")[0]
        return "heta_lens" if name in BUILT_IN or name in ALIASES else self.plugins[name][1]

    def aliases(self, name: str) -> list[str]:
        """Return the short names of a method."""
        return [alias for alias, full in ALIASES.items() if full == name]


METHODS = MethodRegistry()


# -------------------------------------------------------------------------------------------------------------- presets
def as_written(method: str, options: Mapping[str, Any]) -> str:
    """Write a preset or method with its options; HETA by its options alone."""
    name, options = as_preset(method, options)
    given = ", ".join(f"{option}={value!r}" for option, value in options.items())
    if name == "heta":
        return given or "HETA with its defaults"
    return f"{name}({given})" if given else name


def preset(name: str, **changes: Any) -> Method:
    """Return the method of a preset with its options; ``changes`` are further or other options.

    ``attribute(cache, method=preset("careful", mask="mean"))`` is ``attribute(cache, method="careful", mask="mean")``.

    - ``fast``: where the evidence is, for one backward pass; not for signs (lxt's README says that LRP is patented and
      free for personal and scientific use)
    - ``careful``: where the evidence is and which way it works, for a forward per token and one backward pass

    The page *Choosing a method* gives the recommendation for each kind of question, and what was measured.
    """
    check_choice("preset", name, PRESETS)
    return method_of(name, changes)


def method_of(method: MethodLike, options: Mapping[str, Any]) -> Method:
    """Return the method or preset of a name, with the options, or the ready method as given."""
    if isinstance(method, type) or not (isinstance(method, str | Method) or callable(method)):
        raise TypeError(
            f"method={brief(method)} must be a name, as 'heta', a ready method, as METHODS['lime'](samples=500), "
            "or a function (prediction) -> scores"
        )
    if not isinstance(method, str):
        if options:
            raise TypeError(f"{', '.join(options)}: options go with a method's name; this one has its own already")
        return method if isinstance(method, Method) else as_method(method)()
    method, options = method_and_options(method, options)
    if method not in METHODS:
        meant = hint(method.lower(), [*PRESETS, *METHODS, *ALIASES])
        raise ValueError(
            f"method={brief(method)} is not in heta_lens.METHODS or PRESETS{meant}: `heta-lens methods` lists them"
        )
    check_names(METHODS[method], options)
    return METHODS[method](**options)
