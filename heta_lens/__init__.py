"""Which tokens made the model say that? HETA token attribution for TransformerLens caches."""

from heta_lens.attribution import Attribution
from heta_lens.fit import fit_weights
from heta_lens.heta import Heta
from heta_lens.lens import names_filter
from heta_lens.methods import METHODS, attribute, attribute_batch, attribute_span, estimate
from heta_lens.models import load_demo_model
from heta_lens.prediction import Prediction
from heta_lens.span import SpanAttribution

__all__ = [
    "METHODS",
    "Attribution",
    "Heta",
    "Prediction",
    "SpanAttribution",
    "attribute",
    "attribute_batch",
    "attribute_span",
    "estimate",
    "fit_weights",
    "load_demo_model",
    "names_filter",
]
