"""What heta_lens needs of a model, whichever kind it is."""

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

KeysValues: TypeAlias = list[tuple[Tensor, Tensor]]  # one pair per layer, laid out as this kind of model keeps them


@runtime_checkable
class Model(Protocol):
    """What heta_lens needs of a model: both HookedTransformer and TransformerBridge have all of it.

    Their submodules ``embed`` and ``blocks`` too, but a structural check cannot see the submodules of a torch module.
    """

    cfg: Any
    tokenizer: Any
    training: bool

    @property
    def hook_dict(self) -> dict[str, Any]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


def wrapped(model: Any) -> Any:
    """The Hugging Face model inside a bridge, whose root is not one of the bridge's modules; else the model itself."""
    return getattr(model, "original_model", model)


def bare(module: Any) -> Any:
    """The Hugging Face module inside a module of a bridge, which no hook of TransformerLens watches; else itself."""
    return getattr(module, "original_component", module)
