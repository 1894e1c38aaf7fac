"""Pieces through the engine in one process: what an image says of them, and coming back into the boxes that were saved."""

import json
import subprocess

import numpy as np
import pytest
import torch
from safetensors import safe_open

import neve
from child import COMMAND
from neve import _pieces
from piece_walk_test import distributed, rank_of, rows


def inspected(folder):
    done = subprocess.run([COMMAND, "inspect", "--json", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {tensor["name"]: tensor for tensor in json.loads(done.stdout)["tensors"]}


def test_an_image_says_which_box_a_piece_is(job, tmp_path):
    state = {"w": rows(2, 3), "b": torch.zeros(2), "x": _pieces.Boxes([rows(0, 1), rows(6, 2)]),
             "n": neve.Piece(np.ones((2, 2), np.int16), (4, 2), (2, 0), name="other")}
    with job() as checkpointer:
        checkpointer.save(1, state).wait("done", 60)
    tensors = inspected(tmp_path / "job")
    assert {name: tensor["piece"] for name, tensor in tensors.items()} == {
        "w": {"name": "w", "global_shape": [8, 3], "offset": [2, 0]}, "b": None,
        "x.0": {"name": "x", "global_shape": [8, 3], "offset": [0, 0]},
        "x.1": {"name": "x", "global_shape": [8, 3], "offset": [6, 0]},
        "n": {"name": "other", "global_shape": [4, 2], "offset": [2, 0]}}
    image = next((tmp_path / "job").glob("step-*/shard-*.safetensors"))
    with safe_open(image, "pt") as opened:
        assert opened.get_tensor("w").tolist() == state["w"].tensor.tolist()


def test_pieces_come_back_as_pieces(job):
    state = {"w": rows(2, 3), "x": _pieces.Boxes([rows(0, 1), rows(6, 2)]), "m": torch.nn.Parameter(torch.ones(2)),
             "n": neve.Piece(np.ones((2, 2), np.int16), (4, 2), (2, 0), name="other"), "e": rows(8, 0)}
    state["again"] = state["w"]
    with job() as checkpointer:
        checkpointer.save(1, state).wait("done", 60)
        found = checkpointer.restore().state
        for name in ("w", "n", "e"):
            assert type(found[name]) is neve.Piece
            assert (found[name].global_shape, found[name].offset, found[name].name) == (
                state[name].global_shape, state[name].offset, state[name].name)
            assert found[name].tensor.tolist() == state[name].tensor.tolist()
        assert found["again"] is found["w"] and type(found["n"].tensor) is np.ndarray
        assert [(piece.offset, piece.name) for piece in found["x"]] == [((0, 0), "x"), ((6, 0), "x")]
        checkpointer.save(2, found).wait("done", 60)   # and can be saved again


def test_pieces_of_the_target_are_filled_in_place(job):
    with job() as checkpointer:
        checkpointer.save(1, {"w": rows(2, 3), "x": _pieces.Boxes([rows(0, 1), rows(6, 2)])}).wait("done", 60)
        memory, into = torch.zeros(3, 3), {"x": [rows(0, 1), rows(6, 2)]}
        into["x"][1].tensor.zero_()
        into["w"] = neve.Piece(memory, (8, 3), (2, 0))
        found = checkpointer.restore(into=into)
        assert into["w"].tensor is memory and memory.tolist() == rows(2, 3).tensor.tolist()
        assert into["x"][1].tensor.tolist() == rows(6, 2).tensor.tolist() and found.state is into


def test_a_target_of_another_logical_tensor_is_refused_by_name(job):
    with job() as checkpointer:
        checkpointer.save(1, {"w": rows(2, 3)}).wait("done", 60)
        for target, words in ((rows(2, 3, 9), "F32 [8, 3] saved, F32 [9, 3] in the target"),
                              (neve.Piece(torch.zeros(3, 3, dtype=torch.float64), (8, 3), (2, 0)), "F64 [8, 3] in the target"),
                              (torch.zeros(4, 3), "F32 [4, 3] in the target"), ({}, "in the target a dict")):
            with pytest.raises(neve.Invalid) as caught:
                checkpointer.restore(into={"w": target})
            assert "w: " in str(caught.value) and words in str(caught.value), caught.value


def test_dtensors_of_one_rank_come_back_into_dtensors(job):
    from torch.distributed.tensor import Shard

    with rank_of(2, 1) as mesh:
        whole = torch.arange(15.0).reshape(5, 3)
        saved = {"w": distributed(whole, mesh, Shard(0)), "tied": None}
        saved["tied"] = saved["w"].detach()
        with job(rank=0, world=1) as checkpointer:
            checkpointer.save(1, saved).wait("done", 60)
            into = {"w": distributed(torch.zeros(5, 3), mesh, Shard(0)), "tied": distributed(torch.zeros(5, 3), mesh, Shard(0))}
            checkpointer.restore(into=into)
            assert into["w"].to_local().tolist() == into["tied"].to_local().tolist() == whole[3:].tolist()
            found = checkpointer.restore().state
            assert type(found["w"]) is neve.Piece and found["tied"] is found["w"] and found["w"].offset == (3, 0)
