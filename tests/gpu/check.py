"""The GPU lane: builds neve, and runs on the GPU what elsewhere runs on a simulated one. `./dev gpu-check [--report FILE]`.

Works from an empty folder with the bundle of tests/gpu/bundle.py unpacked in it, and in a checkout. Needs CMake, ninja, a C++ compiler,
nvcc, and a python3 with a CUDA torch. Takes at most ten minutes, in this order: the build, one range of memory under all
registrations at once, the tests of devices, compute-sanitizer, torch, the digest kernels, the rows.

The report is one JSON object: "gpu" (name, driver; null without one), "lanes" (each with "ok", "seconds", "facts" or "skipped"), "ok".
Exit status: 0 all held, 1 a lane did not, 3 there is no GPU here: then only what needs none was done.
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THIRD_PARTY = ROOT / "third_party" / "usr"
TARGETS = ("neve_c", "kernels_test", "device_test", "capture_test", "capi_cuda_test", "gpu_registration")
BUDGET_S = 570


class Report:
    def __init__(self, budget_s: float):
        self.began, self.budget_s, self.lanes = time.monotonic(), budget_s, []

    def left(self) -> float:
        return self.budget_s - (time.monotonic() - self.began)

    def skip(self, name: str, why: str) -> None:
        self.lanes.append({"name": name, "ok": True, "skipped": why})
        print(f"gpu-check: {name}: skipped, {why}", file=sys.stderr, flush=True)

    def run(self, name: str, command: list, limit_s: float, environment: dict | None = None, facts=lambda text: {}) -> bool:
        """Runs one lane within the smaller of its limit and what is left."""
        limit_s = min(limit_s, self.left())
        if limit_s < 5:
            self.lanes.append({"name": name, "ok": False, "skipped": "no time was left"})
            return False
        print(f"gpu-check: {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=limit_s, env=environment, cwd=ROOT)
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, text = -1, (late.stdout or b"").decode(errors="replace") + f"\nended after {limit_s:.0f} s"
        except OSError as error:
            code, text = -1, str(error)
        lane = {"name": name, "ok": code == 0, "code": code, "seconds": round(time.monotonic() - began, 1)}
        lane["facts"] = facts(text)
        if code != 0:
            lane["output"] = text[-4000:]
            print(text[-4000:], file=sys.stderr)
        self.lanes.append(lane)
        return code == 0


def last_json(text: str) -> dict:
    """The object on the last line that is one."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return {}


def gtest_facts(text: str) -> dict:
    counts = {word: re.search(rf"\[ *{word} *\] (\d+) test", text) for word in ("PASSED", "SKIPPED", "FAILED")}
    return {word.lower(): int(match[1]) for word, match in counts.items() if match}


