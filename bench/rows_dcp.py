"""Rows about torch.distributed.checkpoint: neve's places beside DCP's own files, with the same stock planners."""

import logging
import shutil
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import measure
import neve.dcp
import roofline
import states
from rows_file import _forget
from rows_torch import PAIRS, _times

READ_PAIRS = 15


def load(folder: Path) -> list[measure.Row]:
    """How many times less time dcp.load takes from neve's place, verified, than from DCP's own files; neither is in the page cache.
    And the rate of ours over fio's read of the same file: the bar is one or the other."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    logging.getLogger().setLevel(logging.ERROR)
    state = states.gibibyte()
    target = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    ours, theirs = folder / "ours" / "step-1", folder / "theirs"
    writer = neve.dcp.StorageWriter()
    dcp.save(state, checkpoint_id=ours, storage_writer=writer)
    writer.close()
    dcp.save(state, checkpoint_id=theirs)

    (image,) = ours.parent.rglob("shard-*.safetensors")
    fio = roofline.Fio(folder, image.stat().st_size, image)
    best = measure.fastest({name: lambda way=way: fio.read(**way) for name, way in roofline.Fio.READS.items()})

    def cold(files: Path, checkpoint_id: Path, **reader) -> float:
        for file in files.rglob("*"):
            if file.is_file():
                _forget(str(file))
        return measure.timed(lambda: dcp.load(target, checkpoint_id=checkpoint_id, **reader))

    try:
        def mine() -> float:
            return cold(ours.parent, ours, storage_reader=neve.dcp.StorageReader())

        found = measure.pairs(mine, lambda: cold(theirs, theirs), PAIRS)
        reads = measure.pairs(mine, lambda: fio.read(**roofline.Fio.READS[best]), READ_PAIRS)
    finally:
        shutil.rmtree(theirs)
    assert all(torch.equal(target[name], tensor) for name, tensor in state.items())
    return [_times("dcp_load", found, ">= 2", states.total_bytes(state)),
            measure.ratio_row("dcp_load_read", [b / a for a, b in reads], ">= 0.95", base=best)]
