"""ls, verify, recover and gc on job folders, whole and damaged, and on RAM."""

import pytest


def flip(path, offset, byte=b"\xa5"):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(byte)


def test_ls_prints_one_line_a_save_newest_first(neve, make_job):
    make_job(steps=2)
    answer = neve("ls", "gpt")
    lines = answer.out.splitlines()
    assert answer.code == 0 and len(lines) == 2
    assert lines[0].startswith("1  i0001.s000001  complete  file") and "loss=1.5" in lines[0]


def test_ls_json_has_the_agreed_fields(neve, make_job):
    make_job(steps=1)
    (save,) = neve("ls", "gpt", "--json").json["saves"]
    assert save["job"] == "gpt" and save["step"] == 0 and save["save_id"] == "i0001.s000000" and len(save["uid"]) == 32
    assert save["complete"] is True and save["missing_ranks"] == [] and save["world"] == 1 and save["pinned"] is False
    assert save["tiers"]["file"]["bytes"] == save["bytes"] > 1 << 20 and save["tags"] == {"loss": 1.5}
    assert 0 <= save["age"] < 600 and save["time"] > 1_700_000_000


def test_ls_of_a_root_lists_every_job_below(neve, make_job):
    make_job("a", steps=1)
    make_job("b", steps=1)
    assert {save["job"] for save in neve("ls", ".", "--json").json["saves"]} == {"a", "b"}


def test_an_empty_folder_lists_nothing_and_is_no_checkpoint_for_other_verbs(neve, tmp_path):
    (tmp_path / "empty").mkdir()
    answer = neve("ls", "empty")
    assert (answer.code, answer.out) == (0, "")
    for verb in ("inspect", "verify", "gc", "recover"):
        assert neve(verb, "empty").code == 3, verb


def test_a_missing_place_is_unreachable(neve):
    for verb in ("ls", "inspect", "verify", "gc", "recover"):
        answer = neve(verb, "nowhere")
        assert answer.code == 5 and "nowhere" in answer.err, verb


@pytest.mark.parametrize("name, file, what", [("dcp", ".metadata", "DCP"), ("hf", "model.safetensors.index.json", "HuggingFace")])
def test_foreign_folders_are_named_and_hold_no_saves(neve, tmp_path, name, file, what):
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_text("{}")
    listed = neve("ls", name)
    assert listed.code == 0 and what in listed.err and listed.out == ""
    for verb in ("verify", "inspect"):
        damaged = neve(verb, name)
        assert damaged.code == 4 and file in damaged.out + damaged.err, verb


def test_places_of_later_versions_say_so(neve):
    for place in ("s3://bucket/x", "agent:", "peer:"):
        answer = neve("ls", place)
        assert answer.code == 3 and "not in this version" in answer.err


def test_a_tier_string_is_a_place(neve, make_job):
    make_job("g pt", steps=1)
    assert len(neve("ls", "file:g%20pt?every=10&keep=3", "--json").json["saves"]) == 1


def test_an_unknown_option_of_a_tier_string_is_wrong_usage(neve, make_job):
    make_job("job", steps=1)
    for verb in ("ls", "verify"):
        answer = neve(verb, "file:job?bogus=1")
        assert answer.code == 2 and "bogus" in answer.err, verb


def test_a_job_that_ram_does_not_hold_is_missing(neve, make_job):
    for _ in range(2):   # without any RAM folder, then with that of another job
        for verb in ("verify", "recover", "gc"):
            answer = neve(verb, "ram:nojob")
            assert answer.code == 5 and "nojob" in answer.err, verb
        assert (neve("ls", "ram:nojob").code, neve("ls", "ram:nojob").out) == (0, "")
        make_job(steps=1, kill=True)
    assert "gpt" in neve("verify", "ram:nojob").err and neve("verify", "ram:gpt").code == 0


def test_verify_checks_the_trees_of_slots_and_of_steps(neve, make_job, ram_folder):
    folder = make_job(steps=1, kill=True)
    changed = 0
    for path in (*folder.glob("step-*/*.safetensors"), *ram_folder.glob("*/*.slot")):
        at = path.read_bytes().find(b'\\"np\\":1')
        if at >= 0:   # not in a slot that is free
            flip(path, at + 8, b"7")
            changed += 1
    assert changed == 2
    for place in ("gpt", "ram:gpt"):
        answer = neve("verify", place, "--json")
        assert answer.code == 4, place
        assert {problem["code"] for problem in answer.json["problems"]} == {"tree", "digest"}, place


