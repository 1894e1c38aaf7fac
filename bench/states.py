"""The states that rows are measured on."""

import torch

MIB = 1 << 20


def gibibyte() -> dict[str, torch.Tensor]:
    """1 GiB in 104 tensors from 100 MiB down to 3 KiB, touched."""
    sizes = [100 * MIB] * 6 + [32 * MIB] * 10 + [4 * MIB] * 24 + [64 * 1024] * 33 + [3 * 1024] * 30
    sizes.append((1 << 30) - sum(sizes))
    assert len(sizes) == 104 and 0 < sizes[-1] <= 100 * MIB, (len(sizes), sizes[-1])
    fill = torch.Generator().manual_seed(1)
    return {f"layer{i:03}.weight": torch.empty(size // 4).uniform_(generator=fill) for i, size in enumerate(sizes)}


def strided() -> dict[str, torch.Tensor]:
    """1 GiB of dense but permuted tensors: transposed matrices, channels-last kernels, and rows of padded matrices."""
    state = {}
    for i in range(4):
        state[f"transposed{i}"] = torch.randn(8192, 4096).t()                                            # 128 MiB each
    for i in range(4):
        state[f"channels_last{i}"] = torch.randn(2048, 512, 4, 4).to(memory_format=torch.channels_last)  # 64 MiB each
    for i in range(4):
        state[f"padded{i}"] = torch.randn(4096, 4160)[:, :4096]                                          # 64 MiB each
    return state


def tiny(count: int = 100_000) -> dict:
    """`count` tensors of 64 floats in nested dicts, as a model of many small layers has."""
    return {f"block{i}": {f"layer{j}": {f"p{k}": torch.randn(64) for k in range(10)} for j in range(10)} for i in range(count // 100)}


def total_bytes(state: dict) -> int:
    return sum(total_bytes(value) if isinstance(value, dict) else value.numel() * value.element_size() for value in state.values())
