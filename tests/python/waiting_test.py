"""Waiting in slices: what a deadline's message says. And messages about numbers that have too many digits to be shown."""

import pytest

import neve
from neve._waiting import Slices


def test_a_timeout_names_the_whole_wait_and_not_its_last_slice():
    def never(left):
        raise neve.Timeout(f'step 3 has not reached "done" after {left:.3g} s')

    with pytest.raises(neve.Timeout, match='has not reached "done" after 0.12 s$'):
        Slices(0.12).run(never)


def test_numbers_of_too_many_digits_are_refused_by_an_error_of_neve(job):
    checkpointer = job()
    with pytest.raises(neve.Invalid, match="step of 16610 bits is out of bounds"):
        checkpointer.save(10**5000, {"a": 1})
    with pytest.raises(neve.Invalid, match="too many digits"):
        checkpointer.save(1, {"a": 1}, tags={"big": 10**5000})
