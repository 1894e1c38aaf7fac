"""neve behind torch.distributed.checkpoint: its stock planners write and read neve's places."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open

import neve
import neve.dcp
from child import COMMAND, environment, passes, script
from worlds import run_worlds

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def command(*arguments):
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def test_DCP_a_checkpoint_id_is_a_job_folder_and_maybe_a_step(tmp_path):
    for text, expected in (("gpt", ("gpt", None)), ("gpt/step-1000", ("gpt", 1000)), ("gpt/step_7", ("gpt", 7)), ("gpt/0012", ("gpt", 12)),
                           ("gpt/checkpoint-3", ("gpt", 3)), ("gpt2", ("gpt2", None)), ("gpt/step-x", ("gpt/step-x", None)),
                           ("gpt/1234567890123", ("gpt/1234567890123", None))):
        assert neve.dcp.split_id(tmp_path / text) == (str(tmp_path / expected[0]), expected[1])
    for nothing in (None, ""):
        with pytest.raises(neve.Invalid, match="no checkpoint_id"):
            neve.dcp.split_id(nothing)


def trained(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_what_dcp_saves_is_an_ordinary_job_folder(tmp_path):
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7, "names": ["a", "b"],
             "mixed": [torch.ones(2), 5]}
    writer = neve.dcp.StorageWriter()
    metadata = dcp.save(state, checkpoint_id=tmp_path / "job" / "step-5", storage_writer=writer)
    assert metadata.storage_meta.save_id == "i0001.s000000"
    listed = json.loads(command("ls", "--json", tmp_path / "job").stdout)["saves"]
    assert [(save["step"], save["complete"], save["tags"]) for save in listed] == [(5, True, {"dcp": "nested"})]
    assert "model.0.weight" in command("inspect", tmp_path / "job").stdout and command("verify", tmp_path / "job").returncode == 0
    other, fresh = trained(1)[0], torch.optim.AdamW(model.parameters(), lr=0.5)
    into = {"model": other, "optimizer": fresh, "epoch": 0, "names": [], "mixed": [torch.zeros(2), 0]}
    with neve.Checkpointer(tmp_path / "job") as checkpointer:
        checkpointer.restore(into=into)
    assert into["epoch"] == 7 and into["names"] == ["a", "b"] and into["mixed"][0].tolist() == [1, 1] and into["mixed"][1] == 5
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), model.state_dict().values()))
    assert fresh.param_groups[0]["lr"] == 0.1 and len(fresh.state) == 4
    writer.close()


def test_a_job_folder_alone_is_the_step_after_its_newest(tmp_path):
    writer = neve.dcp.StorageWriter(tmp_path / "job")
    for _ in range(2):
        dcp.save({"x": torch.ones(1)}, storage_writer=writer)
    dcp.save({"x": torch.ones(1)}, checkpoint_id=tmp_path / "job" / "step-10", storage_writer=neve.dcp.StorageWriter())
    dcp.save({"x": torch.ones(1)}, checkpoint_id=tmp_path / "job", storage_writer=neve.dcp.StorageWriter())
    with neve.Checkpointer(tmp_path / "job") as checkpointer:
        saves = checkpointer.steps()
    assert [int(save) for save in saves] == [11, 10, 1, 0]
    assert len({save.save_id.split(".")[0] for save in saves}) == 1   # one life, however many writers
    writer.close()


def test_DCP_01_a_failed_write_is_a_failure_of_the_save(tmp_path):
    writer = neve.dcp.StorageWriter(tmp_path / "job", tiers=[f"file:{tmp_path}?timeout=1"])
    dcp.save({"x": torch.ones(1)}, checkpoint_id=tmp_path / "job" / "step-1", storage_writer=writer)
    for number in (1, 2):
        (tmp_path / "job" / f"step-000000000002.i0001.s00000{number}").write_text("in the way")
    with pytest.raises(dcp.api.CheckpointException, match="step-000000000002.i0001.s000001.*Not a directory"):
        dcp.save({"x": torch.zeros(1)}, checkpoint_id=tmp_path / "job" / "step-2", storage_writer=writer)
    with pytest.raises(dcp.api.CheckpointException, match="step-000000000002.i0001.s000002.*Not a directory"):
        dcp.async_save({"x": torch.zeros(1)}, checkpoint_id=tmp_path / "job" / "step-2", storage_writer=writer).result()
    with pytest.raises(neve.Unavailable):
        writer.close()   # says what it knows once more
    with neve.Checkpointer(tmp_path / "job") as checkpointer:
        assert checkpointer.latest() == 1


def test_the_staging_memory_is_used_again_and_never_while_a_save_needs_it():
    stager = neve.dcp.Stager()
    assert isinstance(stager, dcp.staging.AsyncStager) and isinstance(neve.dcp.StorageWriter("x"), dcp.staging.AsyncStager)
    state = {"w": torch.arange(1000.0), "l": [torch.ones(3), 5]}
    first = stager.stage(state)
    address = first["w"].data_ptr()
    state["w"].zero_()
    assert address != state["w"].data_ptr() and first["w"].tolist() == list(range(1000)) and first["l"][1] == 5
    second = stager.stage(state)     # the first is still there
    assert second["w"].data_ptr() != address and first["w"][7] == 7
    del first
    third = stager.stage(state)
    assert third["w"].data_ptr() == address
    stager.close()
    assert third["w"][0] == 0


def test_a_writer_travels_to_another_process_by_its_settings():
    import pickle

    writer = neve.dcp.StorageWriter("runs/gpt", tiers=["file:/x?keep=2"])
    copy = pickle.loads(pickle.dumps(writer))
    assert copy.checkpoint_id == "runs/gpt" and copy.stage({"x": 1}) == {"x": 1}
    assert type(pickle.loads(pickle.dumps(writer.stage({"x": 1})))) is dict


def test_a_place_that_holds_nothing_is_an_error(tmp_path):
    for path in ("job", "job/step-5"):
        with pytest.raises(dcp.api.CheckpointException, match="holds no complete save"):
            dcp.load({"x": torch.zeros(1)}, checkpoint_id=tmp_path / path, storage_reader=neve.dcp.StorageReader())


def test_dcp_loads_what_dcp_saved_in_one_process(tmp_path):
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7, "lr": 0.5, "name": "x", "flag": True,
             "none": None, "tuple": (1, 2), "nested": [1, [2]], "list": [torch.ones(2), 5], "i8": torch.arange(5, dtype=torch.int8)}
    dcp.save(state, checkpoint_id=tmp_path / "job" / "step-5", storage_writer=neve.dcp.StorageWriter())
    other, fresh = trained(1)
    into = {"model": other.state_dict(), "optimizer": fresh.state_dict(), "epoch": 0, "lr": 0.0, "name": "", "flag": False, "none": 1,
            "tuple": (), "nested": [1, [2]], "list": [torch.zeros(2), 0], "i8": torch.zeros(5, dtype=torch.int8)}
    dcp.load(into, checkpoint_id=tmp_path / "job", storage_reader=neve.dcp.StorageReader())
    for name in ("epoch", "lr", "name", "flag", "none", "tuple", "nested"):
        assert into[name] == state[name] and type(into[name]) is type(state[name]), name
    assert into["list"][0].tolist() == [1, 1] and into["list"][1] == 5 and into["i8"].tolist() == [0, 1, 2, 3, 4]
    assert all(torch.equal(into["model"][key], value) for key, value in state["model"].items())
    for index, entry in state["optimizer"]["state"].items():
        assert all(torch.equal(into["optimizer"]["state"][index][key], value) for key, value in entry.items())


def test_dcp_loads_what_a_checkpointer_saved(tmp_path):
    model, optimizer = trained()
    with neve.Checkpointer(tmp_path / "job") as checkpointer:
        checkpointer.save(3, {"model": model, "epoch": 7, "piece": neve.Piece(torch.ones(2, 2), (2, 2), (0, 0))}).wait("done", 60)
    into = {"model": trained(1)[0].state_dict(), "epoch": 0, "piece": torch.zeros(2, 2)}
    dcp.load(into, checkpoint_id=tmp_path / "job" / "step-3", storage_reader=neve.dcp.StorageReader())
    assert into["epoch"] == 7 and into["piece"].tolist() == [[1, 1], [1, 1]]
    assert all(torch.equal(into["model"][key], value) for key, value in model.state_dict().items())


def test_another_shape_or_key_is_the_planners_error(tmp_path):
    dcp.save({"x": torch.ones(3)}, checkpoint_id=tmp_path / "job" / "1", storage_writer=neve.dcp.StorageWriter())
    for into, words in (({"x": torch.zeros(4)}, "Size mismatch"), ({"y": torch.zeros(3)}, "Missing key")):
        with pytest.raises(dcp.api.CheckpointException, match=words):
            dcp.load(into, checkpoint_id=tmp_path / "job", storage_reader=neve.dcp.StorageReader())
    double = {"x": torch.zeros(3, dtype=torch.float64)}   # as with DCP's own files, the target's type decides
    dcp.load(double, checkpoint_id=tmp_path / "job", storage_reader=neve.dcp.StorageReader())
    assert double["x"].tolist() == [1, 1, 1]


class Halving(dcp.DefaultSavePlanner):
    """A planner that writes other bytes than the state holds."""

    def transform_object(self, write_item, thing):
        thing = super().transform_object(write_item, thing)
        return thing if write_item.type is dcp.planner.WriteItemType.BYTE_IO else thing.half()


def test_planners_that_change_what_is_written_are_heard(tmp_path):
    planner = Halving(enable_plan_caching=True)
    writer = neve.dcp.StorageWriter()
    for step in (1, 2):
        state = {"x": torch.ones(3) * step, "n": [step]}
        dcp.save(state, checkpoint_id=tmp_path / "job" / f"step-{step}", storage_writer=writer, planner=planner)
    with neve.Checkpointer(tmp_path / "job") as checkpointer:
        found = checkpointer.restore()
        assert found.step == 2 and found.state["x"].dtype is torch.float16 and found.state == {"x": found.state["x"], "n": [2]}
        assert [int(save) for save in checkpointer.steps()] == [2, 1]
    writer.close()


def test_without_flattening_the_top_level_is_what_stands_there(tmp_path):
    state = {"a.b": torch.ones(2), "c": {"d": 1, "e": [2, 3]}}
    dcp.save(state, checkpoint_id=tmp_path / "job" / "1", storage_writer=neve.dcp.StorageWriter(),
             planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    into = {"a.b": torch.zeros(2), "c": None}
    dcp.load(into, checkpoint_id=tmp_path / "job", storage_reader=neve.dcp.StorageReader(),
             planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
    assert into["a.b"].tolist() == [1, 1] and into["c"] == {"d": 1, "e": [2, 3]}


# ---- Many ranks ----


def script_of_torch(folder, ranks, verb):
    """Runs the FSDP2 script as torchrun does; what its rank 0 printed."""
    place = Path(__file__).with_name("fsdp2_script.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", place, verb, folder]
    done = subprocess.run(run, capture_output=True, text=True, timeout=240,
                          env=environment(folder.parent, OMP_NUM_THREADS="1", PYTHONHASHSEED="0"))
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip().splitlines()[-1]


def test_DCP_06_a_script_of_torchs_documentation_with_three_changed_lines(tmp_path):
    text = Path(__file__).with_name("fsdp2_script.py").read_text()
    assert text.count("# neve\n") == 3
    saved = script_of_torch(tmp_path / "run", 4, "save")
    assert script_of_torch(tmp_path / "run", 4, "load") == saved
    assert script_of_torch(tmp_path / "run", 3, "load") == saved


def descendants(process):
    """The processes that it has started, and those that these have."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def train_until_killed(folder, ranks, steps):
    """Runs that script under torchrun; every process is killed once rank 0 has told of so many saves. What it told."""
    place = Path(__file__).with_name("fsdp2_script.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", place, "train", folder]
    with open(folder.with_suffix(".log"), "a") as log, subprocess.Popen(
            run, stdout=subprocess.PIPE, stderr=log, text=True,
            env=environment(folder.parent, OMP_NUM_THREADS="1", PYTHONHASHSEED="0")) as agent:
        told = []
        try:
            for line in agent.stdout:
                told.append(line.split())
                if sum(words[0] == "saved" for words in told) == steps:
                    break
        finally:
            for process in [agent.pid, *descendants(agent.pid)]:   # torchrun and its ranks, in the middle of a step
                os.kill(process, signal.SIGKILL)
    assert told and told[-1][0] == "saved", folder.with_suffix(".log").read_text()[-4000:]
    return told


