"""Torch's own `save` and `load`, also while `neve.patch_torch` has put neve's in their place; and what is said once."""

from __future__ import annotations

from typing import Any, Callable, Dict, Set

from . import _tensors, _waiting

originals: Dict[str, Callable[..., Any]] = {}   # by name, those that neve's functions have replaced
_said: Set[str] = set()


def original(name: str) -> Callable[..., Any]:
    """`torch.save` or `torch.load` as torch has it."""
    torch = _tensors.need_torch("torch's own format")
    return originals.get(name) or getattr(torch.serialization, name)  # type: ignore[no-any-return]


def notice_once(text: str) -> None:
    """One line on stderr, the first time that it is said in this process."""
    if text not in _said:
        _said.add(text)
        _waiting.notice(text)
