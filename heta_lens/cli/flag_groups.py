"""Flags that several commands share: a command gets those that were used together, as one argument."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, TypeAlias, get_args

Command: TypeAlias = Callable[..., None]


def with_flags(flags: Mapping[str, Any], into: str) -> Callable[[Command], Command]:
    """Decorates a command: its argument of the name ``into`` gets the values of the flags that were used."""

    def decorate(run: Command) -> Command:
        def with_these(**given: Any) -> None:
            values = {name: given.pop(name) for name in flags}
            used = {name: value for name, value in values.items() if value is not None and value is not False}
            run(**given, **{into: used})

        return with_parameters(with_these, run, flags, without=into)

    return decorate


def with_parameters(wrapper: Command, run: Command, flags: Mapping[str, Any], without: str = "") -> Command:
    """The wrapper with the parameters of the command that it runs, ``without`` one, and with these flags."""
    own = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in signature(run, eval_str=True).parameters.values()
        if parameter.name != without
    ]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_unused(kind), annotation=kind) for name, kind in flags.items()
    ]
    parameters = [*own, *added]
    wrapper = wraps(run)(wrapper)
    vars(wrapper)["__signature__"] = signature(run).replace(parameters=parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _unused(kind: Annotated[Any, ...]) -> Any:
    """The value of a flag that was not used."""
    return False if get_args(kind)[0] is bool else None