def test_DCP_06_a_script_under_torchrun_is_killed_and_goes_on_with_four_ranks_and_with_two(tmp_path):
    folder = tmp_path / "run"
    saved = train_until_killed(folder, 4, 3)
    assert [step for _, step, _ in saved] == ["1", "2", "3"]
    for ranks in (4, 2):
        told = train_until_killed(folder, ranks, 2)
        # The newest that was told of, or the one that was written when the kill came and nobody told of.
        verb, step, digest = told[0]
        assert verb == "restored" and int(step) - int(saved[-1][1]) in (0, 1), (told, saved)
        assert int(step) > int(saved[-1][1]) or digest == saved[-1][2]
        assert [int(words[1]) for words in told] == [int(step), int(step) + 1, int(step) + 2]
        saved = told


STATE = '''
import warnings
warnings.simplefilter("ignore")
import torch.distributed.checkpoint as dcp
import neve.dcp
from torch.distributed.tensor import Shard, Replicate, distribute_tensor, zeros

def state_of(rank, size, fill):
    mesh = init_device_mesh("cpu", (size,))
    table = torch.arange(30.0).reshape(10, 3)
    make = (lambda tensor, placement: distribute_tensor(tensor, mesh, [placement])) if fill else (
        lambda tensor, placement: distribute_tensor(torch.zeros_like(tensor), mesh, [placement]))
    return {"rows": make(table, Shard(0)), "columns": make(table, Shard(1)), "copy": make(table, Replicate()),
            "plain": torch.arange(8.0) if fill else torch.zeros(8), "groups": [{"lr": 0.5 if fill else 0.0, "w": make(table, Shard(0))}],
            "epoch": 7 if fill else 0, "words": ["a", "b"] if fill else []}

def save(rank, size, kind):
    writer = neve.dcp.StorageWriter()
    state = state_of(rank, size, True)
    if kind == "sync":
        dcp.save(state, checkpoint_id=f"{folder}/job/step-3", storage_writer=writer)
    else:
        futures = []
        for step in range(1, 4):
            future = dcp.async_save(state, checkpoint_id=f"{folder}/job/step-{step}", storage_writer=writer)
            total = torch.ones(1)
            dist.all_reduce(total, group=training)   # training's own collectives go on
            assert total.item() == size
            future.result()

def load(rank, size):
    state = state_of(rank, size, False)
    dcp.load(state, checkpoint_id=f"{folder}/job", storage_reader=neve.dcp.StorageReader())
    check_equal(whole(state), whole(state_of(rank, size, True)))
    other = state_of(rank, size, False)
    with neve.Checkpointer(f"{folder}/job") as checkpointer:    # and without dcp
        assert checkpointer.restore(into=other).step == 3
    check_equal(whole(other), whole(state_of(rank, size, True)))
'''


