"""Rows about saves from a device: a simulated one of 1 GB/s, since what is held is what the training thread waits for, not the bus."""

import os
import statistics
import time

import measure

RATE = 1_000_000_000      # bytes a second of the simulated copy engine
SAVES = 8


def fence_block() -> list[measure.Row]:
    """What the training thread waits for in a steady save with a fence, and how long the copies take, of 64 MiB and of 1 GiB."""
    os.environ["NEVE_DEVICE"] = f"simulated:{RATE}"
    import torch

    import neve
    from neve import _device

    # Host memory stands for the device's: nothing in the engine or in Python but these two knows the difference.
    ordinal, streams = _device.ordinal, _device.current_streams
    _device.ordinal = lambda device: 0
    _device.current_streams = lambda ordinals: [(one, 0) for one in ordinals]
    rows = []
    try:
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
    finally:
        _device.ordinal, _device.current_streams = ordinal, streams
        del os.environ["NEVE_DEVICE"]
    return rows


def _row(name: str, values: list[float], bar: str, unit: str) -> measure.Row:
    return measure.Row(name, round(statistics.median(values), 4), unit, bar, round(min(values), 4), round(statistics.median(values), 4),
                       len(values), round(max(values), 4), facts={"simulated_bytes_per_s": RATE})
