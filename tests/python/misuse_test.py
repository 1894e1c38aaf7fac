"""Calls with what is not wanted: each is :class:`neve.Invalid`, says what is wanted, and changes nothing."""

import errno
import os
import pickle

import neve
import numpy
import pytest


@pytest.fixture
def opened(tmp_path):
    os.mkdir(tmp_path / "files")
    with neve.Checkpointer(tmp_path / "job", tiers=[f"file:{tmp_path}/files"]) as ckpt:
        ticket = ckpt.save(1, {"w": numpy.arange(3.0), "n": 2})
        ticket.wait()
        yield ckpt, ticket


@pytest.mark.parametrize("call, wanted", [
    (lambda ckpt, ticket: ticket.wait(3), "3 is no stage.*timeout="),
    (lambda ckpt, ticket: ticket.wait(None), "None is no stage"),
    (lambda ckpt, ticket: ticket.wait("done", "soon"), "'soon'.*number of seconds"),
    (lambda ckpt, ticket: ticket.wait("done", float("nan")), "nan.*number of seconds"),
    (lambda ckpt, ticket: ticket.add_done_callback(5), "5 cannot be called"),
    (lambda ckpt, ticket: ckpt.save(2, {}, tags="x"), "tags is 'x'.*dict"),
    (lambda ckpt, ticket: ckpt.save(2, {}, tags=5), "tags is 5.*dict"),
    (lambda ckpt, ticket: ckpt.save(2, {}, to=3), "to is 3.*list of strings"),
    (lambda ckpt, ticket: ckpt.save(2, {}, to=["bogus"]), "bogus.*no such tier here; there are file"),
    (lambda ckpt, ticket: ckpt.restore(include=3), "include is 3.*list of strings"),
    (lambda ckpt, ticket: ckpt.restore(include=b"w"), "include is b'w'"),
    (lambda ckpt, ticket: ckpt.restore(take_rank0=3), "take_rank0 is 3"),
    (lambda ckpt, ticket: ckpt.restore(allow_missing=3), "allow_missing is 3"),
    (lambda ckpt, ticket: ckpt.restore(allow_missing=["file", "bogus"]), "allow_missing='bogus': no such tier here; there are file"),
    (lambda ckpt, ticket: ckpt.drain("x"), "'x'.*number of seconds"),
    (lambda ckpt, ticket: ckpt.close(deadline="x"), "deadline is 'x'.*number of seconds"),
])
def test_an_argument_of_another_kind_is_named(opened, call, wanted):
    ckpt, ticket = opened
    with pytest.raises(neve.Invalid, match=wanted):
        call(ckpt, ticket)
    found = ckpt.restore(allow_missing=["file"])   # nothing was changed, and what is right still goes
    assert found.step == 1 and found.state["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("arguments, wanted", [
    ({"grace": "x"}, "grace is 'x'"), ({"grace": float("nan")}, "grace"), ({"grace": -1}, "grace is -1"),
    ({"group_timeout": "x"}, "group_timeout is 'x'"), ({"group_timeout": None}, "group_timeout"),
    ({"incarnation": -5}, "incarnation is -5"), ({"incarnation": "3"}, "incarnation is '3'"),
    ({"incarnation": 2**32}, "incarnation is 4294967296"), ({"incarnation": True}, "incarnation"),
    ({"job": ""}, "job is ''"), ({"job": 3}, "job is 3"), ({"tiers": 5}, "tiers is a list"), ({"folder": 5}, "folder is 5"),
], ids=str)
def test_a_checkpointer_is_not_opened_with_what_is_none(tmp_path, arguments, wanted):
    with pytest.raises(neve.Invalid, match=wanted):
        neve.Checkpointer(**{"folder": tmp_path / "job", **arguments})
    assert os.listdir(tmp_path) == []


def test_numbers_of_other_libraries_are_taken(tmp_path):
    with neve.Checkpointer(tmp_path / "job", incarnation=numpy.int64(4), group_timeout=numpy.float32(9)) as ckpt:
        ticket = ckpt.save(1, {"n": 1}, to="file")
        ticket.wait("done", numpy.float64(60))
        assert ticket.save_id.startswith("i0004.")


def test_errors_of_the_system_always_have_a_number(tmp_path):
    with pytest.raises(neve.Unavailable) as found:
        neve.save(1, tmp_path)
    assert found.value.errno == errno.EISDIR
    for error, number in ((neve.Exhausted("no memory for it"), errno.ENOMEM), (neve.Unavailable("gone"), errno.EIO),
                          (neve.Exhausted("disk", errno.ENOSPC), errno.ENOSPC), (neve.Invalid("no"), None),
                          (neve.errors.from_code(8, "step 3 was skipped: no RAM slot was free (on_full=skip)"), errno.EAGAIN)):
        assert error.errno == pickle.loads(pickle.dumps(error)).errno == number