def test_DCP_06_dcp_saves_on_four_ranks_and_loads_on_others(tmp_path):
    run_worlds(tmp_path, STATE, """
        world_of(4, save, 4, "sync")
        for size in (4, 2, 3, 1):
            world_of(size, load, size)
    """)


def test_DCP_08_asynchronous_saves_beside_the_collectives_of_training(tmp_path):
    run_worlds(tmp_path, STATE, """
        def train_and_save(rank, size):
            global training
            training = dist.new_group(list(range(size)))
            save(rank, size, "async")
        world_of(2, train_and_save, 2)
        world_of(2, load, 2)
    """)


def test_DCP_03_what_ranks_have_alike_stands_once(tmp_path):
    run_worlds(tmp_path, STATE, """world_of(4, save, 4, "sync")""")
    held = [name for image in (tmp_path / "job").glob("step-*/*.safetensors") for name in safe_open(image, "pt").keys()]
    assert held.count("plain") == 1 and held.count("copy") == 1 and held.count("rows") == 4


def test_without_collectives_every_rank_names_the_step(tmp_path):
    run_worlds(tmp_path, STATE, """
        def save_alone(rank, size, checkpoint_id):
            dcp.save(state_of(rank, size, True), checkpoint_id=checkpoint_id, storage_writer=neve.dcp.StorageWriter(),
                     use_collectives=False)
        def refused(rank, size):
            try:
                save_alone(rank, size, f"{folder}/job")
            except neve.Invalid as error:
                assert "step-1000" in str(error), error
            else:
                assert False
        world_of(2, refused, 2)
        world_of(2, save_alone, 2, f"{folder}/job/step-3")
    """)
    assert json.loads(command("ls", "--json", tmp_path / "job").stdout)["saves"][0]["complete"]


