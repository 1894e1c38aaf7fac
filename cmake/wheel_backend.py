"""The build backend of `pip install .`: scikit-build-core, after a look at whether what the C++ build needs is there.

A missing header would come up deep inside CMake's output. Here the last line says which Debian package has it.
"""

import os
import shutil
import subprocess
import sys

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F401,F403 - the hooks that are not wrapped below

# Debian package: how to see that it is there. A pkg-config module, a program or a header.
_NEEDS = {
    "g++": ("program", "c++"),
    "pkg-config": ("program", "pkg-config"),
    "libabsl-dev": ("module", "absl_status"),
    "libxxhash-dev": ("module", "libxxhash"),
    "liburing-dev": ("module", "liburing"),
    "nlohmann-json3-dev": ("module", "nlohmann_json"),
    "libcli11-dev": ("header", "CLI/CLI.hpp"),
    "zlib1g-dev": ("module", "zlib"),
}


def _is_there(kind: str, name: str) -> bool:
    if kind == "program":
        return shutil.which(os.environ.get("CXX", name) if name == "c++" else name) is not None
    if kind == "module":
        return subprocess.run(["pkg-config", "--exists", name], check=False).returncode == 0
    probe = subprocess.run(
        [os.environ.get("CXX", "c++"), "-x", "c++", "-std=c++20", "-E", "-o", os.devnull, "-"],
        input=f"#include <{name}>\n", text=True, stderr=subprocess.DEVNULL, check=False)
    return probe.returncode == 0


def _check() -> None:
    missing = []
    for package, (kind, name) in _NEEDS.items():
        tools_missing = {"g++", "pkg-config"} & set(missing)
        if kind != "program" and tools_missing:
            break
        if not _is_there(kind, name):
            missing.append(package)
    if missing:
        sys.exit(f"neve needs what this machine lacks: apt-get install {' '.join(missing)} (or ./dev setup, which installs all)")


def get_requires_for_build_wheel(config_settings=None):
    return _build.get_requires_for_build_wheel(config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _check()
    return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _check()
    return _build.build_editable(wheel_directory, config_settings, metadata_directory)
