"""What all pytest suites share: `--pattern`, the same regular expression that `./dev test` gives to ctest."""

import re


def pytest_addoption(parser):
    parser.addoption("--pattern", default="", help="run only tests whose id this regular expression finds")


def pytest_collection_modifyitems(config, items):
    pattern = config.getoption("--pattern")
    if not pattern:
        return
    wanted = re.compile(pattern, re.IGNORECASE)
    kept = [item for item in items if wanted.search(item.nodeid)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
