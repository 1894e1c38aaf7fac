"""Steps that several ranks saved: read by nothing of ours, and shown by the command as one set of global tensors."""

import json
import struct
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file

import neve as library

ROWS, COLUMNS = 24, 6
WHOLE = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


def save_states(folder, states, step=3):
    """A job folder with one save, in which each rank kept a state of its own."""
    def one(rank):
        checkpointer = library.Checkpointer(str(folder), tiers=[f"file:{folder.parent}"], rank=rank, world=len(states),
                                            group=f"dir:{folder.parent}/group-{folder.name}")
        checkpointer.save(step, states[rank]).wait("done", 60)
        checkpointer.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(states))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return folder


def boxes(whole, borders, cut=0):
    """The pieces of an array, cut at borders along a dimension."""
    edges = [0, *borders, whole.shape[cut]]
    for begin, end in zip(edges, edges[1:]):
        offset = tuple(begin if dim == cut else 0 for dim in range(whole.ndim))
        yield library.Piece(np.ascontiguousarray(whole.take(range(begin, end), cut)), whole.shape, offset)


def even(ranks, cut=0, whole=WHOLE):
    return list(boxes(whole, [whole.shape[cut] * rank // ranks for rank in range(1, ranks)], cut))


def save(folder, ranks, step=3, cut=0):
    """A job folder of `ranks` ranks, each with its share of `w` along a dimension, and with what all have alike."""
    return save_states(folder, [{"w": box, "bias": np.ones(5), "lr": 0.5} for box in even(ranks, cut)], step)


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


def images(folder):
    return sorted(folder.glob("step-*/shard-*.safetensors"))


@pytest.mark.parametrize("cut", [0, 1])
def test_dcp_06_an_independent_reader_assembles_a_tensor_from_two_ranks_files(tmp_path, cut):
    assert (assemble(save(tmp_path / "job", 2, cut=cut), "w") == WHOLE).all()


# ---- one set of global tensors ----

LAYOUTS = {
    "two by rows": lambda: even(2), "four by rows": lambda: even(4), "two by columns": lambda: even(2, cut=1),
    "four by columns": lambda: even(4, cut=1), "uneven": lambda: list(boxes(WHOLE, [1, 17, 17])),
    "replicated": lambda: [*even(2), *even(2)], "whole on each": lambda: even(1) * 3,
}


@pytest.fixture
def single(tmp_path):
    """The same state, saved by one rank, as a whole tensor."""
    checkpointer = library.Checkpointer(str(tmp_path / "single"), tiers=[f"file:{tmp_path}"])
    checkpointer.save(3, {"w": WHOLE, "bias": np.ones(5), "lr": 0.5}).wait("done", 60)
    checkpointer.close()
    return tmp_path / "single"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_verb_shows_each_tensor_once_and_whole(neve, tmp_path, single, layout):
    pieces = LAYOUTS[layout]()
    folder = save_states(tmp_path / "job", [{"w": piece, "bias": np.ones(5), "lr": 0.5} for piece in pieces])
    found = neve("inspect", "job", "--json").json
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert set(tensors) == {"w", "bias"} and len(found["files"]) == len(pieces) and found["kind"] == "neve-step"
    held = [rank for rank, piece in enumerate(pieces) if piece.tensor.size]
    distinct = {(piece.offset, piece.tensor.shape) for piece in pieces if piece.tensor.size}
    w = tensors["w"]
    assert (w["shape"], w["dtype"], w["bytes"], w["piece"], w["alias_of"]) == ([ROWS, COLUMNS], "F32", WHOLE.nbytes, None, None)
    assert (w["pieces"], w["ranks"]) == (len(distinct), held)
    assert (w["file"] is None) == (len(distinct) > 1) == (w["offset"] is None)
    assert tensors["bias"]["ranks"] == list(range(len(pieces))) and tensors["bias"]["file"].endswith(images(folder)[0].name)
    assert found["tree"] == {"w": {"$tensor": "w"}, "bias": {"$tensor": "bias"}, "lr": 0.5}
    assert found["total_bytes"] == WHOLE.nbytes + 40

    stats = {tensor["name"]: tensor for tensor in neve("stats", "job", "--json").json["tensors"]}
    assert stats == {tensor["name"]: tensor for tensor in neve("stats", "single", "--json").json["tensors"]}

    for a, b in (("job", "single"), ("single", "job")):
        answer = neve("diff", a, b, "--json")
        assert answer.code == 0 and answer.json["equal"], answer.out
    assert neve("verify", "job").code == 0

    assert neve("convert", "job", "out.safetensors").code == 0
    out = load_file(tmp_path / "out.safetensors")
    assert set(out) == {"w", "bias"} and (out["w"] == WHOLE).all()


@pytest.mark.parametrize("place", [(0, 0), (11, 5), (23, 3)])
def test_diff_of_two_worlds_names_the_one_bit(neve, tmp_path, place):
    save_states(tmp_path / "a", [{"w": piece} for piece in even(4)])
    changed = WHOLE.copy()
    changed.view(np.uint32)[place] ^= 1
    save_states(tmp_path / "b", [{"w": piece} for piece in even(3, cut=1, whole=changed)])
    answer = neve("diff", "a", "b", "--json")
    (change,) = answer.json["changed"]
    assert answer.code == 1 and (change["name"], change["what"], change["count"], change["first_index"]) == ("w", "values", 1, list(place))


def test_a_save_of_several_ranks_becomes_any_kind(neve, tmp_path):
    save(tmp_path / "job", 4, cut=1)
    for arguments in (("out.pt",), ("out.npz", "--drop", "lr"), ("hf", "--to", "hf", "--drop", "lr"), ("step", "--to", "step"),
                      ("dcp", "--to", "dcp")):
        assert neve("convert", "job", *arguments).code == 0, arguments
        answer = neve("diff", "job", arguments[0], "--json")
        assert answer.json["only_a"] == answer.json["only_b"] == [] and "values" not in str(answer.json["changed"]), answer.out
    restored = library.Checkpointer(str(tmp_path / "step"), tiers=[f"file:{tmp_path}"]).restore()
    assert (np.asarray(restored.state["w"]) == WHOLE).all() and restored.step == 3


def test_what_differs_between_ranks_is_shown_by_rank(neve, tmp_path):
    states = [{"w": piece, "seed": 7 + rank, "step": 3, "rng": np.full(4, rank, np.uint8), "note": "x" * (5000 + rank),
               "only": {f"r{rank}": np.ones(2)}} for rank, piece in enumerate(even(2))]
    save_states(tmp_path / "job", states)
    answer = neve("inspect", "job", "--json")
    assert [tensor["name"] for tensor in answer.json["tensors"]] == ["w", "rng.@0", "rng.@1", "only.r0", "only.r1"]
    assert [tensor["ranks"] for tensor in answer.json["tensors"]] == [[0, 1], [0], [1], [0], [1]]
    tree = answer.json["tree"]
    assert tree["seed"] == {"@0": 7, "@1": 8} and tree["step"] == 3 and list(tree["only"]) == ["r0", "r1"]
    assert set(tree["note"]) == {"@0", "@1"}
    assert any("differ in note, rng, seed; " in note and "note.@0" in note for note in answer.json["notes"])
    assert neve("verify", "job").code == 0
    stats = {tensor["name"]: tensor["max"] for tensor in neve("stats", "job", "--json").json["tensors"]}
    assert (stats["rng.@0"], stats["rng.@1"], stats["w"]) == (0, 1, WHOLE.max())

    states[1]["seed"] = 9
    save_states(tmp_path / "other", states)
    (change,) = neve("diff", "job", "other", "--json").json["changed"]
    assert (change["name"], change["a"], change["b"]) == ("seed.@1", "8", "9")
    assert "differ in note, rng, seed" in neve("inspect", "job").err
    assert "@1: 8" in neve("inspect", "job", "--tree").out


def test_one_rank_alone_can_be_asked_for(neve, tmp_path):
    folder = save(tmp_path / "job", 2)
    (w,) = [tensor for tensor in neve("inspect", "job", "--rank", "1", "--json").json["tensors"] if tensor["name"] == "w"]
    assert w["shape"] == [12, COLUMNS] and w["piece"]["offset"] == [12, 0] and w["file"].endswith(images(folder)[1].name)
    assert neve("stats", "job", "--rank", "1", "--json").json == neve("stats", images(folder)[1], "--json").json
    assert neve("diff", "job", images(folder)[1], "--rank", "1").code == 0   # the job's rank 1; a file has no ranks to choose from
    assert neve("diff", images(folder)[0], images(folder)[1], "--rank", "1").code == 2
    assert neve("inspect", images(folder)[1], "--rank", "1").code == 2
    assert neve("diff", images(folder)[0], images(folder)[1]).code == 1
    assert neve("verify", "job", "--rank", "1", "--json").json["checked_bytes"] == images(folder)[1].stat().st_size
    assert neve("convert", "job", "one.safetensors", "--rank", "1").code == 0
    assert (load_file(tmp_path / "one.safetensors")["w"] == WHOLE[12:]).all()
    for verb in ("inspect", "stats", "verify"):
        answer = neve(verb, "job", "--rank", "2")
        assert answer.code == 5 and "rank 2" in answer.err, verb


def test_of_one_rank_nothing_is_shown_otherwise(neve, single):
    image = images(single)[0].relative_to(single.parent)

    def shown(*arguments):
        return [line for line in neve("inspect", *arguments).out.splitlines() if not line.endswith(" ago")]

    for arguments in ((), ("--tree",)):
        assert shown("single", *arguments) == shown("single", "--rank", "0", *arguments) == shown(image, *arguments)
    tensors = neve("inspect", "single", "--json").json["tensors"]
    assert all("ranks" not in tensor and tensor["offset"] % 8 == 0 for tensor in tensors)


# ---- what is wrong with a save of several ranks ----

def wrong(answer, code):
    problems = [problem for problem in answer.json["problems"] if problem["code"] == code]
    assert answer.code == 4 and answer.json["ok"] is False and problems, (answer.code, answer.out)
    return problems


@pytest.mark.parametrize("pieces, says", [
    (lambda: [even(3)[0], even(3)[2]], ["48 of its 144 elements", "at [8,0]", "ranks 0 and 1"]),
    (lambda: [even(2)[0], list(boxes(WHOLE, [8]))[1]], ["overlap", "rank 0", "rank 1"]),
    (lambda: [even(2)[0], even(2, whole=WHOLE.astype(np.float64))[1]], ["F32 on rank 0", "F64 on rank 1"]),
    (lambda: [even(2)[0], library.Piece(WHOLE[:12].copy(), (48, COLUMNS), (12, 0))], ["[24,6] on rank 0", "[48,6] on rank 1"]),
])
def test_pieces_that_make_no_whole_are_named_with_their_ranks(neve, tmp_path, pieces, says):
    save_states(tmp_path / "job", [{"w": piece, "v": other} for piece, other in zip(pieces(), even(2))])
    answer = neve("verify", "job", "--json")
    (problem,) = wrong(answer, "pieces")
    assert problem["tensor"] == "w" and all(text in problem["message"] for text in says), problem
    for verb in ("inspect", "stats"):
        refused = neve(verb, "job")
        assert refused.code == 4 and '"w"' in refused.err and "--rank" in refused.err
    assert neve("inspect", "job", "--rank", "1").code == 0


def test_every_tensor_that_is_wrong_is_named(neve, tmp_path):
    gap, other = ([even(3)[0], even(3)[2]] for _ in range(2))
    save_states(tmp_path / "job", [{"a": a, "b": b, "c": good} for a, b, good in zip(gap, other, even(2))])
    assert [problem["tensor"] for problem in wrong(neve("verify", "job", "--json"), "pieces")] == ["a", "b"]


@pytest.mark.parametrize("rows", [24, 600_000])
def test_replicas_that_differ_are_found(neve, tmp_path, rows):
    whole = np.arange(rows * COLUMNS, dtype=np.float32).reshape(rows, COLUMNS)
    other = whole.copy()
    other[rows // 2, 3] += 1
    shares = [*even(2, whole=whole), *even(2, whole=whole)]
    assert neve("verify", save_states(tmp_path / "good", [{"w": piece} for piece in shares])).code == 0
    shares[3] = even(2, whole=other)[1]
    save_states(tmp_path / "job", [{"w": piece} for piece in shares])
    (problem,) = wrong(neve("verify", "job", "--json"), "replica")
    assert problem["tensor"] == "w" and "ranks 1 and 3" in problem["message"] and f"[{rows // 2}:{rows}, 0:6]" in problem["message"]


def test_replicas_of_other_layouts_are_read(neve, tmp_path):
    whole = np.arange(3_000_000, dtype=np.float32)
    piece = lambda array: library.Piece(array, array.shape, (0,))
    other = whole.copy()
    other[-1] = 0
    for name, second, code in (("good", whole, 0), ("bad", other, 4)):
        save_states(tmp_path / name, [{"w": piece(whole)}, {"more": np.ones(5001, np.uint8), "w": piece(second)}])
        assert neve("verify", name).code == code


def test_bytes_that_differ_from_their_digest_are_no_replica_that_differs(neve, tmp_path):
    whole = np.arange(3_000_000, dtype=np.float32)
    folder = save_states(tmp_path / "job", [{"w": library.Piece(whole, whole.shape, (0,))}] * 2)
    with open(images(folder)[1], "r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff")
    answer = neve("verify", "job", "--json")
    assert answer.code == 1 and [problem["code"] for problem in answer.json["problems"]] == ["digest"]
    stats = neve("stats", "job", "--json")   # the other replica is good
    assert stats.code == 0 and stats.json["tensors"][0]["max"] == whole.max()


@pytest.mark.parametrize("missing", [[1], [0, 2]])
def test_missing_ranks_are_named(neve, tmp_path, missing):
    folder = save(tmp_path / "job", 4)
    for rank in missing:
        image = images(folder)[rank - (4 - len(images(folder)))]
        image.unlink()
        image.with_suffix(".commit.json").unlink()
    named = "rank 1" if missing == [1] else "ranks 0 and 2"
    step = next(folder.glob("step-*"))
    for arguments in ((step,), ("job", "--step", "3")):
        (problem,) = wrong(neve("verify", *arguments, "--json"), "missing")
        assert named in problem["message"]
    answer = neve("verify", "job", "--json")   # among others it may be on its way
    assert answer.code == 0 and any(named in note for note in answer.json["notes"])
    for verb in ("inspect", "stats"):
        answer = neve(verb, step)
        assert answer.code == 4 and named in answer.err and "--rank" in answer.err
    assert neve("inspect", step, "--rank", "3").code == 0


def test_a_damaged_image_leaves_the_ranks_uncompared(neve, tmp_path):
    folder = save(tmp_path / "job", 2)
    with open(images(folder)[1], "r+b") as file:
        file.truncate(5000)
    answer = neve("verify", "job", "--json")
    assert len(wrong(answer, "truncated")) == 1 and any("not checked against" in note for note in answer.json["notes"])


def test_a_job_folder_without_a_save_is_not_verified(neve, make_job, tmp_path):
    folder = make_job(steps=1)
    for step in folder.glob("step-*"):
        for file in step.iterdir():
            file.unlink()
        step.rmdir()
    for verb in ("verify", "inspect", "stats"):
        answer = neve(verb, "gpt")
        assert answer.code == 5 and answer.err and "ok" not in answer.out, verb
    assert neve("verify", "gpt", "--json").json["ok"] is False
    assert neve("ls", "gpt").code == 0


# ---- what it takes ----

def test_memory_is_bounded(peak_bytes, tmp_path):
    whole = np.zeros((1536, 64 * 1024), np.float32)   # 384 MiB
    whole[::7, ::9] = 1
    save_states(tmp_path / "rows", [{"w": piece} for piece in even(2, whole=whole)])
    save_states(tmp_path / "columns", [{"w": piece} for piece in even(4, cut=1, whole=whole)])
    del whole
    limit = 320 << 20   # 256 MiB, and what the program itself takes
    for arguments in (("diff", "rows", "columns"), ("stats", "columns"), ("verify", "columns"), ("convert", "columns", "out.safetensors")):
        assert peak_bytes(*arguments) < limit, arguments
