"""Shared by all tests."""

import torch

torch.set_num_threads(1)  # threads only slow models of this size down
