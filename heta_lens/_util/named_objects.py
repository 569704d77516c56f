"""Objects named as ``module:object``, from any file that Python finds, the current folder's included."""

import os
import re
import sys
from importlib import import_module
from operator import attrgetter
from typing import Any

FORM = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*")


def is_object_name(name: object) -> bool:
    return isinstance(name, str) and FORM.fullmatch(name) is not None


def named_object(name: str) -> Any:
    """The object of this name; what is not there, or fails to load, is refused."""
    module, _, path = name.partition(":")
    here = os.getcwd()
    added = [] if here in sys.path else [here]  # which a command does not have, unlike `python -m`
    sys.path[:0] = added
    try:
        return attrgetter(path)(import_module(module))
    except Exception as error:  # whatever somebody's module raises
        raise ValueError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
