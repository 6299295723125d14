"""What a run notes of its machine: enough to know why two runs drifted apart."""

import platform

import torch

from fedhet.config import build_config
from fedhet.records.environment import environment


def test_the_processor_is_named_with_the_instructions_that_round():
    said = environment(build_config({"method": "fd"}))["processor"].split(", ")
    assert said[0] == platform.machine()
    assert said[-1] == torch.backends.cpu.get_cpu_capability()
    assert len(said) == len(set(said)) > 1
