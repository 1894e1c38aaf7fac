"""The console script `neve` of an installed package: hands over to the compiled command in it."""

import sys

from neve import __main__


def main() -> None:
    sys.exit(__main__.main(sys.argv[1:]))
