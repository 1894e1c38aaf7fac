"""Sizes and limits: tensors beyond 4 GiB, very many tensors, too little shared memory, kernels without io_uring."""

import json
import os
import re
import struct
import subprocess
import time

import numpy
import pytest
import torch
from child import COMMAND, LONG, MOUNT, passes, run, script, with_mounts

import neve

# ---- PT-11: more than 2^31 elements and more than 4 GiB ----

BIG = (4 << 30) + 16 if LONG else (400 << 20) + 16
MARKS = {BIG // 2: 5, BIG - 1: 7, BIG // 4 - 3: 9}


def has_memory(bytes):
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read())[1]) << 10 > bytes


def test_PT_11_a_tensor_beyond_the_limits_of_32_bits_comes_back(tmp_path, job):
    if not has_memory(3 * BIG):
        pytest.skip(f"{3 * BIG} bytes of memory are not available")
    big = torch.zeros(BIG, dtype=torch.uint8)
    for index, value in MARKS.items():
        big[index] = value
    state = {"big": big, "after": torch.tensor([2.5]), "slice": big[BIG // 2 - 2:BIG // 2 + 3]}
    path = tmp_path / "big.safetensors"
    neve.save(state, path)
    loaded = neve.load(path)
    for index, value in MARKS.items():
        assert loaded["big"][index] == value
    assert loaded["big"].numel() == BIG and int(torch.count_nonzero(loaded["big"])) == len(MARKS)
    assert loaded["after"].tolist() == [2.5] and loaded["slice"].tolist() == [0, 0, 5, 0, 0]
    del loaded
    import safetensors

    with safetensors.safe_open(path, "pt") as file:   # every reader
        piece = file.get_slice("big")
        assert piece[BIG - 1:BIG].tolist() == [7] and piece[BIG // 2 - 1:BIG // 2 + 2].tolist() == [0, 5, 0]
        assert file.get_tensor("after").tolist() == [2.5]
    stats = subprocess.run([COMMAND, "inspect", "--json", path], capture_output=True, text=True, check=True)
    assert {entry["name"]: entry["bytes"] for entry in json.loads(stats.stdout)["tensors"]}["big"] == BIG
    path.unlink()
    with job(tmp_path / "run", [f"file:{tmp_path}"], job="run") as checkpointer:
        checkpointer.save(1, state).wait("done", 600)
        big.zero_()
        found = checkpointer.restore(into=state)
        assert found.step == 1 and all(big[index] == value for index, value in MARKS.items())
        assert int(torch.count_nonzero(big)) == len(MARKS) and state["after"].tolist() == [2.5]


# ---- PT-18: very many tiny tensors ----


def test_PT_18_very_many_tiny_tensors_cost_little_each(tmp_path):
    count = 300_000 if LONG else 70_000
    times = {}
    for part in (count // 4, count):
        values = torch.arange(float(part))
        state = {f"k{index}": values[index].clone() for index in range(part)}
        path = tmp_path / f"{part}.safetensors"
        begin = time.process_time()
        neve.save(state, path)
        middle = time.process_time()
        loaded = neve.load(path)
        times[part] = middle - begin, time.process_time() - middle
        assert list(loaded) == list(state) and torch.equal(torch.stack(list(loaded.values())), values)
        keys = sum(len(key) for key in state)
        per_tensor = (path.stat().st_size - 4 * part - keys) / part
        assert per_tensor <= 128, per_tensor
    print(f"CPU seconds of save and load by tensors: {times}")
    for save_or_load in (0, 1):   # four times as many: 16 times the time if it were quadratic
        assert times[count][save_or_load] < 10 * times[count // 4][save_or_load] + 0.2, times


# ---- MEM-01: too little shared memory ----

SMALL_SHM = MOUNT + """
import sys, neve, numpy
folder = os.environ["FOLDER"]
shm = folder + "/shm"
mount(shm, "64m")
os.environ["NEVE_RAM_DIR"] = shm + "/neve"
state = {"w": numpy.full(int(os.environ["SIZE"]) // 8, 3, "int64")}
def used():
    facts = os.statvfs(shm)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize
"""


def test_MEM_01_a_state_above_the_shared_memory_is_streamed_and_said_once(tmp_path):
    done = run(script(SMALL_SHM, """
        ckpt = neve.Checkpointer(folder + "/run")
        for step in (1, 2):
            ticket = ckpt.save(step, state)
            ticket.wait("file", 120)
            ticket.wait("done", 120)   # the state is safe in every place that could take it
            try:
                ticket.wait("ram")
                raise AssertionError("no slot of that size fits")
            except neve.Exhausted as error:
                assert str(error).count(str(state["w"].nbytes)[:4]) and "shm-size" in str(error), error
        assert "shm-size" in ckpt.health()["streaming"]
        found = ckpt.restore()
        assert found.step == 2 and (found.state["w"] == 3).all() and used() < 1 << 20
        ckpt.close()
    """), tmp_path, before=with_mounts(), variables={"SIZE": str(200 << 20)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("event=streaming") == 1, done.stderr


def test_MEM_01_a_state_of_which_one_slot_fits_has_fewer_slots(tmp_path):
    passes(script(SMALL_SHM, """
        ckpt = neve.Checkpointer(folder + "/run")
        for step in range(4):
            state["w"][:] = step
            ckpt.save(step, state).wait("done", 120)
            assert ckpt.health()["slots"] == 1 and used() <= 64 << 20
        found = ckpt.restore()
        assert found.step == 3 and (found.state["w"] == 3).all() and found.sources.get("ram", 0) > 0
        ckpt.close()
    """), tmp_path, before=with_mounts(), variables={"SIZE": str(40 << 20)})


def test_MEM_01_without_a_durable_tier_the_sizes_and_the_remedy_are_on_the_ticket(tmp_path):
    passes(script(SMALL_SHM, """
        import re
        ckpt = neve.Checkpointer(folder + "/run", ["ram:"], job="run")
        for call in (lambda: ckpt.prepare(state), lambda: ckpt.save(1, state).wait("done", 60)):
            try:
                call()
                raise AssertionError("no slot of that size fits")
            except neve.Exhausted as error:
                assert len(re.findall(r"\\d{8,}", str(error))) >= 2 and "NEVE_RAM_DIR" in str(error), error
        state["w"] = state["w"][:1000]
        ckpt.save(2, state).wait("done", 60)
        assert ckpt.restore().step == 2
    """), tmp_path, before=with_mounts(), variables={"SIZE": str(200 << 20)})


def test_MEM_01_shared_memory_that_others_fill_meanwhile_is_no_bus_error(tmp_path):
    passes(script(SMALL_SHM, """
        ckpt = neve.Checkpointer(folder + "/run")
        with open(shm + "/others", "wb") as file:
            ckpt.prepare({"w": state["w"][:8 << 17]})   # 8 MiB slots, reserved before they are touched
            ckpt.save(0, {"w": state["w"][:8 << 17]}).wait("done", 60)
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError:
                pass
            for step in (1, 2, 3):
                ckpt.save(step, {"w": state["w"][:8 << 17] + step}).wait("done", 60)
            larger = ckpt.save(4, state)   # for which there is no room at all any more
            larger.wait("file", 60)
        found = ckpt.restore()
        assert found.step == 4 and (found.state["w"] == 3).all()
        ckpt.close()
    """), tmp_path, before=with_mounts(), variables={"SIZE": str(48 << 20)})


# ---- MEM-02: io_uring is not allowed ----

# A seccomp filter on this thread and what it starts, by prctl: system call `number` fails with `error`.
FORBID = """
import ctypes, errno, os, platform, struct
def forbid(number, error):
    machine = {"x86_64": 0xc000003e, "aarch64": 0xc00000b7}[platform.machine()]
    program = b"".join(struct.pack("HBBI", *step) for step in (
        (0x20, 0, 0, 4), (0x15, 0, 3, machine),                        # the architecture
        (0x20, 0, 0, 0), (0x15, 0, 1, number),                         # the call
        (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7fff0000)))   # fails, or is allowed
    buffer = ctypes.create_string_buffer(program, len(program))
    filter = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())
"""

SETUP, ENTER, REGISTER = 425, 426, 427


@pytest.mark.parametrize("number, error", [(SETUP, "EPERM"), (SETUP, "ENOSYS"), (ENTER, "EPERM"), (REGISTER, "EPERM")])
def test_MEM_02_without_io_uring_saves_and_restores_work_and_one_line_says_so(tmp_path, number, error):
    done = run(script(FORBID, f"""
        forbid({number}, errno.{error})
        import neve, numpy
        folder = os.environ["FOLDER"]
        state = {{"w": numpy.arange(1 << 20), "k": 1}}
        for _ in range(2):
            with neve.Checkpointer(folder + "/run") as ckpt:
                for step in (1, 2):
                    ckpt.save(step, state).wait("done", 60)
                found = ckpt.restore()
                assert found.step == 2 and (found.state["w"] == state["w"]).all()
        neve.save(state, folder + "/w.safetensors")
        assert (neve.load(folder + "/w.safetensors")["w"] == state["w"]).all()
    """), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if "io_uring" in line]
    assert len(lines) == 1, done.stderr
    image = next((tmp_path / "run").glob("step-000000000002.i0002.*/*.safetensors"))
    length = struct.unpack("<Q", image.read_bytes()[:8])[0]
    assert image.read_bytes()[8 + length:][:8 << 20] == numpy.arange(1 << 20).tobytes()   # the same bytes
    assert subprocess.run([COMMAND, "verify", "--quiet", tmp_path / "run"]).returncode == 0


def test_MEM_02_a_forced_engine_that_is_not_allowed_is_an_error_that_names_it(tmp_path):
    done = run(script(FORBID, f"""
        forbid({SETUP}, errno.EPERM)
        import neve, numpy
        try:
            ckpt = neve.Checkpointer(os.environ["FOLDER"] + "/run")
            ckpt.save(1, {{"w": numpy.arange(9)}}).wait("file", 60)
        except neve.Error as error:
            assert "uring" in str(error), error
            os._exit(7)
    """), tmp_path, variables={"NEVE_IO": "uring"})
    assert done.returncode == 7, done.stdout + done.stderr
    assert os.listdir(tmp_path) in ([], ["run"])
