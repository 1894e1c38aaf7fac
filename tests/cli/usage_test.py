"""Arguments, streams and exit codes that all verbs share."""

import subprocess

import pytest

VERBS = ("ls", "inspect", "verify", "recover", "gc", "doctor")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples_and_exit_codes(neve, verb):
    answer = neve(verb, "-h")
    assert answer.code == 0 and f"neve {verb}" in answer.out and "Examples:" in answer.out and "Exit code" in answer.out


@pytest.mark.parametrize("arguments", [(), ("frobnicate",), ("ls",), ("ls", "--bogus", "."), ("verify", ".", "--step", "-1"),
                                       ("gc", ".", "--keep", "0"), ("gc", ".", "--keep", "x"), ("ls", "")])
def test_wrong_usage_is_2(neve, arguments):
    assert neve(*arguments).code == 2


@pytest.mark.parametrize("verb", ["agent", "status", "bench", "plan"])
def test_verbs_of_later_versions_say_so(neve, verb):
    answer = neve(verb, "a", "--option", "b")
    assert answer.code == 2 and "not in this version" in answer.err


def test_the_version(neve):
    assert neve("--version").out == neve("ls", "--version").out
    assert neve("--version").out.startswith("neve ")


def test_doctor_reports_checks_and_exits_0(neve):
    answer = neve("doctor", "--json")
    checks = {check["name"]: check for check in answer.json["checks"]}
    assert answer.code == 0
    assert {"io_uring", "o_direct", "memlock", "huge_pages", "shared_memory", "host_memory", "cuda", "libfabric", "s3"} <= set(checks)
    assert all(check["found"] for check in checks.values())
    assert all(check["ok"] or check["advice"] for check in checks.values())


def test_text_for_people_fits_80_columns(neve):
    assert max(map(len, neve("doctor").out.splitlines())) <= 80


def test_json_is_the_only_thing_on_stdout(neve, make_job):
    make_job(steps=1)
    for verb in ("ls", "inspect", "verify", "recover", "gc"):
        answer = neve(verb, "gpt", "--json")
        assert isinstance(answer.json, dict) and answer.code == 0, verb


def test_quiet_prints_nothing(neve, make_job):
    make_job(steps=1)
    for verb in ("ls", "inspect", "verify", "recover", "gc", "doctor"):
        answer = neve(verb, "-q", *(["gpt"] if verb != "doctor" else []))
        assert (answer.code, answer.out, answer.err) == (0, "", ""), verb


def test_the_greatest_exit_code_wins(neve, make_job, tmp_path):
    make_job(steps=1)
    (tmp_path / "empty").mkdir()
    assert neve("verify", "gpt", "empty").code == 3
    assert neve("verify", "gpt", "empty", "nowhere").code == 5


def test_a_pipe_may_close_early(command, make_job):
    folder = make_job(steps=1)
    run = subprocess.run(["bash", "-c", f"set -o pipefail; '{command}' inspect -q --json '{folder}' | head -c 1 >/dev/null"],
                         capture_output=True, timeout=60)
    assert run.returncode == 0 and run.stderr == b""


def test_a_full_disk_on_stdout_is_reported(command, make_job):
    folder = make_job(steps=1)
    with open("/dev/full", "w") as full:
        run = subprocess.run([command, "ls", str(folder)], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert run.returncode == 5 and b"cannot write" in run.stderr