PARTS = '''
import warnings
warnings.simplefilter("ignore")
import torch.distributed.checkpoint as dcp
import neve.dcp

def part_of(rank, fill):
    """Dictionaries of which rank 0 has values alone, and rank 1 a tensor, short and long, top level and nested."""
    state = {"step": 3 if fill else 0, "z": torch.arange(2.0) * fill,
             "deep": {"note": "x" if fill else "", "more": {"w": torch.ones(3) * fill}},
             "long": {"text": "y" * 9000 if fill else "", "w": torch.full((2,), 5.0) * fill}}
    if rank == 0:
        del state["z"], state["deep"]["more"]["w"], state["long"]["w"]
    return state

def save(rank, size):
    dcp.save(part_of(rank, True), checkpoint_id=f"{folder}/job/step-3", storage_writer=neve.dcp.StorageWriter())

def load(rank, size):
    state = part_of(1, False)
    dcp.load(state, checkpoint_id=f"{folder}/job", storage_reader=neve.dcp.StorageReader())
    check_equal(state, part_of(1, True))
    with neve.Checkpointer(f"{folder}/job", rank=0, world=1) as checkpointer:
        check_equal(checkpointer.restore().state, part_of(1, True))

def save_whole(rank, size):
    """A rank's state as it stands: dictionaries of values alone are saved as values."""
    with neve.Checkpointer(f"{folder}/job") as checkpointer:
        checkpointer.save(3, part_of(rank, True), tags={"dcp": "nested"}).wait("complete", 60)
'''


