"""States of sharded tensors: saved on one number of ranks and one mesh, restored on others, bit for bit."""

from worlds import run_worlds


MODEL = '''
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

def model_of(seed, mesh, tensor_parallel=False):
    """Layers whose rows do not divide evenly, sharded by FSDP2 and maybe by tensor parallelism first."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(10, 14), torch.nn.ReLU(), torch.nn.Linear(14, 3))
    if tensor_parallel:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["dp"] if tensor_parallel else mesh)
    fully_shard(model, mesh=mesh["dp"] if tensor_parallel else mesh)
    return model

def mesh_of(size, tensor_parallel=False):
    if tensor_parallel:
        return init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    return init_device_mesh("cpu", (size,))

def train(model, optimizer, steps):
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(6, 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

def save(rank, size, tensor_parallel):
    model = model_of(1, mesh_of(size, tensor_parallel), tensor_parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    with neve.Checkpointer(f"{folder}/job") as ckpt:
        ckpt.save(3, {"model": model, "optimizer": optimizer, "step": 3, "plain": torch.arange(5)}).wait("complete", 60)
    state = whole({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if rank == 0:
        torch.save(state, f"{folder}/expected.pt")

def restore(rank, size, tensor_parallel):
    model = model_of(2, mesh_of(size, tensor_parallel), tensor_parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    into = {"model": model, "optimizer": optimizer, "step": 0, "plain": torch.zeros(5, dtype=torch.int64)}
    with neve.Checkpointer(f"{folder}/job") as ckpt:
        found = ckpt.restore(into=into)
    assert found.step == 3 and into["step"] == 3 and into["plain"].tolist() == [0, 1, 2, 3, 4]
    expected = torch.load(f"{folder}/expected.pt")
    check_equal(whole({"model": model.state_dict(), "optimizer": optimizer.state_dict()}), expected)
    moments = [entry["exp_avg"] for entry in optimizer.state.values()]
    assert all(isinstance(moment, DTensor) for moment in moments)
    train(model, optimizer, 1)   # and it goes on
'''


def test_DCP_06_an_fsdp_model_and_its_optimizer_come_back_on_other_numbers_of_ranks(tmp_path):
    run_worlds(tmp_path, MODEL, """
        world_of(4, save, 4, False)
        for size in (4, 2, 3):
            world_of(size, restore, size, False)
    """)


def test_DCP_06_fsdp_over_tensor_parallel_comes_back_on_other_meshes(tmp_path):
    run_worlds(tmp_path, MODEL, """
        world_of(4, save, 4, True)
        world_of(4, restore, 4, True)
        world_of(4, restore, 4, False)
        world_of(2, restore, 2, True)
    """)
