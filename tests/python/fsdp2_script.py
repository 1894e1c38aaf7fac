"""An FSDP2 training script written after torch's documentation of distributed checkpoints. The lines that end in `# neve` are all that
was changed to keep its checkpoints with neve. Run by torchrun: `fsdp2_script.py save|load|train FOLDER`.
"""

import os
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


def train_step(model, optimizer, step):
    torch.manual_seed(step * 1000 + dist.get_rank())
    optimizer.zero_grad()
    model(torch.rand(8, 16)).sum().backward()
    optimizer.step()


def save_checkpoint(folder, step, model, optimizer):
    state_dict = {"app": AppState(model, optimizer), "epoch": step}
    dcp.save(state_dict, checkpoint_id=f"{folder}/step-{step}", storage_writer=neve.dcp.StorageWriter())  # neve


def load_checkpoint(folder, model, optimizer):
    state_dict = {"app": AppState(model, optimizer), "epoch": 0}
    dcp.load(state_dict, checkpoint_id=folder, storage_reader=neve.dcp.StorageReader())  # neve
    return state_dict["epoch"]


def save(folder):
    model, optimizer = build(0)
    for step in range(2):
        train_step(model, optimizer, step)
    save_checkpoint(folder, 3, model, optimizer)
    return digest(model, optimizer)


def load(folder):
    model, optimizer = build(1)
    assert load_checkpoint(folder, model, optimizer) == 3
    made = digest(model, optimizer)
    train_step(model, optimizer, 4)   # and on it goes
    return made


def train(folder):
    """Goes on from the last checkpoint, if there is one, and on and on until somebody ends it. Tells what it has restored and saved."""
    model, optimizer = build(2)
    step = 0
    if os.path.exists(folder):
        step = load_checkpoint(folder, model, optimizer)
        tell("restored", step, digest(model, optimizer))
    while True:
        step += 1
        train_step(model, optimizer, step)
        save_checkpoint(folder, step, model, optimizer)
        tell("saved", step, digest(model, optimizer))


def tell(*words):
    if dist.get_rank() == 0:
        print(*words, flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    tell({"save": save, "load": load, "train": train}[sys.argv[1]](sys.argv[2]))
    dist.barrier()   # a rank that ends while others still talk to it makes gloo end them
    dist.destroy_process_group()
