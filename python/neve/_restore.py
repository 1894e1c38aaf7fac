"""One restore from an open image: into new objects, or into a state that exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _names
from ._bind import Binder, mismatch
from ._bind_pieces import PieceReads
from ._image import GlobalImage, Image
from ._rebuild import Builder, Tensors
from ._saved import SavedState, Select
from ._waiting import interruptible
from .errors import Damaged, DataLoss, Error, Invalid


@dataclass
class Found:
    """What `Checkpointer.restore` found.

    state: the target itself when `into` was a dict, list or object; else the restored state.
    sources: bytes read, by tier.
    missing, unexpected: dotted names that did not fit, with strict=False.
    """

    step: int
    state: Any
    sources: Dict[str, int] = field(default_factory=dict)
    missing: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)
    save_id: str = ""
    tags: Dict[str, Any] = field(default_factory=dict)


class Lacking(Exception):
    """Something was asked for that the image does not hold; the images of other ranks may. `error()`: what to raise if not."""

    def __init__(self, error: Invalid) -> None:
        super().__init__(str(error))
        self._error: Optional[Invalid] = error

    def error(self) -> Invalid:
        """The error, once: raised beside this, each would know the other, and with it all that the restore has to do with."""
        error, self._error = self._error, None
        assert error is not None
        return error


class Restoration:
    """Reads an image into objects. After an error `written` names the tensors of the target that were touched. It makes very many
    small objects: pause the garbage collector until it has gone.

    Raises :class:`Lacking` when it is made with patterns that match nothing, and by ``plan``.
    """

    def __init__(self, image: Image, what: str, include: Union[None, str, Sequence[str]] = None, map_location: Any = None,
                 weights_only: bool = True, take_rank0: Optional[bytes] = None, can_select: bool = False) -> None:
        self._what = what
        patterns = [include] if isinstance(include, str) else None if include is None else list(include)
        if patterns is not None and not (patterns and all(type(pattern) is str for pattern in patterns)):
            raise Invalid(f"include={include!r} names nothing: leave it out, or pass glob patterns over dotted names")
        self._select: Select = None if patterns is None else _names.glob_filter(patterns)
        self._image = image
        self._global = GlobalImage(image, take_rank0)
        self._saved = SavedState(image, self._select, weights_only, can_select)
        for pattern in patterns or ():
            self._check_pattern(pattern)
        self._tensors = Tensors(image, map_location, self._global)
        self._builder = Builder(self._tensors, weights_only)
        self.missing: List[str] = []
        self.unexpected: List[str] = []
        self.touching = False   # the target is being changed
        self._pieces: Optional[PieceReads] = None
        self._steps: Callable[[], Any] = lambda: None

    def _check_pattern(self, pattern: str) -> None:
        matches = _names.glob_filter([pattern])
        if not any(map(matches, self._saved.selected)):
            names = self._saved.selected + self._saved.refused
            heads = sorted(dict.fromkeys(name.split(".", 1)[0] for name in names if name))
            more = f" and {len(heads) - 8} more" if len(heads) > 8 else ""
            raise Lacking(Invalid(f"include: {pattern!r} matches no name in {self._what}; its names begin with "
                                  f"{', '.join(heads[:8])}{more}"))

    @property
    def written(self) -> List[str]:
        """Names of the target's tensors that were touched; memory of our own has no name."""
        return [name for name in dict.fromkeys(self._tensors.written) if name]

    def fresh(self) -> Any:
        """The saved state in memory of its own."""
        self._tensors.want_all(self._saved.root)
        self._tensors.read()
        return self._builder.build(self._saved.root)

    def plan(self, target: Any, strict: bool) -> None:
        """Decides what of the target is filled from where. Writes nothing; :class:`neve.Invalid` lists what does not fit."""
        root = self._saved.root
        if root is None:   # an include= that matches what takes no place, such as an empty dict's attributes
            self._steps = lambda: target
            return
        self._pieces = pieces = PieceReads(self._image, self._global, self._tensors.written)
        binder = Binder(self._image.header, self._tensors, self._builder, self._select, pieces)
        step = binder.bind(root, target)
        binder.check_shared_memory()
        error = mismatch(binder, self._what)
        if error is not None and (strict or binder.impossible):
            try:
                raise Lacking(error) if binder.missing else error
            finally:
                del error   # it knows this frame, and with it the target
        names = [text.split(": ", 1)[0] for text in binder.different]
        self.missing = binder.missing + names
        self.unexpected = binder.unexpected + names
        self._steps = step

    def verify(self) -> None:
        """Verifies the images that are read; where bytes of theirs are bad, that what was planned can be read from other copies."""
        try:
            interruptible(self._image.verify)
            if self._pieces is not None and self._pieces.needs_global:
                interruptible(self._global.open().verify)
        except (DataLoss, Damaged):
            if not self._image.is_global and not self._image.header.pieces:
                raise
            if self._pieces is None:
                self._tensors.want_all(self._saved.root)
            self._tensors.readable()
            if self._pieces is not None:
                self._pieces.readable()

    def into(self) -> Any:
        """Fills the target as planned; the target, or what takes its place."""
        self._tensors.read()
        if self._pieces is not None:
            self._pieces.read()
        self.touching = True
        return self._steps()

    def sources(self) -> Dict[str, int]:
        """Bytes read so far, by tier."""
        counted: Dict[str, int] = {}
        for image in (self._image, self._global.opened):
            for tier, count in (image.describe().get("sources", {}) if image is not None else {}).items():
                counted[tier] = counted.get(tier, 0) + count
        return counted

    def close(self) -> None:
        """Closes what this has opened besides the image that it was given."""
        self._global.close()


def explain_written(error: BaseException, written: List[str]) -> str:
    """What a failed restore in place leaves behind; added to the message of an error of neve."""
    shown = ", ".join(written[:20]) + (f" and {len(written) - 20} more" if len(written) > 20 else "")
    text = f"the restore failed after these places of the target were written: {shown or 'none'}"
    if isinstance(error, Error):
        error.message += f" ({text}; the target is not usable, and the next save is refused, until a restore succeeds)"
        error.args = (error.message,)
    return text
