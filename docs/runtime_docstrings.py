"""For the documentation: methods' docstrings as they are at run time, with the options that they inherit."""

from inspect import getdoc
from typing import Any

import griffe


class RuntimeDocstrings(griffe.Extension):
    """Code is read and not run, but for the docstrings of methods, which their class completes."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.path.startswith("heta_lens.methods."):
            text = getdoc(griffe.dynamic_import(cls.path)) or ""
            cls.docstring = griffe.Docstring(text, parent=cls) if text else None

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if str(attr.annotation) == "ClassVar":  # without a type in brackets it is taken for an option
            attr.labels.discard("instance-attribute")
