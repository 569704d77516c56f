"""Which tokens made the model say that? HETA token attribution for TransformerLens caches."""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from heta_lens._util.python import provide

if TYPE_CHECKING:  # loaded on first use: `import heta_lens` takes no time
    from heta_lens import causal, data, evaluation, metrics, plots
    from heta_lens._util.presets import PRESETS
    from heta_lens.api import attribute, attribute_batch, attribute_span, estimate
    from heta_lens.attribution import Attribution
    from heta_lens.evaluation.runner import attribute_dataset
    from heta_lens.evaluation.saved_scores import SavedScores, load_scores
    from heta_lens.methods.at2 import fit_at2
    from heta_lens.methods.base import Method
    from heta_lens.methods.cost import estimate_memory
    from heta_lens.methods.heta.fit_weights import fit_weights
    from heta_lens.methods.heta.heta import Heta
    from heta_lens.methods.registry import METHODS, preset
    from heta_lens.model.hooks import lean_names_filter, names_filter
    from heta_lens.model.loading import load_demo_model, load_model
    from heta_lens.plots.comparison import compare
    from heta_lens.prediction.chat import ChatPrompt, chat
    from heta_lens.prediction.prediction import Prediction
    from heta_lens.prediction.target import activation
    from heta_lens.reliance import ContextReliance, context_reliance
    from heta_lens.span_attribution import SpanAttribution
    from heta_lens.web import app

    __version__: str

__all__ = [
    "METHODS",
    "PRESETS",
    "Attribution",
    "ChatPrompt",
    "ContextReliance",
    "Heta",
    "Method",
    "Prediction",
    "SavedScores",
    "SpanAttribution",
    "__version__",
    "activation",
    "app",
    "attribute",
    "attribute_batch",
    "attribute_dataset",
    "attribute_span",
    "causal",
    "chat",
    "compare",
    "context_reliance",
    "data",
    "estimate",
    "estimate_memory",
    "evaluation",
    "fit_at2",
    "fit_weights",
    "lean_names_filter",
    "load_demo_model",
    "load_model",
    "load_scores",
    "metrics",
    "names_filter",
    "plots",
    "preset",
]

_NAMES = {
    "api": ("attribute", "attribute_batch", "attribute_span", "estimate"),
    "attribution": ("Attribution",),
    "evaluation.runner": ("attribute_dataset",),
    "evaluation.saved_scores": ("SavedScores", "load_scores"),
    "methods.at2": ("fit_at2",),
    "methods.base": ("Method",),
    "methods.cost": ("estimate_memory",),
    "methods.heta.fit_weights": ("fit_weights",),
    "methods.heta.heta": ("Heta",),
    "_util.presets": ("PRESETS",),
    "methods.registry": ("METHODS", "preset"),
    "model.hooks": ("lean_names_filter", "names_filter"),
    "model.loading": ("load_demo_model", "load_model"),
    "plots.comparison": ("compare",),
    "prediction.chat": ("ChatPrompt", "chat"),
    "prediction.prediction": ("Prediction",),
    "prediction.target": ("activation",),
    "reliance": ("ContextReliance", "context_reliance"),
    "span_attribution": ("SpanAttribution",),
    "web": ("app",),
}
# Results print, plot and explain themselves by what stands above them.
provide("plots", partial(import_module, "heta_lens.plots"))
provide("contract", partial(import_module, "heta_lens.methods.contract"))

_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("heta-lens")
    elif name in _MODULES:
        value = getattr(import_module(f"heta_lens.{_MODULES[name]}"), name)
    elif name in __all__:
        value = import_module(f"heta_lens.{name}")
    else:
        raise AttributeError(f"module 'heta_lens' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
