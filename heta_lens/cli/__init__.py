"""The command ``heta-lens``, one file per group of commands; each imports what it needs when it is called.

`application` is the command itself and the options that commands share, `loading_flags` those that say how a model is
loaded, `comma_lists` how options of several values are read, `prompt_arguments` which text or chat is the prompt.
`errors_and_messages` prints lines, warnings, errors and what an interrupt leaves. `attribute_command` has ``demo`` and
``attribute``, `estimate_command` ``estimate``, `evaluate_command` ``evaluate`` and ``report``, `reproduce_command`
``reproduce``, `list_command` ``methods`` and ``metrics``.
"""

from heta_lens.cli import attribute_command, estimate_command, evaluate_command, list_command, reproduce_command
from heta_lens.cli.application import app

__all__ = ["app", "attribute_command", "estimate_command", "evaluate_command", "list_command", "reproduce_command"]