def find_gpu() -> dict | None:
    """The first device, by the driver itself; None without one. Makes no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, device, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return None
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, 255, device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    return {"name": name.value.decode(), "count": count.value, "driver": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def configure_flags() -> list[str]:
    flags = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DNEVE_CUDA=REQUIRED", "-DNEVE_BENCH=OFF", "-DNEVE_WERROR=OFF"]
    if THIRD_PARTY.is_dir():
        flags += [f"-DCMAKE_PREFIX_PATH={THIRD_PARTY}", "-DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON"]
        # Libraries of the bundle need others of it: the linker is told where they are, and an RPATH, unlike a RUNPATH, holds for those too.
        linking = f"-Wl,--disable-new-dtags,-rpath-link,{THIRD_PARTY / 'lib' / 'x86_64-linux-gnu'}"
        flags += [f"-DCMAKE_{kind}_LINKER_FLAGS={linking}" for kind in ("EXE", "SHARED")]
    return flags


def strays(library: Path) -> list[str]:
    """Of what the bundle brings, the libraries that are taken from elsewhere, or not found."""
    brought = {path.name for path in (THIRD_PARTY / "lib").rglob("*.so*")}
    lines = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.strip() for line in lines if line.split()[0] in brought and str(THIRD_PARTY) not in line]


def check(report: Report, build: Path) -> dict | None:
    jobs = str(os.cpu_count() or 2)
    built = (report.run("configure", ["cmake", "-S", ROOT, "-B", build, *configure_flags()], 120)
             and report.run("build", ["ninja", "-C", build, "-j", jobs, *TARGETS], BUDGET_S))
    if not built:
        return find_gpu()
    if THIRD_PARTY.is_dir():
        report.run("libraries are the bundle's", [sys.executable, __file__, "--own-libraries", build / "lib" / "libneve.so"], 30)
    report.run("kernels on the host", [build / "bin" / "kernels_test"], 60, facts=gtest_facts)
    report.run("captures on a simulated device", [build / "bin" / "capture_test"], 60, facts=gtest_facts)
    gpu = find_gpu()
    if gpu is None:
        return None
    with tempfile.TemporaryDirectory(prefix="neve-gpu-") as scratch, \
            tempfile.TemporaryDirectory(prefix="neve-gpu-ram-", dir="/dev/shm") as ram:
        environment = dict(os.environ, NEVE_RAM_DIR=ram, NEVE_LIBRARY=str(build / "lib" / "libneve.so"), PYTHONPATH=str(ROOT / "python"),
                           PYTHONUNBUFFERED="1")
        environment.pop("NEVE_DEVICE", None)
        report.run("registrations", [build / "bin" / "gpu_registration", scratch], 60, environment, last_json)
        report.run("devices", [build / "bin" / "device_test"], 120, environment, gtest_facts)
        sanitizer = shutil.which("compute-sanitizer")
        for tool in ("memcheck", "racecheck"):
            if sanitizer is None:
                report.skip(f"compute-sanitizer {tool}", "it is not installed")
            else:
                report.run(f"compute-sanitizer {tool}",
                           [sanitizer, "--tool", tool, "--error-exitcode", "9", build / "bin" / "device_test", "--gtest_filter=*/cuda"], 90,
                           environment, gtest_facts)
        lane = Path(__file__).with_name("torch_lane.py")
        report.run("torch", [sys.executable, lane, "rounds", scratch], 150, environment, last_json)
        digest = build / "bin" / "digest_rate"
        include = [f"-I{THIRD_PARTY / 'include'}"] if THIRD_PARTY.is_dir() else []
        if report.run("build the digest's rate", ["nvcc", "-std=c++20", "-O3", "-arch=native", f"-I{ROOT}", *include, "-o", digest,
                                                  Path(__file__).with_name("digest_rate.cu")], 120):
            report.run("digest kernels", [digest], 60, environment, last_json)
        report.run("rows", [sys.executable, lane, "rows", scratch], 200, environment, last_json)
    return gpu


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=ROOT / "report.json")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu", help="where to build")
    parser.add_argument("--own-libraries", type=Path, metavar="LIBRARY", help="only look where this library's libraries come from")
    options = parser.parse_args()
    if options.own_libraries:
        found = strays(options.own_libraries)
        print("\n".join(found))
        return 1 if found else 0
    report = Report(BUDGET_S)
    gpu = check(report, options.build.absolute())
    facts = ROOT / "bundle.json"
    ok = all(lane["ok"] for lane in report.lanes)
    document = {"gpu": gpu, "bundle": json.loads(facts.read_text()) if facts.exists() else None,
                "seconds": round(time.monotonic() - report.began, 1), "lanes": report.lanes, "ok": ok and gpu is not None}
    options.report.write_text(json.dumps(document, indent=1) + "\n")
    for lane in report.lanes:
        print(f"{'ok    ' if lane['ok'] else 'FAILED'} {lane['name']}{', skipped: ' + lane['skipped'] if 'skipped' in lane else ''} "
              f"{json.dumps(lane['facts']) if lane.get('facts') else ''}")
    print(f"report: {options.report}")
    if not ok:
        return 1
    if gpu is None:
        print("no GPU here: what needs none was built and run, and the report says \"gpu\": null")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
