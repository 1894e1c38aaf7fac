"""An FSDP2 training script written after torch's documentation of distributed checkpoints. The lines that end in `# neve` are all that
was changed to keep its checkpoints with neve. Run by torchrun: `fsdp2_script.py save|load FOLDER`.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

import neve.dcp  # neve


class AppState(Stateful):
    """Tells distributed checkpoints how to get and set the state of a model and its optimizer."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        return {"model": model_state, "optim": optimizer_state}

    def load_state_dict(self, state_dict):
        set_state_dict(self.model, self.optimizer, model_state_dict=state_dict["model"], optim_state_dict=state_dict["optim"])


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(16, 14)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(14, 8)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def build(seed):
    torch.manual_seed(seed)
    model = ToyModel()
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def digest(model, optimizer):
    """The sum and the bits of everything, the same on every number of ranks."""
    state = AppState(model, optimizer).state_dict()
    tensors = [*state["model"].values(), *(part for entry in state["optim"]["state"].values() for part in entry.values())]
    whole = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    return hash(tuple(number for tensor in whole for number in tensor.flatten().tolist()))


def save(folder):
    model, optimizer = build(0)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(8, 16)).sum().backward()
        optimizer.step()
    state_dict = {"app": AppState(model, optimizer), "epoch": 3}
    dcp.save(state_dict, checkpoint_id=folder, storage_writer=neve.dcp.StorageWriter())  # neve
    return digest(model, optimizer)


def load(folder):
    model, optimizer = build(1)
    state_dict = {"app": AppState(model, optimizer), "epoch": 0}
    dcp.load(state_dict, checkpoint_id=folder, storage_reader=neve.dcp.StorageReader())  # neve
    assert state_dict["epoch"] == 3
    made = digest(model, optimizer)
    optimizer.zero_grad()
    model(torch.rand(8, 16)).sum().backward()   # and on it goes
    optimizer.step()
    return made


if __name__ == "__main__":
    dist.init_process_group("gloo")
    made = {"save": save, "load": load}[sys.argv[1]](sys.argv[2])
    if dist.get_rank() == 0:
        print(made)
    dist.destroy_process_group()
