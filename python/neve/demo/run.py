"""The demo: one training job is killed in the middle of a step, comes back from RAM, loses its RAM, comes back from files;
and its losses and final state are compared, bit for bit, with those of a run that nothing happened to. Then the same with a model that
is sharded over four processes, and comes back on four, on two and on three (`sharded.py`).
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from neve.__main__ import find_command

STEPS = 36                  # in all
END_OF_SECOND_LIFE = 24     # then the "reboot"
FILE_EVERY = 5
SLOTS = 3
RAM_NEEDED = 1_300_000_000  # slots of a 300 MB state, with some room


@dataclass
class Life:
    """What one start of the trainer said."""
    returncode: int = 0
    losses: dict[int, str] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    last: str = ""                                   # the last thing it did, as "step 14, after its forward pass"
    events: dict[str, dict] = field(default_factory=dict)


@dataclass(frozen=True)
class Kill:
    step: int
    fraction: float          # of a step's time


class Demo:
    def __init__(self, folder: Path, ram: Path, seed: int, layers: int | None):
        self.folder, self.ram, self.random = folder, ram, random.Random(seed)
        self.size_arguments = [] if layers is None else ["--layers", str(layers)]
        self.failed: list[str] = []
        self.tiers = [f"ram:?slots={SLOTS}", f"file:{_escaped(folder)}?every={FILE_EVERY}&keep=3"]
        self.job = folder / "gpt"

    def check(self, what: str, held: bool, detail: str = "") -> None:
        if not held:
            self.failed.append(what)
        print(f"  {'ok    ' if held else 'FAILED'} {what}{': ' + detail if detail else ''}", flush=True)

    def live(self, *arguments: str, kill: Kill | None = None) -> Life:
        """Starts the trainer, listens to it, and kills it when and if told to."""
        command = [sys.executable, "-m", "neve.demo.train", "--threads", str(min(2, os.cpu_count() or 1)),
                   *self.size_arguments, *arguments]
        environment = dict(os.environ, NEVE_RAM_DIR=str(self.ram), CUBLAS_WORKSPACE_CONFIG=":4096:8")
        life = Life()
        with open(self.folder / "trainer.log", "ab") as log, \
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True) as child:
            for line in child.stdout:
                event = json.loads(line)
                self._note(life, event)
                if kill and event["event"] == "begin" and event["step"] == kill.step:
                    time.sleep(kill.fraction * statistics.median(life.steps))
                    child.send_signal(signal.SIGKILL)
                    kill = None
        life.returncode = child.returncode
        if life.returncode not in (0, -signal.SIGKILL):
            tail = (self.folder / "trainer.log").read_text(errors="replace").splitlines()[-15:]
            sys.exit("\n".join(["the trainer failed; its log ends:", *tail]))
        return life

    @staticmethod
    def _note(life: Life, event: dict) -> None:
        kind = event["event"]
        if kind in ("begin", "forward", "backward"):
            life.last = f"step {event['step']}, " + {"begin": "in its forward pass", "forward": "in its backward pass",
                                                     "backward": "in its update or save"}[kind]
        elif kind == "saved":
            life.last = f"between steps {event['step']} and {event['step'] + 1}"
            life.losses[event["step"]] = event["loss"]
            life.steps.append(event["step_seconds"])
            life.stalls.append(event["stall_seconds"])
        life.events[kind] = event

    def run(self) -> None:
        kill = Kill(self.random.randrange(12, 19), self.random.uniform(0.1, 0.9))
        plain = self._undisturbed()
        saving = [part for tier in self.tiers for part in ("--tier", tier)]

        print(f"\nFirst life: saves at every step to {' and '.join(self.tiers)}")
        first = self.live("--steps", str(END_OF_SECOND_LIFE), *saving, kill=kill)
        self.check("killed with SIGKILL", first.returncode == -signal.SIGKILL, first.last)
        self._print_stalls(first, plain)

        print("\nSecond life: finds what the first one left in RAM")
        second = self.live("--steps", str(END_OF_SECOND_LIFE), *saving)
        newest = max(first.losses)
        self._check_restored(second, "ram", {newest, newest + 1})
        self.check("it ended by itself", second.returncode == 0, f"at step {END_OF_SECOND_LIFE}")

        shutil.rmtree(self.ram, ignore_errors=True)
        self.ram.mkdir(mode=0o700)
        print("\nThird life: RAM was wiped, as a reboot does")
        final = self.folder / "disturbed.pt"
        third = self.live("--steps", str(STEPS), "--final", str(final), *saving)
        self._check_restored(third, "file", {END_OF_SECOND_LIFE})
        self._print_stalls(third, plain)

        print("\nCompared with the undisturbed run")
        self._compare_losses(plain, (first, second, third))
        self._compare_states(self.folder / "undisturbed.pt", final)
        self._look_around()

    def second_act(self, seed: int) -> None:
        """Runs it in a process of its own, whose children the ranks are."""
        print(flush=True)
        shutil.rmtree(self.ram, ignore_errors=True)
        self.ram.mkdir(mode=0o700)
        act = subprocess.run([sys.executable, "-m", "neve.demo.sharded", "--folder", self.folder / "sharded", "--ram", self.ram,
                              "--seed", str(seed)])
        self.check("the second act held", act.returncode == 0)

    def _undisturbed(self) -> Life:
        plain = self.live("--plain", "--steps", str(STEPS), "--final", str(self.folder / "undisturbed.pt"))
        size, name = plain.events["trained"]["bytes"], plain.events["built"]["text"]
        print(f"A GPT with {size / 1e6:.0f} MB of state, trained on {name} for {STEPS} steps without checkpoints: "
              f"{statistics.median(plain.steps) * 1e3:.0f} ms a step,\nloss {_loss(plain, 1):.3f} at step 1, "
              f"{_loss(plain, STEPS):.3f} at step {STEPS}")
        if not self.size_arguments:
            self.check("the state is at least 200 MB", size >= 200e6)
        return plain

    def _print_stalls(self, life: Life, plain: Life) -> None:
        first, rest = life.stalls[0] * 1e3, [stall * 1e3 for stall in life.stalls[1:]]
        step = statistics.median(plain.steps) * 1e3
        print(f"  stall of training by save(): median {statistics.median(rest):.1f} ms, max {max(rest):.1f} ms, "
              f"beside steps of {step:.0f} ms (the first save, which makes the slots: {first:.0f} ms)")

    def _check_restored(self, life: Life, tier: str, steps: set[int]) -> None:
        restored = life.events.get("restored")
        if restored is None:
            self.check(f"restored from {tier}", False, "it started afresh")
            return
        total = sum(restored["sources"].values())
        sources = ", ".join(f"{count / 1e6:.0f} MB from {name}" for name, count in restored["sources"].items() if count)
        rate = total / restored["seconds"] / 2**30
        print(f"  restored step {restored['step']} in {restored['seconds']:.2f} s ({rate:.2f} GiB/s, verified): {sources}")
        self.check(f"every byte came from {tier}", 0 < total == restored["sources"].get(tier))
        self.check("no finished step was lost", restored["step"] in steps, f"step {restored['step']}")

    def _compare_losses(self, plain: Life, lives: tuple[Life, ...]) -> None:
        different = [step for life in lives for step, loss in life.losses.items() if plain.losses.get(step) != loss]
        covered = set().union(*(life.losses for life in lives))
        missing = [step for step in plain.losses if step not in covered]
        trained = sum(len(life.losses) for life in lives)
        # A step whose save was whole, but which was killed before it could say its loss, was not trained again.
        self.check(f"the loss of each of {trained} steps in 3 lives is the same, bit for bit",
                   not different and len(missing) <= 1, f"differs at {different}, missing {missing}" if different else "")

    def _compare_states(self, left: Path, right: Path) -> None:
        import torch

        import neve
        undisturbed, disturbed = torch.load(left), torch.load(right)
        count, differences = _compare(undisturbed, disturbed)
        self.check(f"the final state is the same, bit for bit ({count} tensors)", not differences, "; ".join(differences[:3]))
        with neve.Checkpointer("gpt", tiers=[self.tiers[1]]) as checkpointer:
            saved = checkpointer.restore()
        count, differences = _compare(undisturbed, saved.state)
        self.check(f"the last checkpoint in files holds that state ({count} tensors)", not differences,
                   "; ".join(differences[:3]) or f"step {saved.step}")
        model = saved.state["model"]
        self.check("tied weights came back tied", model["head.weight"].data_ptr() == model["tokens.weight"].data_ptr())

    def _look_around(self) -> None:
        print("\nTo look around")
        command = find_command()
        if command is None:
            self.check("the command `neve` is there", False)
            return
        results = {}
        place = os.path.relpath(self.job) if self.job.is_relative_to(Path.cwd()) else str(self.job)
        for verb in ("ls", "inspect", "verify"):
            result = subprocess.run([command, verb, place], capture_output=True, text=True)
            lines = (result.stdout + (result.stderr if result.returncode else "")).splitlines()
            print(f"$ neve {verb} {place}")
            for line in lines[:5]:
                print(f"  {line[:116]}")
            if len(lines) > 5:
                print(f"  ... and {len(lines) - 5} lines more")
            results[verb] = result.returncode
        self.check("the commands exit with 0", not any(results.values()), ", ".join(f"{v} {c}" for v, c in results.items()))


def _compare(left, right, path: str = "state") -> tuple[int, list[str]]:
    """Tensors compared, and where the two differ in type, structure, shape, dtype or any bit."""
    import torch
    if type(left) is not type(right):
        return 0, [f"{path}: {type(left).__name__} and {type(right).__name__}"]
    if isinstance(left, torch.Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return 1, [f"{path}: {left.dtype}{list(left.shape)} and {right.dtype}{list(right.shape)}"]
        same = torch.equal(left.contiguous().flatten().view(torch.uint8), right.contiguous().flatten().view(torch.uint8))
        return 1, [] if same else [f"{path}: values"]
    if isinstance(left, dict):
        if list(left) != list(right):
            return 0, [f"{path}: keys"]
        parts = [_compare(left[key], right[key], f"{path}.{key}") for key in left]
    elif isinstance(left, (list, tuple)):
        if len(left) != len(right):
            return 0, [f"{path}: {len(left)} and {len(right)} entries"]
        parts = [_compare(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(left, right))]
    else:
        return 0, [] if left == right else [f"{path}: {left!r} and {right!r}"]
    return sum(count for count, _ in parts), [text for _, found in parts for text in found]


def _loss(life: Life, step: int) -> float:
    return float.fromhex(life.losses[step])


def _escaped(path: Path) -> str:
    """A path as the place of a tier string."""
    return str(path).replace("%", "%25").replace("?", "%3F")


def _ram_folder() -> Path:
    """A RAM folder of the demo's own: another job's slots are never touched by the wipe."""
    for parent in ("/dev/shm", tempfile.gettempdir()):
        if os.access(parent, os.W_OK) and shutil.disk_usage(parent).free >= RAM_NEEDED:
            if parent != "/dev/shm":
                print(f"/dev/shm has no {RAM_NEEDED / 1e9:.1f} GB free: taking {parent} in its place "
                      "(docker run --shm-size=2g gives more)")
            return Path(tempfile.mkdtemp(prefix="neve-demo-", dir=parent))
    sys.exit(f"neither /dev/shm nor {tempfile.gettempdir()} has {RAM_NEEDED / 1e9:.1f} GB free")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m neve.demo", description=__doc__.replace("\n", " "))
    parser.add_argument("--folder", type=Path, default=Path("neve-demo"), help="where the run's files go (emptied first)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the step that is killed, and when in it")
    parser.add_argument("--layers", type=int, help="a smaller model, for a quick look (8 by default)")
    options = parser.parse_args()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))     # so that the RAM folder goes
    folder = options.folder.absolute()
    if folder.exists():
        if any(folder.iterdir()) and not (folder / "trainer.log").exists():
            sys.exit(f"{folder} holds something else: name an empty folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    ram = _ram_folder()
    demo = Demo(folder, ram, options.seed, options.layers)
    try:
        demo.run()
        demo.second_act(options.seed)
    finally:
        shutil.rmtree(ram, ignore_errors=True)
    print(f"\n{'FAILED: ' + '; '.join(demo.failed) if demo.failed else 'Every check held'} ({time.monotonic() - began:.0f} s)")
    sys.exit(bool(demo.failed))
