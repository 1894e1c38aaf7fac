"""The demo with a small model: every check in it holds, and it says so by its exit code."""

import os
import subprocess
import sys


def test_small_demo_holds_every_check(tmp_path):
    result = subprocess.run([sys.executable, "-m", "neve.demo", "--folder", tmp_path / "demo", "--layers", "1", "--seed", "2"],
                            capture_output=True, text=True, timeout=900, env=dict(os.environ, TMPDIR=str(tmp_path)))
    assert result.returncode == 0 and "FAILED" not in result.stdout, result.stdout + result.stderr
    assert result.stdout.count("  ok ") >= 22
    assert len(result.stdout.splitlines()) <= 90


def test_demo_leaves_a_folder_of_others_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    result = subprocess.run([sys.executable, "-m", "neve.demo", "--folder", tmp_path], capture_output=True, text=True)
    assert result.returncode == 1 and "holds something else" in result.stderr
    assert (tmp_path / "mine").read_text() == "x"