@pytest.mark.parametrize("how", ["save", "save_whole"])
def test_what_is_all_values_on_one_rank_does_not_hide_another_ranks_tensors(tmp_path, how):
    run_worlds(tmp_path, PARTS, f"""
        world_of(2, {how}, 2)
        for size in (2, 1):
            world_of(size, load, size)
    """)


KINDS = '''
import warnings
warnings.simplefilter("ignore")
from collections import OrderedDict
import numpy
import torch.distributed.checkpoint as dcp
import neve.dcp
from torch.distributed.tensor import Shard, Replicate, distribute_tensor

def state_of(rank, size, fill):
    """Of each kind of entry; without `fill` the same structure with nothing in it."""
    mesh = init_device_mesh("cpu", (size,))
    full = lambda tensor: tensor if fill else torch.zeros_like(tensor)
    cut = lambda tensor, placement: distribute_tensor(full(tensor), mesh, [placement])
    value = lambda thing: thing if fill else None
    tied = full(torch.arange(4.0))
    return {
        "bool": cut(torch.arange(9) % 2 == 0, Shard(0)), "float8": full(torch.arange(8.0).to(torch.float8_e4m3fn)),
        "complex": cut(torch.arange(6.0) * 1j + 1, Shard(0)), "uneven": cut(torch.arange(15.0).reshape(5, 3), Shard(0)),
        "row": cut(torch.arange(3.0).reshape(1, 3), Shard(0)), "columns": cut(torch.arange(35.0).reshape(5, 7), Shard(1)),
        "empty": torch.empty(0, 3), "empty_cut": cut(torch.empty(0, 4), Shard(0)), "number": full(torch.tensor(5.0)),
        "number_cut": cut(torch.tensor(7), Replicate()), "turned": full(torch.arange(12.0).reshape(3, 4)).t(),
        "expanded": torch.ones(1).expand(4) if fill else torch.zeros(4), "conj": (torch.arange(3.0) * 1j).conj() if fill else
        torch.zeros(3, dtype=torch.complex64), "a.b": {"c": full(torch.ones(2))}, "a": {"b": {"d": full(torch.ones(3))}},
        "keys": {1: full(torch.ones(2)), "b": value(5), (1, 2): full(torch.ones(1))}, "tied": [tied, tied],
        "list": [cut(torch.arange(8.0), Shard(0)), cut(torch.arange(4.0), Replicate()), full(torch.ones(3)), value(5),
                 [cut(torch.tensor(2.0), Replicate()), value("x")], cut(torch.arange(2.0).reshape(1, 2), Shard(0))],
        "objects": value([({"x": 1},), (2,)]), "array": value(numpy.arange(3)), "scalar": value(numpy.float32(1.5)),
        "ordered": OrderedDict([("x", value(1)), ("w", full(torch.ones(2)))]),
        "long": {"text": value("y" * 9000), "w": full(torch.ones(2))},
        "values": {"deep": {"list": value([1, 2]), "none": None}}, "tensor_in_tuple": value((torch.ones(2), {"w": torch.ones(1)})),
    }

def save(rank, size):
    dcp.save(state_of(rank, size, True), checkpoint_id=f"{folder}/job/step-3", storage_writer=neve.dcp.StorageWriter())

def check(left, right):
    left, right = whole(left), whole(right)
    assert left.pop("array").tolist() == right.pop("array").tolist() and torch.equal(left.pop("conj"), right.pop("conj"))
    check_equal(left, right)
    assert type(left["objects"][0]) is tuple and type(left["scalar"]) is numpy.float32

def load(rank, size):
    state = state_of(rank, size, False)
    dcp.load(state, checkpoint_id=f"{folder}/job", storage_reader=neve.dcp.StorageReader())
    check(state, state_of(rank, size, True))
'''


