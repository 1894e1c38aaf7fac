"""Objects that load their own state: what will not fit is found before load_state_dict() has changed anything."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from . import _names, _optimizers, _tensors
from ._optimizers import child_of, items_of
from ._saved import Saved, SavedComposite, SavedDict, SavedMeta, SavedReference, SavedTensor, Select

Unfit = Callable[[SavedTensor, Any, str], Optional[str]]


class StateCheck:
    """Compares a saved state with a module or an optimizer of torch.

    known: whether this is an object whose way of loading is known; of any other only itself can tell.
    missing, unexpected, different: as in :class:`neve._bind.Binder`. `load` leaves out what is listed there.
    impossible: whether it cannot be loaded in part either.
    filled: the module's tensors that will be filled: dotted name -> key.
    unfit: says why a saved tensor does not fit a tensor of the target, as "name: why".
    """

    def __init__(self, node: Saved, target: Any, select: Select, unfit: Unfit) -> None:
        self._select, self._unfit = select, unfit
        self._name, self._target = node.name, target
        self._drop: List[str] = []
        self.missing: List[str] = []
        self.unexpected: List[str] = []
        self.different: List[str] = []
        self.impossible = False
        self.filled: Dict[str, str] = {}
        torch = _tensors.loaded_torch()
        self.known = torch is not None and isinstance(node, SavedDict) and _loads_plainly(torch, target)
        if self.known:
            assert isinstance(node, SavedDict)
            self._compare_module(node)
        elif torch is not None and isinstance(target, torch.optim.Optimizer):
            self._compare_groups(node)

    def load(self, state: Any) -> None:
        """Gives the object its state; of a module's, what fits."""
        if self.known:
            for key in self._drop:
                state.pop(key, None)
            self._target.load_state_dict(state, strict=False)
        else:
            self._target.load_state_dict(state)

    def _compare_module(self, node: SavedDict) -> None:
        torch = _tensors.need_torch("the target")
        ours: Dict[str, Any] = self._target.state_dict(keep_vars=True)
        saved = dict(zip(node.keys, node.children))
        for key in ours:
            name = _names.join(node.name, _names.escape(key))
            if key not in saved and (self._select is None or self._select(name)):
                self.missing.append(name)
        for key, child in saved.items():
            if key not in ours:
                self.unexpected.append(child.name)
                self._drop.append(key)
                continue
            target = ours[key]
            if not isinstance(target, torch.Tensor):
                continue   # extra state, whatever it is
            text = self._why_not(child, target)
            if text is None:
                self.filled[child.name] = key
            else:
                self.different.append(text)
                self._drop.append(key)

    def leave_out(self, key: str) -> None:
        """Has `load` leave an entry of the module alone."""
        self._drop.append(key)

    def _why_not(self, child: Saved, target: Any) -> Optional[str]:
        node = child.target if isinstance(child, SavedReference) else child
        if isinstance(node, SavedTensor):
            return self._unfit(node, target, child.name)
        if isinstance(node, SavedComposite) and "sh" in node.head and list(node.head["sh"]) == list(target.shape):
            return None   # sparse
        if isinstance(node, SavedMeta) and target.is_meta and list(node.extra["sh"]) == list(target.shape):
            return None
        kind = "a meta tensor" if isinstance(node, SavedMeta) else "no tensor of this shape"
        return f"{child.name}: {kind} saved, {list(target.shape)} on {target.device} in the target"

    def _compare_groups(self, node: Saved) -> None:
        """An optimizer refuses another number of parameters; but only once others have been changed."""
        matched, why_not = _optimizers.match(self._target, node)
        if matched is None and items_of(child_of(node, "param_groups")) is not None:
            self.different.append(f"{self._name or 'the state'}: {why_not}")
            self.impossible = True


def _loads_plainly(torch: Any, target: Any) -> bool:
    """Whether a module, and all in it, takes each entry of its state dict by name, and nothing translates them first."""
    module = torch.nn.Module
    if not isinstance(target, module) or type(target).load_state_dict is not module.load_state_dict:
        return False
    return not any(
        part._load_state_dict_pre_hooks or type(part).state_dict is not module.state_dict or part._state_dict_hooks
        or type(part)._load_from_state_dict is not module._load_from_state_dict and not _is_normalization(torch, part)
        or torch.nn.parameter.is_lazy(next(iter(part._parameters.values()), None))
        for part in target.modules())


def _is_normalization(torch: Any, part: Any) -> bool:
    """Theirs only fills in a counter that very old files lack."""
    kind = torch.nn.modules.batchnorm._NormBase
    return isinstance(part, kind) and type(part)._load_from_state_dict is kind._load_from_state_dict
