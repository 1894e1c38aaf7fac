"""The second act: a model sharded over four processes, all of which are killed; it comes back on four, then on two, then on three.

Every rank is a process of its own, forked from this one, which has torch loaded already. The ranks shard the model with FSDP2 and talk
over gloo. A step's batch is the same whatever the number of ranks, each of which takes its share of it.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import neve
from neve.demo import text
from neve.demo.model import Config, Gpt

CONFIG = Config(width=256, heads=4, layers=2, dropout=0.0)
BATCH = 12            # of a step; two, three and four divide it
STEPS = 16            # in all
END_OF_THIRD_LIFE = 12
FILE_EVERY = 4
JOB = "gpt-sharded"


@dataclass(frozen=True)
class Plan:
    """What one life is to do. No tiers: it neither restores nor saves, and is what the others are compared with."""
    ranks: int
    steps: int
    tiers: tuple[str, ...] = ()
    kill: Optional[int] = None        # the step in which every rank is killed
    fraction: float = 0.5             # of a step's time, before that


@dataclass
class Life:
    """What its rank 0 said."""
    ends: list[int] = field(default_factory=list)             # of its ranks: the exit status, or minus the signal
    losses: dict[int, str] = field(default_factory=dict)      # as hexadecimal floats
    digests: dict[int, str] = field(default_factory=dict)     # of the whole state after a step
    seconds: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    restored: Optional[dict] = None


# ---- A rank ----


class Trainer:
    """One rank's part of the job."""

    def __init__(self, rank: int, ranks: int, say: Callable[..., None]):
        self.rank, self.ranks, self.say = rank, ranks, say
        torch.manual_seed(1)
        self.model = Gpt(CONFIG)
        mesh = init_device_mesh("cpu", (ranks,))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.order = torch.Generator().manual_seed(2)     # draws the batches, the same on every rank
        self.data = torch.frombuffer(bytearray(text.load()[1]), dtype=torch.uint8)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "order": self.order, "step": 0}

    def train(self) -> float:
        """One step; the loss of the whole batch."""
        length = CONFIG.context
        starts = torch.randint(len(self.data) - length - 1, (BATCH,), generator=self.order).chunk(self.ranks)[self.rank]
        rows = torch.stack([self.data[s:s + length + 1] for s in starts.tolist()]).long()
        loss = self.model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state["step"] += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item() / self.ranks

    def digest(self) -> str:
        """Of every bit of the whole state, whoever holds it."""
        made = hashlib.sha256(repr(self.state["step"]).encode())
        parameters = self.model.state_dict()
        moments = self.optimizer.state_dict()["state"]
        tensors = [*parameters.values(), *(part for entry in moments.values() for part in entry.values()), self.order.get_state()]
        for tensor in tensors:
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            made.update(f"{whole.dtype}{list(whole.shape)}".encode() + whole.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return made.hexdigest()

    def live(self, plan: Plan) -> None:
        ckpt = neve.Checkpointer(JOB, list(plan.tiers)) if plan.tiers else None
        if ckpt is not None:
            began = time.perf_counter()
            try:
                found = ckpt.restore(into=self.state)     # from whatever layout was saved, on however many ranks
            except neve.NotFound:
                pass
            else:
                seconds = time.perf_counter() - began
                self.say("restored", step=found.step, sources=found.sources, seconds=seconds, digest=self.digest())
        while self.state["step"] < plan.steps:
            began = time.perf_counter()
            self.say("begin", step=self.state["step"] + 1)
            loss = self.train()
            trained = time.perf_counter()
            if ckpt is not None:
                ckpt.save(self.state["step"], self.state)
            stall = time.perf_counter() - trained
            self.say("trained", step=self.state["step"], loss=loss.hex(), seconds=trained - began, stall=stall, digest=self.digest())
        if ckpt is not None:
            ckpt.close()


def _run_rank(rank: int, plan: Plan, rendezvous: str, out: int) -> None:
    torch.set_num_threads(1)

    def say(event: str, **facts: Any) -> None:
        if rank == 0:
            os.write(out, (json.dumps({"event": event, **facts}) + "\n").encode())

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=plan.ranks)
    Trainer(rank, plan.ranks, say).live(plan)
    dist.barrier()
    dist.destroy_process_group()


# ---- The job's lives ----


