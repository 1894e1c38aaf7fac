"""Templates of pieces: what a Piece or a DTensor looked like when its state was described (see `_template`)."""

from __future__ import annotations

import weakref
from typing import Any, Dict

from . import _pieces
from ._pieces import Box, Piece
from ._template import Changed, Collected, Numbering, Template


class Held(Template):
    """A Piece: its box, and the template of the tensor or array that it holds."""

    __slots__ = ("global_shape", "offset", "name", "content")

    def __init__(self, piece: Piece, content: Template) -> None:
        self.global_shape, self.offset, self.name, self.content = piece.global_shape, piece.offset, piece.name, content

    @property
    def is_run(self) -> bool:   # type: ignore[override]
        return self.content.is_plain

    def match(self, thing: Any, found: Collected) -> None:
        if type(thing) is not Piece or not _pieces.is_dense(thing.tensor):
            raise Changed
        if (thing.global_shape, thing.offset, thing.name) != (self.global_shape, self.offset, self.name):
            raise Changed
        torch_count, array_count = len(found.torch), len(found.arrays)
        self.content.match(thing.tensor, found)
        if len(found.torch) > torch_count:
            found.torch_originals[torch_count] = thing
        else:
            found.array_originals[array_count] = thing

    def node(self, numbering: Numbering) -> Any:
        return self.content.node(numbering)


class _Layout:
    """How a DTensor is laid out over a mesh, to be compared with later ones at little cost. Keeps no mesh alive."""

    __slots__ = ("kind", "shape", "placements", "mesh_shape", "coordinate", "box", "_mesh")

    def __init__(self, tensor: Any, box: Box) -> None:
        mesh = tensor.device_mesh
        self.kind, self.shape, self.placements, self.box = type(tensor), tensor.shape, tensor.placements, box
        self.mesh_shape, self.coordinate = tuple(mesh.shape), mesh.get_coordinate()
        self._mesh = weakref.ref(mesh)

    def part(self, thing: Any) -> Any:
        """This rank's elements; raises Changed for another layout."""
        if type(thing) is not self.kind or thing.shape != self.shape or thing.placements != self.placements:
            raise Changed
        mesh = thing.device_mesh
        if mesh is not self._mesh() and (tuple(mesh.shape) != self.mesh_shape or mesh.get_coordinate() != self.coordinate):
            raise Changed
        local = _pieces.local_tensor(thing)
        if not _pieces.is_dense(local):
            raise Changed
        return _pieces.part_of(local, self.box)


class Distributed(Template):
    """A DTensor of which this rank holds one box."""

    __slots__ = ("extra", "gradient", "parameter", "run", "_layout")

    def __init__(self, tensor: Any, box: Box, extra: Dict[str, Any], run: bool) -> None:
        self.extra, self.run = extra, run
        self.gradient, self.parameter = "grad" in extra, "param" in extra
        self._layout = _Layout(tensor, box)

    @property
    def is_run(self) -> bool:   # type: ignore[override]
        return self.run

    def match(self, thing: Any, found: Collected) -> None:
        part = self._layout.part(thing)
        if thing.requires_grad != self.gradient or bool(getattr(thing, "_is_param", False)) != self.parameter:
            raise Changed
        found.torch_originals[len(found.torch)] = thing
        found.torch.append(part)

    def node(self, numbering: Numbering) -> Any:
        return {"T": 1, **self.extra}


class SharedMemory(Template):
    """A DTensor over the very memory and layout of an earlier one (tied weights): stored once, and one again after loading."""

    __slots__ = ("name", "place", "_layout")

    def __init__(self, tensor: Any, box: Box, name: str, place: int) -> None:
        self.name, self.place = name, place
        self._layout = _Layout(tensor, box)

    def match(self, thing: Any, found: Collected) -> None:
        part, first = self._layout.part(thing), found.torch[self.place]
        if part.data_ptr() != first.data_ptr() or part.shape != first.shape or part.stride() != first.stride():
            raise Changed

    def node(self, numbering: Numbering) -> Any:
        return {"r": self.name}
