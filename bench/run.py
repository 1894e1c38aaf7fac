"""Runs the side-by-side rows: `./dev bench [--json FILE] [name...]`. Names choose rows; none means all of them.

Each row compares neve with a roofline that is not ours, in turns, in this one run. Exit code 0: all rows were measured,
whether or not they held their bars (the table says); 1: a row failed to run.
"""

import argparse
import functools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]


def rows(folder: Path) -> dict[tuple[str, ...], object]:
    """Rows that are measured together, by their names, in the order they run."""
    import rows_dcp
    import rows_device
    import rows_file
    import rows_files
    import rows_memory
    import rows_reshard
    import rows_step
    import rows_tiny
    import rows_torch
    return {
        ("save_block",): rows_memory.save_block,
        ("save_block_strided",): rows_memory.save_block_strided,
        ("ram_read",): rows_memory.ram_read,
        ("file_write_disk", "file_write_cpu_disk"): functools.partial(rows_file.write_disk, folder),
        ("file_write_loop", "file_write_cpu_loop"): functools.partial(rows_file.write_loop, folder),
        ("file_read_disk",): functools.partial(rows_file.read_disk, folder),
        ("file_read_loop",): functools.partial(rows_file.read_loop, folder),
        ("tiny_save",): rows_tiny.tiny_save,
        ("tiny_load",): rows_tiny.tiny_load,
        ("torch_save",): functools.partial(rows_torch.save, folder),
        ("torch_load",): functools.partial(rows_torch.load, folder),
        ("torch_async_block",): functools.partial(rows_torch.async_block, folder),
        ("torch_open_one",): functools.partial(rows_files.open_one, folder),
        ("verify",): functools.partial(rows_files.verify, folder),
        ("convert",): functools.partial(rows_files.convert, folder),
        ("safetensors_load",): functools.partial(rows_files.load, folder),
        ("dcp_load", "dcp_load_read"): functools.partial(rows_dcp.load, folder),
        ("torch_tiny_save", "torch_tiny_load"): functools.partial(rows_torch.tiny, folder),
        ("step_inflation",): functools.partial(rows_step.step_inflation, folder),
        ("anon_memory",): rows_memory.anon_memory,
        ("fence_block_64m", "fence_block_1g", "device_copy_64m", "device_copy_1g"): rows_device.fence_block,
        ("device_tiny_first_c", "device_tiny_steady_c", "device_tiny_first", "device_tiny_steady"): rows_device.device_tiny,
        ("plan_reshard", "plan_reshard_growth"): rows_reshard.plan,
        ("find_16k", "find_16k_requests", "find_16k_memory"): rows_reshard.find,
        ("reshard_time", "reshard_bytes"): functools.partial(rows_reshard.reshard, folder),
    }


def host(folder: Path) -> dict:
    import torch
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "file_system": subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip(),
        "torch": torch.__version__,
        "commit": commit,
        "time": int(time.time()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--disk", type=Path, default=ROOT / "build" / "bench", help="folder for the disk rows")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))     # so that mounts and RAM folders go
    folder = options.disk.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ram = Path(f"/dev/shm/neve-bench-ram-{os.getpid()}")
    ram.mkdir(mode=0o700)
    os.environ["NEVE_RAM_DIR"] = str(ram)
    try:
        return measure_all(options, folder)
    finally:
        shutil.rmtree(ram, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def measure_all(options: argparse.Namespace, folder: Path) -> int:
    import measure
    known = rows(folder)
    unknown = set(options.names) - {name for names in known for name in names}
    if unknown:
        sys.exit(f"no such row: {', '.join(sorted(unknown))}\nthere are: {', '.join(name for names in known for name in names)}")
    found, failed = [], []
    for names, run in known.items():
        if options.names and not set(names) & set(options.names):
            continue
        print(f"{', '.join(names)}:", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            found += run()
        except measure.NotHere as reason:
            measure.note(f"not on this machine: {reason}")
        except Exception:
            traceback.print_exc()
            failed += names
        measure.note(f"{time.monotonic() - began:.0f} s")
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    print(f"\n{'row':22} {'value':>9} {'bar':>9}  {'':6} {'min':>9} {'median':>9} {'max':>9} {'n':>3}  facts")
    for row in found:
        held = {None: "", True: "held", False: "missed"}[row.held()]
        facts = ", ".join(f"{key} {value}" for key, value in row.facts.items())
        print(f"{row.name:22} {row.value:9.3f} {row.bar or '-':>9}  {held:6} {row.min:9.3f} {row.median:9.3f} {row.max:9.3f} "
              f"{row.n:3}  {facts}")
    if failed:
        print(f"failed to run: {', '.join(failed)}")
    if options.json:
        document = {"host": host(folder), "rows": [row.document() for row in found]}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
