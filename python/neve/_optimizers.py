"""Optimizers: whose state is whose. Parameter groups are matched by their parameters' names where these were saved, else by place.

The state of a parameter follows the parameter: what was saved of the parameter's shape is restored as the parameter is laid out here,
whatever ranks and meshes it was saved from.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _pieces, _tensors
from ._boxes import Whole
from ._saved import Saved, SavedBlob, SavedComposite, SavedDict, SavedValue


class Matched(NamedTuple):
    """groups: for each of the target's groups, which saved one it is. entries: for each of its parameters, the key of its saved state."""

    groups: List[int]
    entries: List[Any]


def child_of(node: Any, key: Any) -> Any:
    """What a saved dictionary, or a value that is one, has under a key; else None."""
    if isinstance(node, SavedComposite):
        node = node.children[0]
    node = _content(node)
    if isinstance(node, SavedDict):
        return dict(zip(node.keys, node.children)).get(key)
    return node.get(key) if isinstance(node, dict) else None


def items_of(node: Any) -> Optional[List[Any]]:
    """The items of a saved list, or of a value that is one; else None."""
    found = getattr(_content(node), "children", _content(node))
    return list(found) if isinstance(found, (list, tuple)) else None


def plain(node: Any) -> Any:
    """A value, as saved or already plain."""
    found = _content(node)
    return None if isinstance(found, Saved) else found


def _content(node: Any) -> Any:
    """The value of a node that is one, however it was stored; else the node."""
    return node.value if isinstance(node, (SavedValue, SavedBlob)) else node


def match_names(saved: Sequence[Optional[Sequence[Any]]], ours: Sequence[Sequence[Any]]) -> Optional[List[int]]:
    """For each of our groups the saved one of the same names; None where the groups are other ones."""
    places = {frozenset(names): index for index, names in enumerate(saved) if names is not None}
    found = [places.get(frozenset(names)) for names in ours]
    if len(saved) != len(ours) or None in found or len(set(found)) != len(found):
        return None
    return [index for index in found if index is not None]


def are_names(names: Any) -> bool:
    """Whether these are names of parameters (and none twice)."""
    return isinstance(names, (list, tuple)) and all(type(name) is str for name in names) and len(set(names)) == len(names)


def order_of_groups(node: Any, target: Sequence[Any]) -> Optional[List[int]]:
    """For a list of parameter groups whose parameters are names, as torch's get_optimizer_state_dict gives it: which saved group each
    of the target's is, where that can be told and is not their order anyway. Raises ValueError where the groups are other ones."""
    ours = [group.get("params") if isinstance(group, dict) else None for group in target]
    saved = [plain(child_of(group, "params")) for group in items_of(node) or ()]
    if not ours or not saved or not all(map(are_names, ours)) or not all(map(are_names, saved)) or not any(ours):
        return None
    found = match_names(saved, ours)
    if found is None:
        raise ValueError(f"groups of the parameters {_shown(saved)} saved, of {_shown(ours)} in the target")
    return None if found == list(range(len(found))) else found


def _shown(groups: Sequence[Any]) -> str:
    texts = [", ".join(map(str, group[:3])) + (f" and {len(group) - 3} more" if len(group) > 3 else "") for group in groups]
    return "; ".join(f"[{text}]" for text in texts[:4]) + (f" and {len(texts) - 4} groups more" if len(texts) > 4 else "")


def entries_of(state: Any) -> Dict[Any, Any]:
    """The saved states of parameters by number; torch.distributed.checkpoint makes texts of the numbers."""
    found = _content(state)
    if isinstance(found, SavedDict):
        found = dict(zip(found.keys, found.children))
    if not isinstance(found, dict):
        return {}
    return {int(key) if type(key) is str and key.isdecimal() else key: entry for key, entry in found.items()}


def has_text_keys(node: Any) -> bool:
    """Whether the states of parameters stand under numbers written as text."""
    found = _content(child_of(node, "state"))
    keys = found.keys if isinstance(found, SavedDict) else found if isinstance(found, dict) else ()
    return any(type(key) is str and key.isdecimal() for key in keys)


def has_names(optimizer: Any, node: Any) -> bool:
    """Whether the optimizer knows its parameters' names, and those that were saved are known too."""
    saved = items_of(child_of(node, "param_groups")) or []
    return bool(saved) and all(are_names(group.get("param_names")) for group in optimizer.param_groups) and all(
        are_names(plain(child_of(group, "param_names"))) for group in saved)


def match(optimizer: Any, node: Any) -> Tuple[Optional[Matched], str]:
    """Which saved group and entry belongs to which of the optimizer's; or None, and why not."""
    saved = items_of(child_of(node, "param_groups"))
    if saved is None:
        return None, "no parameter groups saved"
    ids: List[List[Any]] = [list(plain(child_of(group, "params")) or ()) for group in saved]
    ours = optimizer.param_groups
    if has_names(optimizer, node):
        names = [list(plain(child_of(group, "param_names"))) for group in saved]
        order = match_names(names, [group["param_names"] for group in ours])
        if order is None or any(len(keys) != len(group) for keys, group in zip(ids, names)):
            return None, (f"groups of the parameters {_shown(names)} saved, of {_shown([group['param_names'] for group in ours])} in "
                          "the target")
        by_name = {name: key for keys, group in zip(ids, names) for key, name in zip(keys, group)}
        return Matched(order, [by_name[name] for group in ours for name in group["param_names"]]), ""
    sizes, our_sizes = [len(keys) for keys in ids], [len(group["params"]) for group in ours]
    if sizes != our_sizes:
        return None, f"groups of {sizes} parameters saved, of {our_sizes} in the target"
    return Matched(list(range(len(ids))), [key for keys in ids for key in keys]), ""


def target_of(parameter: Any, existing: Any, whole: Optional[Whole], name: str) -> Any:
    """Where an entry of a parameter's state is to be restored: what is there, else a tensor laid out as the parameter; None: anew."""
    torch = _tensors.need_torch(name)
    if isinstance(existing, torch.Tensor):
        return existing
    if whole is None or not _pieces.is_dtensor(parameter) or not whole.global_shape or whole.global_shape != tuple(parameter.shape):
        return None
    return torch.empty_like(parameter.detach(), dtype=_tensors.to_torch(whole.dtype, name))


def arranged(built: Dict[str, Any], entries: Dict[int, Any], matched: Matched, optimizer: Any) -> Dict[str, Any]:
    """A state dict in the optimizer's own order. built: what was saved; entries: the state of each of its parameters."""
    groups, first = [], 0
    for place, group in zip(matched.groups, optimizer.param_groups):
        count = len(group["params"])
        made = {**built["param_groups"][place], "params": list(range(first, first + count))}
        if "param_names" in made and "param_names" in group:
            made["param_names"] = list(group["param_names"])
        groups.append(made)
        first += count
    return {**built, "state": entries, "param_groups": groups}
