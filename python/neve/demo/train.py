"""One life of the training job. Started again after a death, it goes on where the newest surviving checkpoint is.

It tells what it does in JSON lines on stdout, so that whoever started it can time a kill and check the outcome. With
`--plain` it neither saves nor restores: the undisturbed run that the others are compared with.
"""

import argparse
import json
import time

import torch

import neve
from neve.demo import text
from neve.demo.model import Config, Gpt

BATCH = 4


def tell(event: str, **facts) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


class Trainer:
    """Everything that a step changes: weights, moments, schedule, and the two random generators."""

    def __init__(self, seed: int, layers: int):
        torch.manual_seed(seed)
        self.model = Gpt(Config(layers=layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 10))
        self.order = torch.Generator().manual_seed(seed + 1)      # draws the batches
        name, data = text.load()
        self.text_name, self.data = name, torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.step = 0

    def state(self) -> dict:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generators": {"order": self.order.get_state(), "dropout": torch.get_rng_state()},
        }

    def load(self, state: dict) -> None:
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.order.set_state(state["generators"]["order"])
        torch.set_rng_state(state["generators"]["dropout"])

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        length = self.model.config.context
        starts = torch.randint(len(self.data) - length - 1, (BATCH,), generator=self.order)
        rows = torch.stack([self.data[s:s + length + 1] for s in starts.tolist()]).long()
        return rows[:, :-1], rows[:, 1:]

    def train(self) -> float:
        loss = self.model(*self.batch())
        tell("forward", step=self.step + 1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        tell("backward", step=self.step + 1)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return loss.item()


def tensor_bytes(state) -> int:
    if isinstance(state, torch.Tensor):
        return state.nbytes
    if isinstance(state, dict):
        return sum(map(tensor_bytes, state.values()))
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description="train until --steps, saving at every step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--tier", action="append", default=[], help="a tier string; repeat for more")
    parser.add_argument("--plain", action="store_true", help="neither restore nor save")
    parser.add_argument("--final", help="torch.save the final state there")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=Config.layers)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)           # another number would sum in another order
    torch.use_deterministic_algorithms(True)
    trainer = Trainer(options.seed, options.layers)
    tell("built", bytes=tensor_bytes(trainer.model.state_dict()), text=trainer.text_name)

    checkpointer = None if options.plain else neve.Checkpointer("gpt", tiers=options.tier)
    if checkpointer is not None:
        began = time.perf_counter()
        try:
            found = checkpointer.restore()
        except neve.NotFound:
            tell("fresh")
        else:
            seconds = time.perf_counter() - began
            trainer.load(found.state)
            tell("restored", step=found.step, sources=found.sources, seconds=seconds)

    while trainer.step < options.steps:
        began = time.perf_counter()
        tell("begin", step=trainer.step + 1)
        loss = trainer.train()
        trained = time.perf_counter()
        stall = 0.0
        if checkpointer is not None:
            state = trainer.state()
            before = time.perf_counter()
            checkpointer.save(trainer.step, state)
            stall = time.perf_counter() - before
        tell("saved", step=trainer.step, loss=loss.hex(), step_seconds=trained - began, stall_seconds=stall)

    if options.final:
        torch.save(trainer.state(), options.final)
    tell("trained", bytes=tensor_bytes(trainer.state()))
    if checkpointer is not None:
        began = time.perf_counter()
        checkpointer.close()
        tell("closed", seconds=time.perf_counter() - began)


if __name__ == "__main__":
    main()
