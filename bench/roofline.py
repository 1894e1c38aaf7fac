"""The rooflines: parallel memory copies (libneve_roofline), one hash pass, and fio."""

import ctypes
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Optional

import torch

import measure

LIBRARY = Path(__file__).parents[1] / "build" / "release" / "lib" / "libneve_roofline.so"
CORES = len(os.sched_getaffinity(0))


class Copier:
    """Copies the bytes of some tensors into memory that was touched before, or back out of it."""

    def __init__(self, tensors: list[torch.Tensor]):
        self._library = ctypes.CDLL(str(LIBRARY))
        self._library.roofline_copy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64, ctypes.c_int, ctypes.c_int]
        self._tensors = tensors
        self._bytes = [t.numel() * t.element_size() for t in tensors]
        self._room = torch.zeros(sum(self._bytes) + 4096 + 64 * len(tensors), dtype=torch.uint8)
        at = -self._room.data_ptr() % 4096
        places = []
        for size in self._bytes:
            places.append(self._room.data_ptr() + at)
            at += (size + 63) // 64 * 64
        count = len(tensors)
        self._state = (ctypes.c_uint64 * count)(*(t.data_ptr() for t in tensors))
        self._copy = (ctypes.c_uint64 * count)(*places)
        self._sizes = (ctypes.c_uint64 * count)(*self._bytes)
        self.streaming = 0

    def _run(self, targets, sources) -> float:
        return measure.timed(lambda: self._library.roofline_copy(targets, sources, self._sizes, len(self._bytes), CORES,
                                                                 self.streaming))

    def out(self) -> float:
        return self._run(self._copy, self._state)

    def back(self) -> float:
        return self._run(self._state, self._copy)

    def choose(self, direction) -> str:
        """Takes plain or streaming stores, whichever is faster here; returns which."""
        def with_kind(kind):
            self.streaming = kind
            return direction()
        kinds = {"memcpy": lambda: with_kind(0)}
        if self._library.roofline_streams():
            kinds["streaming"] = lambda: with_kind(1)
        direction()
        best = measure.fastest(kinds, rounds=5)
        self.streaming = int(best == "streaming")
        return best


def hash_pass_seconds(source: torch.Tensor) -> float:
    """One XXH3-128 pass over cold memory on one core, the fastest of five, per GiB."""
    library = ctypes.CDLL(str(LIBRARY))
    library.roofline_hash.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.roofline_hash.restype = ctypes.c_uint64
    size = source.numel() * source.element_size()
    best = min(measure.timed(lambda: library.roofline_hash(source.data_ptr(), size)) for _ in range(5))
    return best * (1 << 30) / size


class Fio:
    """fio on one folder: writes or reads `size` bytes, the best of several ways."""

    WRITES = {
        "io_uring direct 4M qd4, recycled": dict(direct=1, bs="4m", iodepth=4, fresh=False),
        "io_uring direct 4M qd8, recycled": dict(direct=1, bs="4m", iodepth=8, fresh=False),
        "io_uring direct 1M qd4, recycled": dict(direct=1, bs="1m", iodepth=4, fresh=False),
        "io_uring direct 4M qd8, fresh": dict(direct=1, bs="4m", iodepth=8, fresh=True),
        "buffered 4M + fsync, recycled": dict(direct=0, bs="4m", iodepth=1, fresh=False),
    }
    READS = {
        "io_uring direct 4M qd4": dict(direct=1, bs="4m", iodepth=4),
        "io_uring direct 4M qd8": dict(direct=1, bs="4m", iodepth=8),
        "io_uring direct 1M qd4": dict(direct=1, bs="1m", iodepth=4),
        "buffered 4M": dict(direct=0, bs="4m", iodepth=1),
    }

    def __init__(self, folder: Path, size: int, image: Optional[Path] = None):
        """image: a file of somebody else's, which is read and never written."""
        self._is_mine = image is None
        self._file, self._size = image or folder / "fio.dat", size // (4 << 20) * (4 << 20)
        self._scale = size / self._size
        self.cpu_seconds = 0.0

    def write(self, direct: int, bs: str, iodepth: int, fresh: bool) -> float:
        if fresh:
            self._file.unlink(missing_ok=True)
        return self._run("write", direct, bs, iodepth, "--end_fsync=1")

    def read(self, direct: int, bs: str, iodepth: int) -> float:
        return self._run("read", direct, bs, iodepth, "--invalidate=1", "--readonly")

    def _run(self, kind: str, direct: int, bs: str, iodepth: int, *more: str) -> float:
        """Seconds, the final fsync included; start and end of the program itself are not."""
        engine = ["--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"] if direct else ["--ioengine=psync"]
        output = subprocess.run(
            ["fio", "--name=roofline", f"--filename={self._file}", f"--rw={kind}", f"--direct={direct}", f"--bs={bs}",
             f"--iodepth={iodepth}", f"--size={self._size}", "--fallocate=none", "--overwrite=0", "--scramble_buffers=0",
             "--output-format=json", *engine, *more],
            capture_output=True, text=True, check=True).stdout
        job = json.loads(output[output.index("{"):])["jobs"][0]
        seconds = job["job_runtime"] / 1e3
        self.cpu_seconds = seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100 * self._scale
        return seconds * self._scale

    def close(self) -> None:
        if self._is_mine:
            self._file.unlink(missing_ok=True)


class LoopFileSystem:
    """XFS on a loop device over a file in tmpfs: a fast disk, where what counts is the CPU we spend. Needs root."""

    def __init__(self, size: int = 7 << 30):
        self._backing = Path(f"/dev/shm/neve-bench-{os.getpid()}.img")
        self.folder = Path(f"/tmp/neve-bench-loop-{os.getpid()}")
        self._size = size
        self._device = ""

    def __enter__(self) -> Path:
        try:
            with open(self._backing, "wb") as file:
                file.truncate(self._size)
            self._device = self._tool("losetup", "--find", "--show", "--direct-io=on", str(self._backing)).strip()
            self._tool("mkfs.xfs", "-q", "-f", self._device)
            self.folder.mkdir()
            self._tool("mount", self._device, str(self.folder))
        except BaseException:
            self.__exit__()
            raise
        return self.folder

    def __exit__(self, *_) -> None:
        if self.folder.is_mount():
            for _ in range(20):
                if subprocess.run(["umount", str(self.folder)], capture_output=True).returncode == 0:
                    break
                time.sleep(0.5)
        if self.folder.exists():
            self.folder.rmdir()
        if self._device:
            subprocess.run(["losetup", "-d", self._device], capture_output=True)
        self._backing.unlink(missing_ok=True)

    @staticmethod
    def _tool(*command: str) -> str:
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise measure.NotHere(f"{command[0]}: {result.stderr.strip()}")
        return result.stdout
