"""Prompts to explain, with what is known about them.

`suites` lists the suites by name, and `prompt_sources` reads prompts from anywhere else; `instance` is a prompt.
`recall` makes stories for the demo model, from `recall_facts`, `recall_sentences`, `recall_words` and
`recall_wordings`; `recall_story` is one of them, `recall_as_instances` turns them into prompts, `portable_random` draws
the same on every platform. `curated`, `longra`, `tellmewhy` and `wikibio` are the paper's, read by `dataset_files`.
`annotation_protocol` finds the words that tell an answer; `text_layout` keeps track of where named parts of a text are.
"""
