"""Every method by name: HETA first, then the ones it is compared with, then those of other packages."""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from heta_lens._util.caller_warnings import warn
from heta_lens._util.named_objects import is_object_name, named_object
from heta_lens.methods.base import Method
from heta_lens.methods.function_method import as_method

GROUP = "heta_lens.methods"  # of entry points, by which a package adds its own

BUILT_IN = {
    "heta": "heta.heta:Heta",
    "integrated_gradients": "gradient.integrated_gradients:IntegratedGradients",
    "sequential_integrated_gradients": "gradient.sequential_integrated_gradients:SequentialIntegratedGradients",
    "discretized_integrated_gradients": "gradient.discretized_integrated_gradients:DiscretizedIntegratedGradients",
    "input_x_gradient": "gradient.input_x_gradient:InputXGradient",
    "gradient_norm": "gradient.gradient_norm:GradientNorm",
    "grad_cam": "gradient.grad_cam:GradCam",
    "attn_lrp": "gradient.attn_lrp:AttnLrp",
    "gim": "gradient.gim:Gim",
    "jacobian_scope": "gradient.jacobian_scope:JacobianScope",
    "attention_rollout": "attention.attention_rollout:AttentionRollout",
    "attention_last": "attention.attention_last:AttentionLast",
    "attention_norm": "attention.attention_norm:AttentionNorm",
    "at2": "attention.at2:At2",
    "ifr": "attention.ifr:Ifr",
    "flash_trace": "attention.flash_trace:FlashTrace",
    "value_zeroing": "attention.value_zeroing:ValueZeroing",
    "leave_one_out": "perturbation.leave_one_out:LeaveOneOut",
    "lime": "perturbation.lime:Lime",
    "kernel_shap": "perturbation.kernel_shap:KernelShap",
    "context_cite": "perturbation.context_cite:ContextCite",
    "arc_jsd": "perturbation.arc_jsd:ArcJsd",
    "attribot": "perturbation.attribot:AttriBot",
    "shapiq": "perturbation.shapiq:Shapiq",
    "progressive_inference": "hidden_states.progressive_inference:ProgressiveInference",
    "reagent": "perturbation.reagent:Reagent",
    "gilot": "generation.gilot:Gilot",
    "tdd": "hidden_states.tdd:Tdd",
    "depass": "hidden_states.depass:DePass",
    "causal_tracing": "perturbation.causal_tracing:CausalTracing",
    "faml": "gradient.faml:Faml",
    "peering": "hidden_states.peering:Peering",
    "sea_cot": "generation.sea_cot:SeaCot",
    "random": "control.random_scores:RandomScores",
    "recency": "control.recency:Recency",
}
"""Family, file and class. A file is imported when its method is looked up."""

ALIASES = {
    "ig": "integrated_gradients",
    "ixg": "input_x_gradient",
    "grad_x_input": "input_x_gradient",
    "attnlrp": "attn_lrp",
    "rollout": "attention_rollout",
    "loo": "leave_one_out",
    "shap": "kernel_shap",
}
"""Short names that are looked up too; lists have only the full ones."""


class MethodRegistry(Mapping[str, type[Method]]):
    """Method classes by name, each imported when it is looked up; listing the names imports none of them.

    Other packages register a `Method` class, or a function ``f(prediction) -> scores``, as an entry point of the group
    ``heta_lens.methods``. One that cannot be imported, or takes a name that is taken, is left out with a warning.
    Any other can be named as ``module:object``. `ALIASES` are looked up, and not listed.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, type[Method]] = {}

    def __getitem__(self, name: str) -> type[Method]:
        name = ALIASES.get(name, name)
        if name not in self._loaded:
            if name in BUILT_IN:
                file, _, kind = BUILT_IN[name].partition(":")
                self._loaded[name] = getattr(import_module(f"heta_lens.methods.{file}"), kind)
            elif is_object_name(name):
                self._loaded[name] = as_method(named_object(name))
            else:
                self._load_entry_point(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from [*BUILT_IN, *self._entry_points]

    def __len__(self) -> int:
        return len(BUILT_IN) + len(self._entry_points)

    def __contains__(self, name: object) -> bool:
        """Whether there is a method of this name, or alias; one of another package must also load."""
        if name in self._entry_points and name not in self._loaded:
            self._load_entry_point(str(name), missing_ok=True)
        return name in BUILT_IN or name in ALIASES or name in self._entry_points or is_object_name(name)

    def items(self) -> ItemsView[str, type[Method]]:
        """All that load, by name."""
        return {name: self[name] for name in list(self) if name in self}.items()

    def values(self) -> ValuesView[type[Method]]:
        return dict(self.items()).values()

    def family(self, name: str) -> str:
        """What the method reads or changes, as ``gradient`` or ``perturbation``."""
        name = ALIASES.get(name, name)
        return BUILT_IN[name].partition(".")[0] if name in BUILT_IN else self[name].family

    def origin(self, name: str) -> str:
        """The package that a method comes from."""
        if is_object_name(name):
            return name.partition(":")[0]
        return "heta_lens" if name in BUILT_IN or name in ALIASES else _package(self._entry_points[name])

    def aliases(self, name: str) -> list[str]:
        """The short names of a method."""
        return [alias for alias, full in ALIASES.items() if full == name]

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        """Those of other packages whose name is free."""
        free: dict[str, EntryPoint] = {}
        for entry in entry_points(group=GROUP):
            if entry.name in BUILT_IN or entry.name in ALIASES or entry.name in free:
                owner = _package(free[entry.name]) if entry.name in free else "heta_lens"
                warn(f"method {entry.name!r} of the package {_package(entry)} is left out: {owner} has that name")
            else:
                free[entry.name] = entry
        return free

    def _load_entry_point(self, name: str, *, missing_ok: bool = False) -> None:
        """Load a method of another package; drop its name, with a warning, if that fails."""
        entry = self._entry_points[name]
        try:
            self._loaded[name] = as_method(entry.load(), name)
        except Exception as error:  # whatever another package raises
            del self._entry_points[name]
            warn(f"method {name!r} of the package {_package(entry)} cannot be loaded: {type(error).__name__}: {error}")
            if not missing_ok:
                raise KeyError(name) from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]


METHODS = MethodRegistry()