def test_DCP_02_states_of_every_kind_come_back_on_other_numbers_of_ranks(tmp_path):
    run_worlds(tmp_path, KINDS, """
        world_of(2, save, 2)
        for size in (2, 1, 3):
            world_of(size, load, size)
    """)


def test_objects_that_hold_tensors_come_back_without_flattening(tmp_path):
    state = {"c": {"w": torch.ones(2), "v": 3}, "l": [torch.ones(1), {"x": (torch.zeros(1),)}]}
    dcp.save(state, checkpoint_id=tmp_path / "job" / "1", storage_writer=neve.dcp.StorageWriter(),
             planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    into = {"c": None, "l": None}
    dcp.load(into, checkpoint_id=tmp_path / "job", storage_reader=neve.dcp.StorageReader(),
             planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
    assert into["c"]["w"].tolist() == [1, 1] and into["c"]["v"] == 3
    assert into["l"][0].tolist() == [1] and into["l"][1]["x"][0].tolist() == [0]


def test_dcp_is_there_after_import_neve_and_torch_only_once_it_is_used(tmp_path):
    passes(script("""
        import sys
        import neve
        from neve import *
        assert Piece is neve.Piece and "torch" not in sys.modules and "numpy" not in sys.modules
        assert neve.dcp.StorageWriter("runs/gpt").checkpoint_id == "runs/gpt" and "torch" in sys.modules
        try:
            neve.dpc
        except AttributeError as error:
            assert "'dpc'" in str(error)
        else:
            assert False
    """), tmp_path)
