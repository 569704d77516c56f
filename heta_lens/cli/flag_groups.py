"""Flags that several commands share: a command gets those that were used together, as one argument."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, TypeAlias, get_args

Command: TypeAlias = Callable[..., None]


def with_flags(flags: Mapping[str, Any], into: str) -> Callable[[Command], Command]:
    """Decorates a command: its argument of the name ``into`` gets the values of the flags that were used."""
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_unused(kind), annotation=kind) for name, kind in flags.items()
    ]

    def decorate(run: Command) -> Command:
        own = [
            parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for parameter in signature(run, eval_str=True).parameters.values()
            if parameter.name != into
        ]

        @wraps(run)
        def with_these(**given: Any) -> None:
            values = {name: given.pop(name) for name in flags}
            run(
                **given,
                **{into: {name: value for name, value in values.items() if value is not None and value is not False}},
            )

        parameters = [*own, *added]
        vars(with_these)["__signature__"] = signature(run).replace(parameters=parameters)
        with_these.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_these

    return decorate


def _unused(kind: Annotated[Any, ...]) -> Any:
    """The value of a flag that was not used."""
    return False if get_args(kind)[0] is bool else None
