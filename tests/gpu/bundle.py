"""Packs what a bare GPU machine needs to build neve and run its GPU lane: the sources, and what they need of the distribution.

    python3 tests/gpu/bundle.py OUT.tar.gz

Everything lies below `neve/`; third-party headers and libraries are in `neve/third_party/usr`, as on Debian, x86-64. The target brings
CMake 3.25, ninja, gcc 12 or newer, python3 with a CUDA torch, nvcc, and no registry. Then, in an empty folder:

    tar xf OUT.tar.gz && cd neve && ./dev gpu-check
"""

import argparse
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BYTES_MAX = 60 << 20
TOP = "neve"

# Debian package: what of it is taken. Shared libraries where the static ones are not position-independent (libneve.so holds them all).
HEADERS = ("usr/include/",)
LIBRARIES = ("usr/lib/x86_64-linux-gnu/", "usr/share/cmake/")
PACKAGES = ("libabsl-dev", "libabsl20220623", "liburing-dev", "liburing2", "libxxhash-dev", "libxxhash0", "libzstd-dev", "libzstd1",
            "zlib1g-dev", "zlib1g", "nlohmann-json3-dev", "libcli11-dev", "libgtest-dev", "libgmock-dev", "libfabric-dev")
NOT_NEEDED = (".pc", "libabsl_random", "libabsl_flags", "libfabric.", "pkgconfig")


def sources() -> list[str]:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file() and not name.startswith("shared/")]


def third_party() -> list[Path]:
    """Files of the packages, by their path on this system. A package of another Debian release has another name and is passed over."""
    files = []
    for package in PACKAGES:
        listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True)
        if listed.returncode != 0:
            continue
        for line in listed.stdout.splitlines():
            path = Path(line)
            name = line.lstrip("/")
            if name.startswith("lib/"):
                name, path = "usr/" + name, Path("/usr") / name   # merged /usr
            if not name.startswith(HEADERS + LIBRARIES) or any(part in name for part in NOT_NEEDED):
                continue
            if path.is_file() or path.is_symlink():
                files.append(path)
    # The packages' CMake files name every library of theirs.
    for config in Path("/usr/lib/x86_64-linux-gnu/cmake/absl").glob("*.cmake"):
        if config not in files:
            files.append(config)
    for library in Path("/usr/lib/x86_64-linux-gnu").glob("libabsl_*.so*"):
        if library not in files:
            files.append(library)
    return sorted(set(files))


def commit() -> str:
    return subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def pack(target: Path) -> dict:
    files = third_party()
    have = {path.name for path in files}
    needed = ("status.h", "liburing.h", "xxhash.h", "zlib.h", "json.hpp", "CLI.hpp", "gtest.h", "gmock.h")
    missing = [name for name in needed if name not in have]
    if missing:
        sys.exit(f"the bundle would lack {', '.join(missing)}: run ./dev setup first")
    facts = {"commit": commit(), "sources": 0, "third_party": 0, "machine": os.uname().machine}
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as zipped, \
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
        def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            return info

        for name in sources():
            tar.add(ROOT / name, f"{TOP}/{name}", recursive=False, filter=plain)
            facts["sources"] += 1
        for path in files:
            # Links within the tree stay links; others become what they point to.
            inside = path.is_symlink() and "/" not in os.readlink(path)
            tar.add(path if inside else path.resolve(), f"{TOP}/third_party{path}", recursive=False, filter=plain)
            facts["third_party"] += 1
        text = json.dumps(facts, indent=1).encode()
        info = plain(tarfile.TarInfo(f"{TOP}/bundle.json"))
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.absolute()
    facts = pack(out)
    size = out.stat().st_size
    print(f"{facts['sources']} sources and {facts['third_party']} files of the distribution, {size / (1 << 20):.1f} MiB", file=sys.stderr)
    if size > BYTES_MAX:
        sys.exit(f"{out} has {size} bytes, and at most {BYTES_MAX} travel")
    print(out)


if __name__ == "__main__":
    main()