def test_verify_of_a_good_job_checks_every_byte(neve, newest):
    folder, image, _ = newest(steps=2)
    answer = neve("verify", "gpt", "--json")
    assert answer.code == 0 and answer.json["ok"] is True and answer.json["problems"] == []
    assert answer.json["checked_bytes"] == sum(path.stat().st_size for path in folder.glob("step-*/*.safetensors"))


def test_a_changed_byte_is_named_by_file_tensor_chunk_and_offset(neve, newest):
    _, image, _ = newest(steps=1)
    flip(image, 500_000)
    answer = neve("verify", "gpt", "--json")
    (problem,) = answer.json["problems"]
    assert answer.code == 1 and answer.json["ok"] is False
    assert problem["code"] == "digest" and problem["tensor"] == "model.w" and problem["chunk"] == 0 and problem["offset"] == 0
    assert problem["file"].endswith(image.name)


def test_ST_04_a_cut_image_is_structural_and_names_the_first_tensor(neve, newest):
    _, image, _ = newest(steps=1)
    size = image.stat().st_size
    with open(image, "r+b") as file:
        file.truncate(size // 2)
    answer = neve("verify", "gpt", "--json")
    (problem,) = answer.json["problems"]
    assert answer.code == 4 and problem["code"] == "truncated" and problem["tensor"] == "model.w"
    assert str(size) in problem["message"] and str(size // 2) in problem["message"]
    assert neve("ls", "gpt").code == 4 and neve("inspect", image).code == 4


def test_trailing_bytes_are_structural(neve, newest):
    _, image, _ = newest(steps=1)
    with open(image, "ab") as file:
        file.write(b"abc")
    answer = neve("verify", image, "--json")
    assert answer.code == 4 and answer.json["problems"][0]["code"] == "trailing"


def test_an_unreadable_record_is_structural(neve, newest):
    _, _, record = newest(steps=1)
    record.write_bytes(record.read_bytes().replace(b'"step":0', b'"step":7'))
    answer = neve("verify", "gpt", "--json")
    assert answer.code == 4 and answer.json["problems"][0]["code"] == "record"


def test_a_record_without_its_image_is_structural(neve, newest):
    _, image, _ = newest(steps=1)
    image.unlink()
    answer = neve("verify", "gpt", "--json")
    assert answer.code == 4 and answer.json["problems"][0]["code"] == "missing"
    assert neve("ls", "gpt", "--json").json["saves"][0]["missing_ranks"] == [0]


def test_an_image_without_a_record_is_a_note(neve, newest):
    _, _, record = newest(steps=1)
    record.unlink()
    answer = neve("verify", "gpt", "--json")
    assert answer.code == 0 and answer.json["ok"] is True and "no commit record" in answer.json["notes"][0]


def test_a_record_under_another_name_is_refused(neve, newest):
    _, _, record = newest(steps=1)
    step = record.parent
    step.rename(step.with_name("step-000000000005.i0001.s000000"))
    answer = neve("verify", "gpt", "--json")
    assert answer.code == 4 and answer.json["problems"][0]["code"] == "identity"


def test_damaged_notes_of_the_job_are_structural(neve, make_job):
    folder = make_job(steps=1)
    for name in ("job.json", "life-0001.json"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(good[:20])
        assert neve("ls", "gpt").code == 4 and neve("verify", "gpt").code == 4, name
        (folder / name).write_bytes(good)


def test_recover_persists_what_a_killed_job_left_in_ram(neve, make_job, ram_folder):
    make_job(steps=2, kill=True, every=2)
    assert [save["step"] for save in neve("ls", "gpt", "--json").json["saves"]] == [0]
    assert {save["step"] for save in neve("ls", "ram:", "--json").json["saves"]} == {0, 1}
    assert neve("verify", "ram:gpt").code == 0
    outcomes = {item["step"]: item["outcome"] for item in neve("recover", "gpt", "--dry-run", "--json").json["items"]}
    assert outcomes == {0: "already there", 1: "would persist"}
    assert neve("recover", "ram:", "--json").json["items"][0]["outcome"] == "in RAM"
    answer = neve("recover", "gpt", "--json")
    assert answer.code == 0 and answer.json["items"][1]["outcome"] == "persisted"
    assert [save["step"] for save in neve("ls", "gpt", "--json").json["saves"]] == [1, 0]
    assert neve("verify", "gpt").code == 0
    assert list(ram_folder.glob("*/*.slot")) == []


def test_recover_does_not_persist_bytes_that_changed_in_ram(neve, make_job, ram_folder):
    make_job(steps=2, kill=True, every=2)
    for slot in ram_folder.glob("*/*.slot"):
        flip(slot, slot.stat().st_size - 500_000)
    answer = neve("recover", "gpt")
    assert answer.code == 1 and "differs from its digest" in answer.out
    assert [save["step"] for save in neve("ls", "gpt", "--json").json["saves"]] == [0]


def test_recover_into_another_folder(neve, make_job, tmp_path):
    make_job(steps=2, kill=True, every=2)
    assert neve("recover", "ram:gpt", "--to", "elsewhere/gpt").code == 0
    assert len(neve("ls", "elsewhere/gpt", "--json").json["saves"]) == 2
    assert neve("verify", "elsewhere/gpt").code == 0


def test_recover_goes_on_past_jobs_that_have_one_name(neve, make_job, tmp_path):
    for name in ("a/ckpt", "b/ckpt", "zeta"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        make_job(name=name, steps=2, kill=True, every=2)
    answer = neve("recover", "ram:", "--to", "elsewhere", "--json")
    assert answer.code == 2 and len(neve("ls", "elsewhere/zeta", "--json").json["saves"]) == 2
    told = [item["outcome"] for item in answer.json["items"] if item["job"] == "ckpt"]
    assert len(told) == 1 and "two jobs named ckpt" in told[0] and "its own job folder" in told[0]
    assert neve("recover", "ram:ckpt", "--to", "a/ckpt").code == 0 and neve("verify", "a/ckpt").code == 0
    assert {save["step"] for save in neve("ls", "a/ckpt", "--json").json["saves"]} == {0, 1}


def test_gc_keeps_what_is_only_in_ram(neve, make_job, ram_folder):
    make_job(steps=2, kill=True, every=2)
    answer = neve("gc", "gpt", "--json")
    kept = [item["outcome"] for item in answer.json["items"] if item["what"] == "dead slot" and item["outcome"] != "removed"]
    assert answer.code == 0 and len(kept) == 1 and "step 1" in kept[0] and len(list(ram_folder.glob("*/*.slot"))) == 1


def test_gc_applies_retention_and_leaves_pinned_saves(neve, make_job):
    folder = make_job(steps=3)
    oldest = sorted(folder.glob("step-*"))[0]
    (oldest / "pinned").touch()
    assert "would remove" in neve("gc", "gpt", "--keep", "1", "--dry-run").out
    assert len(list(folder.glob("step-*"))) == 3
    assert neve("gc", "gpt", "--keep", "1").code == 0
    assert [save["step"] for save in neve("ls", "gpt", "--json").json["saves"]] == [2, 0]


def test_gc_removes_leftovers_of_dead_lives_and_nothing_of_others(neve, newest):
    folder, image, record = newest(steps=2)
    record.unlink()
    (image.parent / "notes.txt").write_text("mine")
    (folder / "README").write_text("mine")
    (folder / ".tmp-0123456789abcdef").write_text("x")
    assert neve("gc", "gpt").code == 0
    assert not image.exists() and not (folder / ".tmp-0123456789abcdef").exists()
    assert (image.parent / "notes.txt").exists() and (folder / "README").exists() and (folder / "job.json").exists()


def test_gc_keeps_leftovers_of_a_life_that_may_run(neve, newest):
    folder, image, record = newest(steps=1)
    record.unlink()
    claim = folder / "life-0001.json"
    text = claim.read_text()
    host = text.split('"host":"')[1].split('"')[0]
    claim.write_text(text.replace(f'"host":"{host}"', '"host":"another-host"'))
    assert "may still run on host another-host" in neve("gc", "gpt").out
    assert image.exists()
