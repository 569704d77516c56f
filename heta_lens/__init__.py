"""Which tokens made the model say that? HETA token attribution for TransformerLens caches."""

from heta_lens.attribution import Attribution
from heta_lens.heta import Heta
from heta_lens.lens import names_filter
from heta_lens.methods import METHODS, attribute
from heta_lens.prediction import Prediction

__all__ = ["METHODS", "Attribution", "Heta", "Prediction", "attribute", "names_filter"]
