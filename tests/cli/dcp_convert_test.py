"""convert --to dcp: torch.distributed.checkpoint reads the folder, as it reads its own, bit for bit."""

import collections
import json
import pickletools
import shutil
import signal
import struct
import subprocess
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

pytestmark = pytest.mark.filterwarnings("ignore")
Point = collections.namedtuple("Point", "x y")

# Those that dcp.load itself can fill: it copies into tensors of its own.
KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
         torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64,
         torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


def raw(tensor):
    flat = tensor.detach().contiguous()
    return bytes(flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy())


def same(a, b):
    if isinstance(b, torch.Tensor):
        assert isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    elif isinstance(b, dict):
        assert set(a) == {str(key) for key in b}
        for key in b:
            same(a[str(key)], b[key])
    elif isinstance(b, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert type(a) is type(b) and a == b


def state():
    torch.manual_seed(5)
    w = torch.randn(40, 7)
    return {"model": {"w": w, "tied": w, "turned": w.t(), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "row": w[3:5],
                      "none": torch.zeros(4, 0), "wide": torch.ones(3, 1).expand(3, 4), "p": torch.nn.Parameter(torch.ones(4))},
            "kinds": {str(kind)[6:]: (torch.randn(9, 14) * 4).abs().to(torch.complex64 if kind.is_complex else torch.float32).to(kind)
                      for kind in KINDS},
            "opt": {"state": {0: {"m": torch.ones(3), "step": torch.tensor(5.0)}, 1: {"m": torch.zeros(2), "step": 7}},
                    "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1], "fused": None}]},
            "step": 7, "name": "h\u00e9", "huge": -(10**30), "bytes": b"\x00\xff", "z": 1 + 2j, "size": torch.Size([1, 2]),
            "list": [torch.zeros(1), 1, [], "x"], "values": [1, 2.5, "a"], "pair": (1, 2), "mixed": (torch.ones(2), 3),
            "long": "x" * 10_000, "sparse": torch.eye(3).to_sparse(), "point": {"p": [{"q": 1}]}}


def opened_by_torch(folder, tmp_path):
    dcp_to_torch_save(folder, tmp_path / "back.pt")
    return torch.load(tmp_path / "back.pt", weights_only=False)


def without_sparse(state):
    return {key: value for key, value in state.items() if key != "sparse"}


@pytest.fixture
def folder(neve, tmp_path):
    torch.save(state(), tmp_path / "in.pt")
    answer = neve("convert", "in.pt", "out", "--to", "dcp")
    assert answer.code == 0, answer.err
    assert "2 keys that are no strings" in answer.err
    return tmp_path / "out"


def test_dcp_to_torch_save_gives_the_state_back(folder, tmp_path):
    back, wanted = opened_by_torch(folder, tmp_path), state()
    same(without_sparse(back), without_sparse(wanted))
    assert back["sparse"].layout is torch.sparse_coo and back["sparse"].to_dense().equal(torch.eye(3))
    assert sorted(path.name for path in folder.iterdir()) == [".metadata", "__0_0.distcp"]


def test_it_is_what_torch_itself_would_have_written(folder, tmp_path):
    """The same names, paths, boxes and types as torch's own metadata of that state, and a load into the same state."""
    wanted = without_sparse(state())
    dcp.save(wanted, checkpoint_id=tmp_path / "theirs", no_dist=True)
    ours, theirs = (dcp.FileSystemReader(path).read_metadata() for path in (folder, tmp_path / "theirs"))
    for metadata in (ours, theirs):
        metadata.state_dict_metadata.pop("sparse", None)
        metadata.planner_data.pop("sparse", None)
    assert ours.planner_data == theirs.planner_data
    assert ours.state_dict_metadata == theirs.state_dict_metadata and ours.version == theirs.version
    for index in theirs.storage_data:
        assert index in ours.storage_data, index
    ours, theirs = (loaded_over(path) for path in (folder, tmp_path / "theirs"))   # even in what torch makes of keys that are numbers
    same(ours, theirs)
    same(ours["kinds"], wanted["kinds"])


def loaded_over(folder):
    """What dcp.load makes of a state of other values."""
    target = without_sparse(state())
    del target["model"]["wide"]   # torch does not write into an expanded tensor
    for tensor in _tensors(target):
        tensor.view(torch.uint8).fill_(0x55) if tensor.dim() and tensor.is_contiguous() else tensor.fill_(0)
    dcp.load(target, checkpoint_id=folder, no_dist=True)
    return _texted(target)


def _tensors(thing):
    if isinstance(thing, torch.Tensor):
        if not isinstance(thing, torch.nn.Parameter) and 0 not in thing.stride() and thing.dtype is not torch.bool:
            yield thing
    elif isinstance(thing, (dict, list)):
        for part in thing.values() if isinstance(thing, dict) else thing:
            yield from _tensors(part)


def _texted(thing):
    return {str(key): _texted(value) for key, value in thing.items()} if isinstance(thing, dict) else thing


@pytest.mark.parametrize("size", [64, 1000, 5000])
def test_DCP_06_tensors_in_pieces_and_files(neve, tmp_path, size):
    torch.save(state(), tmp_path / "in.pt")
    answer = neve("convert", "in.pt", "out", "--to", "dcp", "--shard-size", str(size))
    assert answer.code == 0, answer.err
    metadata = dcp.FileSystemReader(tmp_path / "out").read_metadata()
    assert len(metadata.state_dict_metadata["model.w"].chunks) == -(-40 // max(1, size // 28))
    assert len(list((tmp_path / "out").glob("*.distcp"))) > 1
    same(without_sparse(opened_by_torch(tmp_path / "out", tmp_path)), without_sparse(state()))
    part = {"model": {"turned": torch.zeros(7, 40)}}
    dcp.load(part, checkpoint_id=tmp_path / "out", no_dist=True)
    assert part["model"]["turned"].equal(state()["model"]["w"].t())


def test_the_same_tensor_is_stored_once(neve, tmp_path):
    w = torch.randn(1000, 100)
    torch.save({"a": w, "b": w}, tmp_path / "in.pt")
    assert neve("convert", "in.pt", "out", "--to", "dcp").code == 0
    assert (tmp_path / "out" / "__0_0.distcp").stat().st_size < 1.2 * w.nbytes
    same(opened_by_torch(tmp_path / "out", tmp_path), {"a": w, "b": w})


def test_neve_reads_back_what_it_wrote(neve, folder, tmp_path):
    assert neve("verify", "out").code == 0
    answer = neve("convert", "out", "again.pt", "--drop", "mixed", "--drop", "sparse")
    assert answer.code == 0, answer.err
    back = torch.load(tmp_path / "again.pt", weights_only=True)
    wanted = without_sparse(state())
    del wanted["mixed"]
    same(back, wanted)


def test_types_that_dcp_cannot_fill_are_stored_all_the_same(neve, tmp_path):
    odd = {name: torch.arange(6, dtype=torch.uint8).view(getattr(torch, name)) for name in ("bits8", "bits16", "float4_e2m1fn_x2")}
    torch.save(odd, tmp_path / "in.pt")
    assert neve("convert", "in.pt", "out", "--to", "dcp").code == 0
    metadata = dcp.FileSystemReader(tmp_path / "out").read_metadata()
    for index, place in metadata.storage_data.items():
        content = (tmp_path / "out" / place.relative_path).read_bytes()[place.offset:place.offset + place.length]
        (tmp_path / "piece.pt").write_bytes(content)
        assert raw(torch.load(tmp_path / "piece.pt", weights_only=True)) == raw(odd[index.fqn])
        assert metadata.state_dict_metadata[index.fqn].properties.dtype is odd[index.fqn].dtype


def test_a_flat_file_and_a_step_of_objects(neve, make_job, tmp_path):
    save_file({"a.b": torch.ones(3), "c": torch.zeros(2, 2)}, tmp_path / "in.safetensors")
    assert neve("convert", "in.safetensors", "flat", "--to", "dcp").code == 0
    same(opened_by_torch(tmp_path / "flat", tmp_path), {"a.b": torch.ones(3), "c": torch.zeros(2, 2)})
    make_job(steps=1)
    answer = neve("convert", "gpt", "out", "--to", "dcp", "--drop", "odd")
    assert answer.code == 0, answer.err
    back = opened_by_torch(tmp_path / "out", tmp_path)
    assert back["step"] == 0 and back["optimizer"] == {"lr": 0.5, "betas": (0.9, float("inf")), "3": b"key"}


def test_what_such_a_folder_cannot_hold_is_refused_by_name(neve, tmp_path):
    tagged = torch.ones(2)
    tagged.tag = 1
    for what, said in (({"a": {1: torch.ones(1), "1": torch.ones(1)}}, "two things would be called"),
                       ({"a.b": torch.ones(1), "a": {"b": 1}}, "two things would be called"),
                       ({"a": {(1, 2): torch.ones(1)}}, "neither text nor a whole number"),
                       ({"a": {"b": tagged}}, "attributes are set on it"),
                       ([torch.ones(1)], "holds a dictionary"), (torch.ones(1), "holds a dictionary"),
                       ({"a": {"b": torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.qint8)}}, "only running")):
        torch.save(what, tmp_path / "in.pt")
        refused = neve("convert", "in.pt", "out", "--to", "dcp")
        assert refused.code == 3 and said in refused.err and "nothing was written" in refused.err, refused.err
        assert not (tmp_path / "out").exists()


def test_DCP_02_what_is_lost_on_the_way_is_told(neve, tmp_path):
    torch.save({"opt": {"state": {}}, "od": collections.OrderedDict(a=torch.ones(1)), "n": [{}]}, tmp_path / "in.pt")
    answer = neve("convert", "in.pt", "out", "--to", "dcp")
    assert answer.code == 0 and '"opt.state" is an empty dictionary' in answer.err and '"n.0" is' in answer.err
    assert "1 dictionaries of a class of their own" in answer.err
    same(opened_by_torch(tmp_path / "out", tmp_path), {"od": {"a": torch.ones(1)}})


def test_DCP_07_a_folder_is_never_written_over(neve, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused = neve("convert", "in.pt", "out", "--to", "dcp")
    assert refused.code == 2 and "is there already" in refused.err
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_kill_leaves_nothing_that_is_taken_for_a_checkpoint(neve, command, tmp_path):
    """Killed at many moments: the output is whole or not there, and what is left is no checkpoint, or a whole one without its name."""

    def check(folder):
        back = opened_by_torch(folder, tmp_path)
        assert all(back[f"w{i}"].eq(i).all() for i in range(24))

    torch.save({f"w{i}": torch.full((512, 512), float(i)) for i in range(24)}, tmp_path / "in.pt")
    for delay in [0.002 * 1.35**i for i in range(16)]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        run = subprocess.Popen([command, "convert", "in.pt", "out", "--to", "dcp", "--shard-size", "2M"], cwd=tmp_path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        run.send_signal(signal.SIGKILL)
        run.wait()
        if (tmp_path / "out").exists():
            check(tmp_path / "out")
        for left in tmp_path.glob(".tmp-*"):
            if (left / ".metadata").exists():
                check(left)
            else:
                assert neve("inspect", left).code == 3
            shutil.rmtree(left)


def test_a_flipped_bit_leaves_no_output(neve, tmp_path):
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "in.pt")
    content = bytearray((tmp_path / "in.pt").read_bytes())
    content[200_000] ^= 1
    (tmp_path / "in.pt").write_bytes(content)
    answer = neve("convert", "in.pt", "out", "--to", "dcp")
    assert answer.code == 1 and not (tmp_path / "out").exists() and not list(tmp_path.glob(".tmp-*"))


def test_memory_stays_bounded(peak_bytes, tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [600, 1 << 18], "data_offsets": [0, 600 << 20]}}).encode()
    with open(tmp_path / "in.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + (600 << 20))
    assert peak_bytes("convert", "in.safetensors", "out", "--to", "dcp", "--shard-size", "100M") <= (256 << 20)
    assert len(list((tmp_path / "out").glob("*.distcp"))) == 6


def test_the_metadata_names_public_classes_of_torch_only(folder):
    named = {argument for opcode, argument, _ in pickletools.genops((folder / ".metadata").read_bytes()) if opcode.name == "GLOBAL"}
    metadata, files = "torch.distributed.checkpoint.metadata ", "torch.distributed.checkpoint.filesystem "
    assert {name for name in named if not name.startswith("torch ")} == {
        metadata + "Metadata", metadata + "TensorStorageMetadata", metadata + "BytesStorageMetadata", metadata + "TensorProperties",
        metadata + "ChunkStorageMetadata", metadata + "MetadataIndex", metadata + "_MEM_FORMAT_ENCODING", files + "_StorageInfo",
        "torch.serialization _get_layout"}
