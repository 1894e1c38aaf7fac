"""Steps that several ranks saved, read by nothing of ours."""

import json
import struct
import threading

import numpy as np
import pytest

import neve as library

ROWS, COLUMNS = 24, 6
WHOLE = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


def save(folder, ranks, step=3, cut=0):
    """A job folder of `ranks` ranks, each with its share of `w` along a dimension, and with what all have alike."""
    def one(rank):
        begin, end = WHOLE.shape[cut] * rank // ranks, WHOLE.shape[cut] * (rank + 1) // ranks
        box = np.ascontiguousarray(WHOLE[begin:end] if cut == 0 else WHOLE[:, begin:end])
        state = {"w": library.Piece(box, WHOLE.shape, (begin, 0) if cut == 0 else (0, begin)), "bias": np.ones(5), "lr": 0.5}
        checkpointer = library.Checkpointer(str(folder), tiers=[f"file:{folder.parent}"], rank=rank, world=ranks,
                                            group=f"dir:{folder.parent}/group-{folder.name}")
        checkpointer.save(step, state).wait("done", 60)
        checkpointer.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return folder


def assemble(folder, name):
    """A logical tensor out of the files of all ranks, by nothing but what docs/format.md says."""
    whole = None
    for path in sorted(folder.glob("step-*/shard-*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        pieces = json.loads(header.pop("__metadata__")["neve.tree"])["tensors"]["piece"]
        entry = header[name]
        shape, offset = pieces[name][:2]
        begin, end = (8 + length + at for at in entry["data_offsets"])
        box = np.frombuffer(data[begin:end], {"F32": "<f4"}[entry["dtype"]]).reshape(entry["shape"])
        whole = np.full(shape, np.nan, box.dtype) if whole is None else whole
        whole[tuple(slice(at, at + extent) for at, extent in zip(offset, box.shape))] = box
    return whole


@pytest.mark.parametrize("cut", [0, 1])
def test_dcp_06_an_independent_reader_assembles_a_tensor_from_two_ranks_files(tmp_path, cut):
    assert (assemble(save(tmp_path / "job", 2, cut=cut), "w") == WHOLE).all()
