"""The command ``heta-lens``, one file per group of commands; each imports what it needs when it is called.

`application` is the command itself and the options that commands share. Of `flag_groups`, `loading_flags` say how a
model is loaded, `prompt_arguments` which text or chat is the prompt, `question_arguments` what is explained of it,
`method_arguments` by which methods, `result_files` where it is written to, and `worker_flags` who does the work.
`comma_lists` is how options of several values are read, `suite_arguments` the options of a suite, `patch_arguments` how
tokens or activations are patched. `json_output` is what ``--json`` prints, `quiet_flag` what ``--quiet`` leaves out,
`errors_and_messages` prints lines, warnings, errors and what an interrupt leaves, `failed_prompts` how many failed and
why. `checks_before_loading` refuses what the tokenizer alone can, `prompt_running` has a model read a prompt and
explains it, `saved_results` reads results again, `result_views` shows one, `aligned_scores` several side by side,
`report_tables` those of a report and `option_descriptions` the options of a method; `text_table` is how tables are
printed.

`attribute_command` has ``attribute``, `demo_command` ``demo``, `show_command` ``show``, `compare_command` ``compare``,
`causal_command` ``causal validate``, ``causal patch`` and ``causal heads``, `attribute_dataset_command`
``attribute-dataset``, `estimate_command` ``estimate``, `evaluate_command` ``evaluate`` and ``report``,
`fit_at2_command` ``fit-at2``, `merge_command` ``merge``, `reproduce_command` ``reproduce``, `list_command` ``methods``
and ``metrics``.
"""

from heta_lens.cli import (
    attribute_command,
    attribute_dataset_command,
    causal_command,
    compare_command,
    demo_command,
    estimate_command,
    evaluate_command,
    fit_at2_command,
    list_command,
    merge_command,
    reproduce_command,
    show_command,
)
from heta_lens.cli.application import app

__all__ = [
    "app",
    "attribute_command",
    "attribute_dataset_command",
    "causal_command",
    "compare_command",
    "demo_command",
    "estimate_command",
    "evaluate_command",
    "fit_at2_command",
    "list_command",
    "merge_command",
    "reproduce_command",
    "show_command",
]
