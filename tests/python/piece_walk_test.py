"""Describing pieces and DTensors: what the image is told of them, what is refused by name. One process plays any rank of a mesh."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import neve
from child import environment
from neve import _pieces
from neve._describe import Describer


def specs(state):
    return {spec.name: spec.part and (spec.shape, *spec.part) for spec in Describer().capture(state).structure.specs}


def tree(state):
    return Describer().capture(state).structure.tree


def rows(begin, count, whole=8):
    return neve.Piece(torch.arange(begin * 3.0, (begin + count) * 3.0).reshape(count, 3), (whole, 3), (begin, 0))


@contextlib.contextmanager
def rank_of(world, rank, *mesh):
    """This process as one rank of a mesh; the process group does nothing."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield init_device_mesh("cpu", mesh or (world,), mesh_dim_names=tuple(f"d{index}" for index in range(len(mesh or (1,)))))
    finally:
        dist.destroy_process_group()


def distributed(tensor, mesh, *placements):
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, mesh, list(placements), src_data_rank=None)


def test_a_piece_is_an_ordinary_place_with_a_box():
    state = {"m": {"w": rows(2, 3), "b": torch.zeros(2)}}
    assert specs(state) == {"m.w": ((3, 3), (8, 3), (2, 0), ""), "m.b": None}
    assert tree(state) == '{"d":[["m",{"d":[2]}]]}'
    assert specs({"p": neve.Piece(np.zeros((2, 2)), (4, 2), (2, 0))}) == {"p": ((2, 2), (4, 2), (2, 0), "")}
    assert specs(rows(0, 2)) == {"~tensor": ((2, 3), (8, 3), (0, 0), "")}


def test_several_boxes_of_one_logical_tensor_have_its_name():
    state = {"a": rows(0, 2), "b": neve.Piece(torch.zeros(3, 3), (8, 3), (2, 0), name="a"), "c": rows(0, 1)}
    assert specs(state)["b"] == ((3, 3), (8, 3), (2, 0), "a")
    boxes = {"w": _pieces.Boxes([rows(0, 2), rows(4, 2)])}
    assert specs(boxes) == {"w.0": ((2, 3), (8, 3), (0, 0), "w"), "w.1": ((2, 3), (8, 3), (4, 0), "w")}
    assert tree(boxes) == '{"d":[["w",{"o":"pieces","c":[{"T":1},{"T":1}]}]]}'


def test_DCP_03_one_element_twice_in_a_rank_is_refused_by_name(job):
    state = {"a": rows(0, 3), "b": neve.Piece(torch.zeros(3, 3), (8, 3), (2, 0), name="a")}
    checkpointer = job()
    with pytest.raises(neve.Invalid, match="'a' and 'b' both hold elements of 'a'"):
        checkpointer.save(1, state)
    state["b"].tensor = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(neve.Invalid, match="'b' is a piece of 'a', F64"):
        checkpointer.save(1, state)
    state["b"].tensor = torch.zeros(9, 3)
    with pytest.raises(neve.Invalid, match=r"'b' is a Piece whose tensor has been changed: it of shape \[9, 3\]"):
        checkpointer.save(1, state)
    assert checkpointer.steps() == []


def test_another_box_or_another_tensor_is_noticed():
    describer = Describer()
    state = {"w": rows(2, 3), "v": rows(0, 1)}
    structure = describer.capture(state).structure
    state["w"].tensor.add_(1)
    state["v"] = rows(0, 1)
    assert describer.capture(state).structure is structure
    for other in (rows(1, 3), rows(2, 4), rows(2, 3, 9), rows(2, 3).tensor, neve.Piece(np.zeros((3, 3)), (8, 3), (2, 0)), 5):
        structure = describer.capture(state).structure
        changed = {**state, "w": other}
        assert describer.capture(changed).structure is not structure, other


def test_one_piece_in_two_places_is_one_piece_again():
    piece = rows(0, 2)
    state = {"a": piece, "b": piece}
    assert tree(state) == '{"d":[1,["b",{"r":"a"}]]}'
    describer = Describer()
    structure = describer.capture(state).structure
    assert describer.capture(state).structure is structure
    state["b"] = rows(0, 2)
    assert describer.capture(state).structure is not structure
    tensor = torch.zeros(2, 3)   # as a piece and as itself: two things
    assert specs({"t": tensor, "p": neve.Piece(tensor, (2, 3), (0, 0))}) == {"t": None, "p": ((2, 3), (2, 3), (0, 0), "")}


def test_what_cannot_be_a_piece_is_refused_by_name():
    with pytest.raises(neve.Unsupported, match="'x.p' is a Piece of NumPy dtype >f4"):
        specs({"x": {"p": neve.Piece(np.zeros(2, ">f4"), (4,), (0,))}})
    with pytest.raises(neve.Unsupported, match="'p' is a Piece of a tensor without memory"):
        specs({"p": neve.Piece(torch.zeros(2, device="meta"), (4,), (0,))})


def test_a_piece_is_no_plain_safetensors_file(tmp_path):
    with pytest.raises(neve.Unsupported, match="a piece of a larger tensor"):
        neve.save({"w": rows(0, 2)}, tmp_path / "x.safetensors")


# ---- DTensor ----


@pytest.mark.parametrize("rank, expected", [
    (0, ((4, 3), (10, 3), (0, 0), "")), (1, ((4, 3), (10, 3), (4, 0), "")), (2, ((2, 3), (10, 3), (8, 0), ""))])
