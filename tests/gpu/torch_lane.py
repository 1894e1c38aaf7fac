"""torch on a real GPU: saves that come back, rounds in which a torn copy would show, and the rows. For tests/gpu/check.py.

    torch_lane.py rounds|rows FOLDER

The last line is one JSON object. Exit 0: all that was compared was the same.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

import neve

GIB = 1 << 30
DEVICE = "cuda"
LARGE = 64 << 20   # elements of the tensor that takes longest to copy


def say(text: str) -> None:
    print(text, flush=True)


# ---- What comes back ----

def roundtrip(folder: Path) -> None:
    """Every dtype, strides, shared memory, many small ones, a model and its optimizer, restored in place on the device."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.Flatten(), torch.nn.LazyLinear(10)).to(DEVICE)
    model(torch.rand(4, 3, 16, 16, device=DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.rand(4, 3, 16, 16, device=DEVICE)).sum().backward()
        optimizer.step()

    step()
    base = torch.arange(1000, device=DEVICE, dtype=torch.float64)
    state = {
        "model": model, "optimizer": optimizer, "base": base, "view": base[100:200], "turned": torch.rand(64, 48, device=DEVICE).t(),
        "last": torch.rand(2, 8, 4, 4, device=DEVICE).to(memory_format=torch.channels_last), "host": torch.rand(10),
        "small": [torch.full((i % 300 + 1,), i, device=DEVICE, dtype=torch.int32) for i in range(2000)],
        "half": torch.rand(1001, device=DEVICE).half(), "bf16": torch.rand(77, device=DEVICE).bfloat16(),
        "f8": torch.rand(513, device=DEVICE).to(torch.float8_e4m3fn), "empty": torch.empty(0, 3, device=DEVICE),
    }
    plain = {name: value for name, value in state.items() if name not in ("model", "optimizer")}
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = {name: ([part.clone() for part in value] if isinstance(value, list) else value.clone()) for name, value in plain.items()}
    with neve.Checkpointer(folder / "roundtrip") as ckpt:
        ckpt.save(1, state).wait(timeout=60)
        step()
        for value in plain.values():
            for part in value if isinstance(value, list) else [value]:
                part.zero_() if part.dtype != torch.float8_e4m3fn else part.view(torch.uint8).zero_()
        ckpt.restore(into=state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, kept[name]), name
    for name, value in plain.items():
        pairs = zip(value, wanted[name]) if isinstance(value, list) else [(value, wanted[name])]
        assert all(torch.equal(a.view(torch.uint8) if a.dtype == torch.float8_e4m3fn else a,
                               b.view(torch.uint8) if b.dtype == torch.float8_e4m3fn else b) for a, b in pairs), name


# ---- Torn copies: each round's save holds one number, whatever comes after the fence ----

class Rounds:
    """A state of one large tensor, a strided one and many small ones, all of the round's number."""

    def __init__(self, folder: Path, name: str):
        self.weight = torch.nn.Parameter(torch.zeros(LARGE, device=DEVICE))
        self.small = [torch.nn.Parameter(torch.zeros(100 + i, device=DEVICE)) for i in range(500)]
        self.wide = torch.nn.Parameter(torch.zeros(2000, 1000, device=DEVICE).t())
        self.all = [self.weight, self.wide, *self.small]
        self.optimizer = torch.optim.SGD(self.all, lr=0.0)
        self.ckpt = neve.Checkpointer(folder / name, tiers=["ram:?slots=3"], job=name)
        self.torn = 0

    @torch.no_grad()
    def fill(self, value: float) -> None:
        torch._foreach_mul_(self.all, 0.0)
        torch._foreach_add_(self.all, value)

    def save(self, number: int):
        return self.ckpt.save(number, {"weight": self.weight, "wide": self.wide, "small": self.small}, fence=self.optimizer)

    def compare(self, number: int, value: float) -> None:
        found = self.ckpt.restore(step=number, map_location="cpu").state
        if not all(bool((tensor == value).all()) for tensor in (found["weight"], found["wide"], *found["small"])):
            self.torn += 1


def one_stream(folder: Path, count: int) -> int:
    rounds = Rounds(folder, "one")
    for k in range(1, count + 1):
        if k % 3 == 0:
            torch.cuda._sleep(20_000_000)   # the fill is late: what the save must wait for
        rounds.fill(k)
        ticket = rounds.save(k)
        ticket.fence()
        rounds.fill(-1)
        ticket.wait("ram", 60)
        rounds.compare(k, k)
    rounds.ckpt.close(final=False)
    return rounds.torn


def two_streams(folder: Path, count: int) -> int:
    rounds = Rounds(folder, "two")
    other = torch.cuda.Stream()
    for k in range(1, count + 1):
        with torch.cuda.stream(other):
            torch.cuda._sleep(10_000_000 * (k % 3))
            rounds.fill(k)
            ticket = rounds.save(k)
            ticket.fence()
            rounds.fill(-1)
        torch.cuda.current_stream().wait_stream(other)
        rounds.fill(-2)
        other.wait_stream(torch.cuda.current_stream())
        ticket.wait("ram", 60)
        rounds.compare(k, k)
    rounds.ckpt.close(final=False)
    return rounds.torn


def captured_graph(folder: Path, count: int) -> int:
    rounds = Rounds(folder, "graph")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            torch._foreach_add_(rounds.all, 1.0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        torch._foreach_add_(rounds.all, 1.0)
    rounds.fill(0)
    for k in range(1, count + 1):
        graph.replay()
        ticket = rounds.save(k)
        ticket.fence()
        if k % 4 == 0:
            ticket.wait("ram", 60)
        graph.replay()                      # would tear what is still being copied
        ticket.wait("ram", 60)
        rounds.compare(k, 2 * k - 1)
    rounds.ckpt.close(final=False)
    return rounds.torn


def unfenced(folder: Path) -> int:
    """The same without its fence: how many rounds of ten are torn. None would mean that these rounds could not see it."""
    rounds = Rounds(folder, "unfenced")
    for k in range(1, 11):
        rounds.fill(k)
        ticket = rounds.save(k)
        rounds.fill(-1)
        ticket.wait("ram", 60)
        rounds.compare(k, k)
        ticket.fence()
    rounds.ckpt.close(final=False)
    return rounds.torn


def rounds(folder: Path) -> int:
    found = {}
    roundtrip(folder)
    found["roundtrip"] = "same"
    found["torn"] = {"one stream": one_stream(folder, 30), "two streams": two_streams(folder, 30),
                     "captured graph": captured_graph(folder, 30)}
    found["torn without a fence, of 10"] = unfenced(folder)
    say(json.dumps(found))
    return 0 if not any(found["torn"].values()) and found["torn without a fence, of 10"] > 0 else 1


# ---- Rows ----

def timed(work) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def copy_into_slots() -> dict:
    """A save of 8 GiB until it is captured, beside the best cudaMemcpyAsync into pinned memory, in turns."""
    state = {f"t{i}": torch.rand(GIB // 4, device=DEVICE) for i in range(8)}
    pinned = [torch.empty(GIB // 4, pin_memory=True) for _ in range(8)]
    ours, best = [], []

    def copy() -> None:
        for target, source in zip(pinned, state.values()):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    with neve.Checkpointer("gpu-rows-copy", tiers=["ram:?slots=2"]) as ckpt:
        ckpt.prepare(state)
        ckpt.save(0, state).wait("ram", 120)
        ckpt.save(1, state).wait("ram", 120)
        for step in range(2, 7):
            tickets = []
            ours.append(timed(lambda: (tickets.append(ckpt.save(step, state)), tickets[0].wait("captured", 120))))
            tickets[0].wait("ram", 120)
            best.append(timed(copy))
        ckpt.close(final=False)
    return {"name": "device_to_slots", "value": round(statistics.median(b / o for o, b in zip(ours, best)), 3), "unit": "ratio",
            "bar": ">= 0.9", "gib_per_s": round(8 / statistics.median(ours), 1), "copy_gib_per_s": round(8 / statistics.median(best), 1)}


def fenced_10_gib() -> dict:
    """What the training thread waits for in save() and its fence."""
    weight = torch.nn.Parameter(torch.rand(10 * GIB // 4, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    blocked = []
    with neve.Checkpointer("gpu-rows-fence", tiers=["ram:?slots=2"]) as ckpt:
        ckpt.prepare({"w": weight})
        for step in range(6):
            tickets = []
            seconds = timed(lambda: tickets.append(ckpt.save(step, {"w": weight}, fence=optimizer)))
            seconds += timed_host(lambda: tickets[0].fence())
            tickets[0].wait("ram", 120)
            blocked.append(seconds)
        ckpt.close(final=False)
    return {"name": "fenced_10_gib_blocked", "value": round(statistics.median(blocked[2:]) * 1e3, 3), "unit": "ms", "bar": "<= 2"}


def timed_host(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def many_small() -> dict:
    """10,000 tensors of 4 KiB: until captured, beside a copy of each one to the host."""
    state = {f"t{i}": torch.rand(1024, device=DEVICE) for i in range(10_000)}
    ours, singly = [], []
    with neve.Checkpointer("gpu-rows-small", tiers=["ram:?slots=2"]) as ckpt:
        ckpt.prepare(state)
        ckpt.save(0, state).wait("ram", 60)
        for step in range(1, 6):
            tickets = []
            ours.append(timed(lambda: (tickets.append(ckpt.save(step, state)), tickets[0].wait("captured", 60))))
            tickets[0].wait("ram", 60)
            singly.append(timed(lambda: [tensor.cpu() for tensor in state.values()]))
        ckpt.close(final=False)
    return {"name": "small_10000", "value": round(statistics.median(s / o for o, s in zip(ours, singly)), 2),
            "unit": "times faster than one by one", "bar": None, "ms": round(statistics.median(ours) * 1e3, 2)}


def step_inflation(folder: Path) -> dict:
    """A training step while a save is copied and written to files, beside one undisturbed; in turns."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(16)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    batch = torch.rand(2048, 4096, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    quiet, saving = [], []
    with neve.Checkpointer(folder / "inflation", tiers=["ram:?slots=3", f"file:{folder}?keep=1"]) as ckpt:
        for _ in range(3):
            step()
        ckpt.prepare({"model": model, "optimizer": optimizer})
        ckpt.save(0, {"model": model, "optimizer": optimizer}).wait(timeout=120)
        for turn in range(1, 5):
            quiet.append(timed(lambda: ([step() for _ in range(10)], torch.cuda.synchronize())))
            tickets = []
            saving.append(timed(lambda: (tickets.append(ckpt.save(turn, {"model": model, "optimizer": optimizer}, fence=optimizer)),
                                         [step() for _ in range(10)], torch.cuda.synchronize())))
            tickets[0].wait(timeout=120)
        ckpt.close(final=False)
    return {"name": "step_inflation_10_steps", "value": round(statistics.median(s / q for s, q in zip(saving, quiet)), 4), "unit": "ratio",
            "bar": "<= 1.05"}


def rows(folder: Path) -> int:
    found, failed = [], {}
    for row in (copy_into_slots, fenced_10_gib, many_small, lambda: step_inflation(folder)):
        try:
            found.append(row())
        except Exception as error:   # the other rows are measured all the same
            failed[getattr(row, "__name__", "step_inflation")] = f"{type(error).__name__}: {error}"
        torch.cuda.empty_cache()
    say(json.dumps({"rows": found, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device")
    sys.exit({"rounds": rounds, "rows": rows}[what](where))