class Act:
    def __init__(self, folder: Path, ram: Path, seed: int):
        self.folder, self.ram, self.random = folder, ram, random.Random(seed)
        self.failed: list[str] = []
        self.lives = 0

    def check(self, what: str, held: bool, detail: str = "") -> None:
        if not held:
            self.failed.append(what)
        print(f"  {'ok    ' if held else 'FAILED'} {what}{': ' + detail if detail else ''}", flush=True)

    def live(self, plan: Plan) -> Life:
        """Starts every rank, listens to rank 0, and kills all of them if the plan says so."""
        self.lives += 1
        life, children = Life(), []
        reading, writing = os.pipe()
        rendezvous = str(self.folder / f"rendezvous-{self.lives}")
        sys.stdout.flush()
        for rank in range(plan.ranks):
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                self._be_rank(rank, plan, rendezvous, writing)
            children.append(pid)
        os.close(writing)
        with os.fdopen(reading) as lines:
            for line in lines:
                event = json.loads(line)
                self._note(life, event)
                if event["event"] == "begin" and event["step"] == plan.kill:
                    time.sleep(plan.fraction * statistics.median(life.seconds))
                    for pid in children:
                        os.kill(pid, signal.SIGKILL)
        life.ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        if set(life.ends) != {-signal.SIGKILL if plan.kill else 0}:
            tail = (self.folder / "ranks.log").read_text(errors="replace").splitlines()[-15:]
            sys.exit("\n".join([f"the ranks ended with {life.ends}; their log ends:", *tail]))
        return life

    def _be_rank(self, rank: int, plan: Plan, rendezvous: str, out: int) -> None:
        """The rest of a forked child's life."""
        code = 1
        try:
            log = os.open(self.folder / "ranks.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            _run_rank(rank, plan, rendezvous, out)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)

    @staticmethod
    def _note(life: Life, event: dict) -> None:
        if event["event"] == "restored":
            life.restored = event
        elif event["event"] == "trained":
            life.losses[event["step"]] = event["loss"]
            life.digests[event["step"]] = event["digest"]
            life.seconds.append(event["seconds"])
            life.stalls.append(event["stall"])

    def run(self) -> None:
        tiers = ("ram:?slots=2", f"file:{str(self.folder).replace('%', '%25').replace('?', '%3F')}?every={FILE_EVERY}")
        kills = self.random.randrange(4, 6), self.random.randrange(8, 10)
        plain = self.live(Plan(4, STEPS))
        print(f"Second act: a GPT sharded by FSDP2 over 4 processes, {STEPS} steps without checkpoints: "
              f"{statistics.median(plain.seconds) * 1e3:.0f} ms a step,\nloss {_loss(plain, 1):.3f} at step 1, "
              f"{_loss(plain, STEPS):.3f} at step {STEPS}")

        print("\nFirst life on 4 ranks, saving at every step; all of them are killed with SIGKILL")
        first = self.live(Plan(4, STEPS, tiers, kills[0], self.random.uniform(0.1, 0.9)))
        self.check(f"all 4 ranks were killed in step {kills[0]}", first.ends == [-signal.SIGKILL] * 4)
        print(f"  stall of training by save(): median {statistics.median(first.stalls[1:]) * 1e3:.1f} ms")

        print("\nSecond life on 4 ranks, from the RAM of the dead; killed as well")
        second = self.live(Plan(4, STEPS, tiers, kills[1], self.random.uniform(0.1, 0.9)))
        self._check_restored(second, "ram", max(first.losses), plain.digests)
        self._check_losses("of both lives", plain, {**first.losses, **second.losses})

        print("\nThird life on 2 ranks: other shards, from the RAM of the four dead")
        third = self.live(Plan(2, END_OF_THIRD_LIFE, tiers))
        self._check_restored(third, "ram", max(second.losses), plain.digests)
        self._check_losses("on 2 ranks", plain, third.losses, exact=False)

        print("\nFourth life on 3 ranks, from the files that the third left")
        shutil.rmtree(self.ram, ignore_errors=True)
        self.ram.mkdir(mode=0o700)
        fourth = self.live(Plan(3, STEPS, tiers))
        self._check_restored(fourth, "file", END_OF_THIRD_LIFE, third.digests)
        self._check_losses("on 3 ranks", plain, fourth.losses, exact=False)

    def _check_restored(self, life: Life, tier: str, newest: int, digests: dict[int, str]) -> None:
        if life.restored is None:
            self.check(f"restored from {tier}", False, "it started afresh")
            return
        step, sources = life.restored["step"], life.restored["sources"]
        shown = ", ".join(f"{count / 1e6:.1f} MB from {name}" for name, count in sources.items() if count)
        print(f"  restored step {step} in {life.restored['seconds']:.2f} s; rank 0 read {shown}")
        self.check("no finished step was lost, and every byte came from " + tier,
                   step in (newest, newest + 1) and 0 < sum(sources.values()) == sources.get(tier), f"step {step}")
        self.check(f"the state of step {step} is the same, bit for bit", digests.get(step) == life.restored["digest"])

    def _check_losses(self, whose: str, plain: Life, losses: dict[int, str], exact: bool = True) -> None:
        if exact:
            self.check(f"the loss of each of {len(losses)} steps {whose} is the same, bit for bit",
                       all(plain.losses[step] == loss for step, loss in losses.items()))
            return
        # Sums over another number of ranks are made in another order, so they are rounded otherwise.
        worst = max(abs(float.fromhex(loss) / _loss(plain, step) - 1) for step, loss in losses.items())
        self.check(f"the loss of each of {len(losses)} steps {whose} is the same but for rounding", worst < 1e-3,
                   f"differs by {worst:.1e} of it at most")


def _loss(life: Life, step: int) -> float:
    return float.fromhex(life.losses[step])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m neve.demo.sharded", description=__doc__.replace("\n", " "))
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for the run's files")
    parser.add_argument("--ram", type=Path, help="a folder on tmpfs for RAM slots, which is emptied; default: one of its own")
    parser.add_argument("--seed", type=int, default=1, help="chooses the steps that are killed, and when in them")
    options = parser.parse_args()
    began = time.monotonic()
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ram = options.ram or Path(tempfile.mkdtemp(prefix="neve-demo-", dir=parent))
    os.environ["NEVE_RAM_DIR"] = str(ram)
    options.folder.mkdir(parents=True, exist_ok=True)
    act = Act(options.folder.absolute(), ram, options.seed)
    try:
        act.run()
    finally:
        if options.ram is None:
            shutil.rmtree(ram, ignore_errors=True)
    print(f"\n{'FAILED: ' + '; '.join(act.failed) if act.failed else 'Every check of the second act held'} "
          f"({time.monotonic() - began:.0f} s)")
    sys.exit(bool(act.failed))


if __name__ == "__main__":
    main()
