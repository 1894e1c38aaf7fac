"""The console script `neve` of an installed package: hands over to the compiled command beside this file."""

import os
import sys
from pathlib import Path


def main() -> None:
    command = Path(__file__).parent / "bin" / "neve"
    if not command.exists():
        sys.exit(f"neve: {command} is not there: this package was not built with its command (reinstall it, or use ./dev neve)")
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
