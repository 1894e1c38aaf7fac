"""Which rank of how many this process is."""

from __future__ import annotations

import os
from typing import Mapping, Optional, Tuple

from ._group import torch_distributed
from .errors import Invalid

# What launchers set; a value above 1 says that other ranks exist.
LAUNCHER_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def find_world(rank: Optional[int], world: Optional[int], environment: Mapping[str, str] = os.environ) -> Tuple[int, int]:
    """(rank, world): as given, as torch.distributed says when it is initialised, else 0 of 1."""
    if (rank is None) != (world is None):
        raise Invalid("pass both rank= and world=, or neither")
    if rank is None or world is None:
        rank, world = _found(environment)
    if world < 1 or not 0 <= rank < world:
        raise Invalid(f"rank {rank} of world {world} does not exist: 0 <= rank < world")
    return rank, world


def _found(environment: Mapping[str, str]) -> Tuple[int, int]:
    distributed = torch_distributed()
    if distributed is not None:
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for variable in LAUNCHER_VARIABLES:
        text = environment.get(variable, "")
        if text.isdigit() and int(text) > 1:
            raise Invalid(f"{variable} is {text}, but torch.distributed is not initialised: "
                          "initialise torch.distributed first, or pass rank= and world=")
    return 0, 1
