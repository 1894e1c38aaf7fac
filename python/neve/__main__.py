"""``python -m neve VERB ...`` runs the ``neve`` command."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import List, Optional


def find_command() -> Optional[str]:
    """The compiled command: beside this package, in the source tree's build folder, or on PATH."""
    package = Path(__file__).resolve().parent
    places = [package / "bin" / "neve"]
    source = package.parent.parent
    if (source / "include" / "neve" / "neve.h").exists():
        places.append(source / "build" / "release" / "bin" / "neve")
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return str(place)
    return shutil.which("neve")


def main(arguments: List[str]) -> int:
    """Hands over to the command; does not return when it was found."""
    if arguments[:1] == ["run"]:
        from neve import _torch_patch

        return _torch_patch.run(arguments[1:])
    command = find_command()
    if command is None:
        print("neve: the neve command was not found beside this package or on PATH: build it (./dev build)", file=sys.stderr)
        return 5
    os.execv(command, [command, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
