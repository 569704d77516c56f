"""Prompts to explain, with known facts about the prompts.

`suites` lists the suites by name, and reads prompts from other sources; an `instance` is a prompt. `recall` makes
stories for the demo model, and `families` prompts for language models; `curated` and `datasets` make instances of the
paper's data sets, and `published` of other ones, from `records` of files or of the Hugging Face hub.
"""
