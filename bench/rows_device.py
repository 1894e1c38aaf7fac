"""Rows about saves from a device: a simulated one of 1 GB/s, since what is held is what the training thread waits for, not the bus."""

import contextlib
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import measure

RATE = 1_000_000_000      # bytes a second of the simulated copy engine
SAVES = 8


def fence_block() -> list[measure.Row]:
    """What the training thread waits for in a steady save with a fence, and how long the copies take, of 64 MiB and of 1 GiB."""
    import torch

    import neve

    rows = []
    with _simulated():
        for name, bytes_each in (("64m", 64 << 20), ("1g", 1 << 30)):
            weight = torch.nn.Parameter(torch.zeros(bytes_each // 8))
            optimizer = torch.optim.SGD([weight], lr=0.0)
            state = {"weight": weight, "more": torch.zeros(bytes_each // 8)}
            optimizer.state[weight]["more"] = state["more"]
            blocked, copied = [], []
            with neve.Checkpointer(f"bench-device-{name}", tiers=["ram:?slots=2"]) as checkpointer:
                checkpointer.prepare(state)
                checkpointer.save(0, state).wait("ram")
                for step in range(1, SAVES + 1):
                    begin = time.perf_counter()
                    ticket = checkpointer.save(step, state, fence=optimizer)
                    saved = time.perf_counter()
                    ticket.fence()
                    fenced = time.perf_counter()
                    ticket.wait("captured")
                    copied.append(time.perf_counter() - begin)
                    ticket.wait("ram")
                    blocked.append(saved - begin + fenced - saved)
            rows.append(_row(f"fence_block_{name}", [seconds * 1e3 for seconds in blocked], "<= 2", "ms"))
            wanted = bytes_each / RATE
            rows.append(_row(f"device_copy_{name}", [seconds / wanted for seconds in copied], "<= 1.05", "ratio"))
    return rows


TINY = Path(__file__).parents[1] / "build" / "release" / "bin" / "neve_tiny_save"
TENSORS, FLOATS, LIVES = 100_000, 64, 5


def device_tiny() -> list[measure.Row]:
    """Milliseconds that the training thread pays for 100,000 tensors of a device: the first save with all that it prepares, and a steady
    one, from C and from Python, where the pointer, shape and strides of each are looked at in every save."""
    import torch

    import neve

    environment = {**os.environ, "NEVE_DEVICE": f"simulated:{RATE}"}
    c = [json.loads(subprocess.run([TINY, str(TENSORS), str(FLOATS), str(SAVES)], env=environment, check=True, capture_output=True,
                                   text=True).stdout) for _ in range(LIVES)]
    first, steady = [], []
    with _simulated():
        for life in range(LIVES):
            weights = [torch.nn.Parameter(torch.zeros(FLOATS)) for _ in range(TENSORS)]
            optimizer, state = torch.optim.SGD(weights, lr=0.0), {f"w{i}": weight for i, weight in enumerate(weights)}
            with neve.Checkpointer(f"bench-tiny-{life}", tiers=["ram:?slots=2"]) as checkpointer:
                for step in range(SAVES + 1):
                    begin = time.perf_counter()
                    ticket = checkpointer.save(step, state, fence=optimizer)
                    ticket.fence()
                    (steady if step else first).append((time.perf_counter() - begin) * 1e3)
                    ticket.wait("ram")
    return [_row("device_tiny_first_c", [one["first"] for one in c], "<= 20", "ms"),
            _row("device_tiny_steady_c", [value for one in c for value in one["steady"]], "<= 2", "ms"),
            _row("device_tiny_first", first, "<= 300", "ms"), _row("device_tiny_steady", steady, "<= 100", "ms")]


@contextlib.contextmanager
def _simulated():
    """Host memory stands for the device's: nothing in the engine or in Python but these two functions knows the difference."""
    from neve import _device
    os.environ["NEVE_DEVICE"] = f"simulated:{RATE}"
    ordinal, streams = _device.ordinal, _device.current_streams
    _device.ordinal = lambda device: 0
    _device.current_streams = lambda ordinals: [(one, 0) for one in ordinals]
    try:
        yield
    finally:
        _device.ordinal, _device.current_streams = ordinal, streams
        del os.environ["NEVE_DEVICE"]


def _row(name: str, values: list[float], bar: str, unit: str) -> measure.Row:
    return measure.Row(name, round(statistics.median(values), 4), unit, bar, round(min(values), 4), round(statistics.median(values), 4),
                       len(values), round(max(values), 4), facts={"simulated_bytes_per_s": RATE})