def test_a_shard_of_uneven_rows_is_its_box_without_padding(rank, expected):
    from torch.distributed.tensor import Shard

    with rank_of(3, rank) as mesh:
        whole = torch.arange(30.0).reshape(10, 3)
        assert specs({"w": distributed(whole, mesh, Shard(0))}) == {"w": expected}


def test_a_rank_without_a_share_has_an_empty_box():
    from torch.distributed.tensor import Shard

    with rank_of(4, 3) as mesh:
        assert specs({"w": distributed(torch.zeros(3, 5), mesh, Shard(0))}) == {"w": ((0, 5), (3, 5), (0, 0), "")}


def test_replicas_and_several_dimensions_of_a_mesh():
    from torch.distributed.tensor import Replicate, Shard

    whole = torch.zeros(8, 6)
    for rank, offset in enumerate([(0, 0), (0, 3), (4, 0), (4, 3)]):
        with rank_of(4, rank, 2, 2) as mesh:
            state = {"both": distributed(whole, mesh, Shard(0), Shard(1)), "rows": distributed(whole, mesh, Shard(0), Replicate()),
                     "all": distributed(whole, mesh, Replicate(), Replicate())}
            assert specs(state) == {"both": ((4, 3), (8, 6), offset, ""), "rows": ((4, 6), (8, 6), (offset[0], 0), ""),
                                    "all": ((8, 6), (8, 6), (0, 0), "")}
            assert tree(state) == '{"d":[3]}'


def test_a_strided_shard_of_fsdp_over_tensor_parallel():
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    for rank, begin in enumerate([0, 4, 2, 6]):
        with rank_of(4, rank, 2, 2) as mesh:
            placements = [_StridedShard(0, split_factor=2), Shard(0)]
            made = DTensor.from_local(torch.zeros(2, 3), mesh, placements, run_check=False, shape=torch.Size((8, 3)), stride=(3, 1))
            assert specs({"w": made}) == {"w": ((2, 3), (8, 3), (begin, 0), "")}


def test_a_strided_shard_in_several_boxes():
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import _StridedShard

    with rank_of(2, 1) as mesh:
        local = torch.arange(12.0).reshape(4, 3)
        made = DTensor.from_local(local, mesh, [_StridedShard(0, split_factor=2)], run_check=False, shape=torch.Size((8, 3)),
                                  stride=(3, 1))
        describer = Describer()
        structure = describer.capture({"w": made}).structure
        assert specs({"w": made}) == {"w.0": ((2, 3), (8, 3), (2, 0), "w"), "w.1": ((2, 3), (8, 3), (6, 0), "w")}
        assert structure.tree == '{"d":[["w",{"o":"pieces","c":[{"T":1},{"T":1}]}]]}'
        assert describer.capture({"w": made}).structure is structure


def test_a_partial_is_refused_by_name():
    from torch.distributed.tensor import DTensor, Partial, Shard

    with rank_of(4, 0, 2, 2) as mesh:
        made = DTensor.from_local(torch.zeros(2), mesh, [Shard(0), Partial()], run_check=False)
        with pytest.raises(neve.Unsupported, match=r"'m\.w' is a DTensor with the placement P"):
            specs({"m": {"w": made}})


def test_parameters_and_gradients_of_dtensors_are_kept_and_watched():
    from torch.distributed.tensor import Shard

    with rank_of(2, 0) as mesh:
        weight = torch.nn.Parameter(distributed(torch.zeros(4, 2), mesh, Shard(0)))
        state = {"p": weight, "d": weight.detach().clone(), "n": 1}
        assert tree(state) == '{"d":[["p",{"T":1,"param":1,"grad":1}],1,["n","v"]]}'
        describer = Describer()
        structure = describer.capture(state).structure
        assert describer.capture(state).structure is structure
        state["d"] = distributed(torch.ones(4, 2), mesh, Shard(0))
        assert describer.capture(state).structure is structure
        for other in (distributed(torch.ones(4, 2), mesh, Shard(1)), distributed(torch.ones(6, 2), mesh, Shard(0)),
                      distributed(torch.ones(4, 2), mesh, Shard(0)).requires_grad_(), torch.zeros(2, 2)):
            structure = describer.capture(state).structure
            assert describer.capture({**state, "d": other}).structure is not structure


def test_tied_weights_are_stored_once():
    from torch.distributed.tensor import Shard

    with rank_of(2, 0) as mesh:
        weight = distributed(torch.zeros(4, 2), mesh, Shard(0))
        describer = Describer()
        state = {"a": weight.detach(), "b": weight.detach()}
        structure = describer.capture(state).structure
        assert structure.tree == '{"d":[1,["b",{"r":"a"}]]}' and len(structure.specs) == 1
        assert describer.capture({"a": weight.detach(), "b": weight.detach()}).structure is structure
        state["b"] = weight.detach().clone()
        assert len(describer.capture(state).structure.specs) == 2


def test_a_dtensor_is_collected_by_the_memory_of_its_shard():
    from torch.distributed.tensor import Shard

    with rank_of(2, 1) as mesh:
        made = distributed(torch.arange(8.0), mesh, Shard(0))
        capture = Describer().capture({"w": made})
        assert list(capture._addresses) == [made.to_local().data_ptr()]
        assert made.to_local().tolist() == [4, 5, 6, 7]


def test_nothing_of_torch_distributed_is_imported_for_ordinary_states(tmp_path):
    script = """
import sys, torch
known = set(sys.modules)
from neve._describe import Describer
Describer().capture({"w": torch.zeros(3), "b": {"x": torch.zeros(2)}, "n": 3})
new = sorted(name for name in set(sys.modules) - known if name.startswith("torch"))
assert not new, new
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
