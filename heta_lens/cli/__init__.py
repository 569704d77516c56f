"""The command ``heta-lens``, one file per group of commands; each imports what it needs when it is called.

`application` is the command itself and the options that commands share; of `flag_groups`, `loading_flags` say how a
model is loaded, and `worker_flags` who does the work. `comma_lists` is how options of several values are read,
`prompt_arguments` which text or chat is the prompt, `suite_arguments` the options of a suite. `json_output` is what
``--json`` prints, `errors_and_messages` prints lines, warnings, errors and what an interrupt leaves, `failed_prompts`
how many failed and why. `attribute_command` has ``demo`` and ``attribute``, `attribute_dataset_command`
``attribute-dataset``, `estimate_command` ``estimate``, `evaluate_command` ``evaluate`` and ``report``,
`fit_at2_command` ``fit-at2``, `merge_command` ``merge``, `reproduce_command` ``reproduce``, `list_command` ``methods``
and ``metrics``.
"""

from heta_lens.cli import (
    attribute_command,
    attribute_dataset_command,
    estimate_command,
    evaluate_command,
    fit_at2_command,
    list_command,
    merge_command,
    reproduce_command,
)
from heta_lens.cli.application import app

__all__ = [
    "app",
    "attribute_command",
    "attribute_dataset_command",
    "estimate_command",
    "evaluate_command",
    "fit_at2_command",
    "list_command",
    "merge_command",
    "reproduce_command",
]
