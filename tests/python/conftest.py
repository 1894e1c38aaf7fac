"""Fixtures of the Python suite: RAM slots in a temporary folder, Checkpointers that are closed, no ranks."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
try:
    import neve
except ImportError:
    sys.path.insert(0, str(HERE.parent.parent / "python"))
    import neve


@pytest.fixture(autouse=True)
def ram_folder(monkeypatch):
    """NEVE_RAM_DIR in a folder of the test's own, on tmpfs where there is one."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="neve-test-", dir=parent)
    monkeypatch.setenv("NEVE_RAM_DIR", folder)
    for variable in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def quick_folder(tmp_path):
    """A folder on tmpfs where there is one: for tests of very many durable saves, of which the disk is not the subject."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = tempfile.mkdtemp(prefix="neve-test-files-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def job(tmp_path):
    """Opens Checkpointers of one job folder, and closes those that are still open."""
    opened = []

    def open_job(*arguments, name="job", **options):
        checkpointer = neve.Checkpointer(*arguments or (tmp_path / name,), **options)
        opened.append(checkpointer)
        return checkpointer

    yield open_job
    for checkpointer in opened:
        try:
            checkpointer.close(final=False, deadline=5)
        except neve.Error:
            pass   # a test that made its tiers fail or slow has looked at that itself


@pytest.fixture
def around(job):
    """Saves a state to a file tier and restores it in another life of the job, as a fresh process would."""
    count = 0

    def there_and_back(state, **options):
        nonlocal count
        count += 1
        name = f"around-{count}"
        with job(name=name) as checkpointer:
            checkpointer.save(7, state).wait("done", 60)
        with job(name=name) as checkpointer:
            found = checkpointer.restore(**options)
        assert found.step == 7
        return found.state

    return there_and_back
