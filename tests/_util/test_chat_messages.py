"""Which message wrote each token of a context."""

import torch

from helpers.attributions import of_chat
from heta_lens._util.chat_messages import Messages


def test_tokens_belong_to_messages_or_to_the_template() -> None:
    messages = of_chat().messages
    assert messages is not None
    assert messages.template.tolist() == [True, False, False, True, False, True]
    assert messages.names == ["template", "user", "user", "template", "assistant", "template"]
    assert messages.rows([0]) == [1, 2] and messages.rows([-1]) == [0, 3, 5] and messages.rows([0, 1]) == [1, 2, 4]
    assert messages.rows([2]) == []


def test_a_message_says_what_stands_in_its_places() -> None:
    made = of_chat()
    assert made.messages is not None
    assert [made.messages.content(number, made.text) for number in range(3)] == ["The cat", "sat", ""]
    twice = Messages(("tool",), torch.tensor([[0, 0, 2], [0, 3, 5]]), torch.tensor([0]))
    assert twice.content(0, "ab cd") == "ab\ncd"


def test_some_of_the_tokens_keep_their_messages() -> None:
    messages = of_chat().messages
    assert messages is not None
    kept = messages.kept(torch.tensor([False, True, False, True, True, False]))
    assert kept.owners.tolist() == [0, -1, 1]
    assert (kept.roles, kept.places) == (messages.roles, messages.places)


def test_they_are_made_of_what_a_file_holds() -> None:
    messages = of_chat().messages
    assert messages is not None
    found = Messages.of(vars(messages))
    assert found is not None and found is not messages
    assert (found.roles, found.owners) == (messages.roles, messages.owners)
    assert Messages.of(messages) is messages
    assert Messages.of(None) is None
