"""cp: a save from job folder to job folder, verified on both sides."""

import os
import shutil

import pytest


def step_of(folder):
    return sorted(folder.glob("step-*"))[-1]


def test_the_newest_complete_save_is_copied_whole(neve, make_job, tmp_path):
    job = make_job(steps=2)
    answer = neve("cp", "gpt", "archive/gpt", "--json")
    assert answer.code == 0 and not answer.json["already_there"], answer.err
    source, copy = step_of(job), step_of(tmp_path / "archive" / "gpt")
    assert copy.name == source.name and sorted(os.listdir(copy)) == sorted(
        name for name in os.listdir(source) if name.startswith("shard-"))
    for name in os.listdir(copy):
        assert (copy / name).read_bytes() == (source / name).read_bytes()
    assert neve("verify", "archive/gpt").code == 0 and neve("diff", "gpt", "archive/gpt").code == 0
    assert (tmp_path / "archive" / "gpt" / "job.json").read_text() == (job / "job.json").read_text()


def test_a_step_by_number_by_folder_and_into_a_root(neve, make_job, tmp_path):
    job = make_job(steps=2)
    first = sorted(job.glob("step-*"))[0]
    assert neve("cp", "gpt", "a", "--step", "0").code == 0 and step_of(tmp_path / "a").name == first.name
    assert neve("cp", first, f"b/{first.name}").code == 0 and step_of(tmp_path / "b").name == first.name
    make_job(name="root/other", steps=1)
    assert neve("cp", "gpt", "root").code == 0 and step_of(tmp_path / "root" / "gpt").name == step_of(job).name


def test_a_second_copy_changes_nothing(neve, make_job, tmp_path):
    make_job(steps=1)
    assert neve("cp", "gpt", "copy").code == 0
    image = next(step_of(tmp_path / "copy").glob("*.safetensors"))
    before = image.stat().st_ino
    answer = neve("cp", "gpt", "copy", "--json")
    assert answer.code == 0 and answer.json["already_there"] and image.stat().st_ino == before
    image.with_suffix(".bad").write_bytes(b"")
    with open(image, "r+b") as file:
        file.seek(300_000)
        file.write(b"\xff")
    assert neve("cp", "gpt", "copy").code == 1   # what is there is verified


def test_an_image_without_a_record_at_the_target_is_written_anew(neve, make_job, tmp_path):
    make_job(steps=1)
    assert neve("cp", "gpt", "copy").code == 0
    step = step_of(tmp_path / "copy")
    next(step.glob("*.commit.json")).unlink()
    next(step.glob("*.safetensors")).write_bytes(b"half")
    assert neve("cp", "gpt", "copy").code == 0 and neve("verify", "copy").code == 0


def test_a_source_that_does_not_match_its_digests_is_not_copied(neve, newest, tmp_path):
    _, image, _ = newest()
    with open(image, "r+b") as file:
        file.seek(300_000)
        file.write(b"\xff")
    answer = neve("cp", "gpt", "copy")
    assert answer.code == 1 and "chunk 0" in answer.err
    assert not list((tmp_path / "copy").rglob("*.commit.json")) and not list((tmp_path / "copy").rglob(".tmp-*"))


def test_another_job_or_another_save_of_the_name_is_refused(neve, make_job, tmp_path):
    make_job(steps=1)
    make_job(name="other", steps=1)
    answer = neve("cp", "gpt", "other")
    assert answer.code == 2 and "nothing was written" in answer.err or "uid" in answer.err
    assert neve("cp", "gpt", "copy").code == 0
    record = next(step_of(tmp_path / "copy").glob("*.commit.json"))
    shutil.copy(next(step_of(tmp_path / "other").glob("*.commit.json")), record)
    assert neve("cp", "gpt", "copy").code == 2


def test_a_truncated_source_and_one_without_a_record(neve, newest):
    _, image, record = newest()
    with open(image, "ab") as file:
        file.truncate(image.stat().st_size - 1)
    assert neve("cp", image.parent, "copy").code == 4
    record.unlink()
    assert neve("cp", image.parent, "copy").code == 4


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("gpt",), 2), (("missing", "copy"), 5), (("html", "copy"), 3),
                                                 (("gpt", "s3://b/x"), 3), (("gpt", "gpt"), 2), (("gpt", "copy", "--step", "9"), 5)])
def test_exit_codes(neve, make_job, tmp_path, arguments, code):
    make_job(steps=1)
    (tmp_path / "html").write_text("<!DOCTYPE html><html>" + "hello " * 100)
    answer = neve("cp", *arguments)
    assert answer.code == code and answer.err, answer.err
