"""Worlds of torch ranks for tests: torch is imported once, then every rank of every world is a fork of that process.

A test gives the text of a script that defines functions and calls `world_of(ranks, function, ...)`: each rank runs
`function(rank, ...)` with torch.distributed initialised (gloo), and every rank must end well.
"""

from child import passes, script

PRELUDE = '''
import os, sys, traceback
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import neve

folder = os.environ["FOLDER"]
torch.set_num_threads(1)
worlds = 0

def world_of(size, function, *arguments):
    """Runs one world to its end."""
    global worlds
    worlds += 1
    children = []
    for rank in range(size):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{worlds}", rank=rank, world_size=size)
                function(rank, *arguments)
                dist.barrier()
                dist.destroy_process_group()
                code = 0
            except BaseException:
                print(f"rank {rank} of {size}:", file=sys.stderr)
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(pid)
    ends = [os.waitpid(pid, 0)[1] for pid in children]
    assert not any(ends), f"{function.__name__} on {size} ranks: {ends}"

def whole(thing):
    """DTensors of a nested state as whole tensors; a collective."""
    if isinstance(thing, dict):
        return {key: whole(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing)(map(whole, thing))
    return thing.full_tensor() if hasattr(thing, "full_tensor") else thing

def check_equal(left, right, path="state"):
    """The same types, keys, values and bits."""
    if isinstance(left, dict):
        assert sorted(map(str, left)) == sorted(map(str, right)), (path, list(left), list(right))
        for key in left:
            check_equal(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), (path, left, right)
        for index, (a, b) in enumerate(zip(left, right)):
            check_equal(a, b, f"{path}.{index}")
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape, (path, left, right)
        same = torch.equal(left.detach().contiguous().flatten().view(torch.uint8), right.detach().contiguous().flatten().view(torch.uint8))
        assert same, (path, left, right)
    else:
        assert left == right, (path, left, right)
'''


def run_worlds(folder, *parts, timeout=240, **variables):
    """Runs the script; what it printed."""
    return passes(script(PRELUDE, *parts), folder, timeout=timeout, variables=variables)
