"""Prompts to explain, with what is known about them."""
