"""Does each fuzzer find a fault that it is there to find?

A fault is planted in a copy of the sources, one place at a time, the fuzzer is built from the copy, and it must end with a report.

    python tests/fuzz/planted.py ROOT BUILD SECONDS [FUZZER..]
"""

import pathlib
import shutil
import subprocess
import sys

# fuzzer: (file, what stands there, what is planted)
PLANTED = {
    "header_fuzz": ("src/format/image_header.cc", "if (end > data_bytes_ && cut == nullptr)",
                    "if (end > data_bytes_ + 1 && cut == nullptr)"),
    "record_fuzz": ("src/format/commit_record.cc", "if (r.digests.size() != r.chunk_count())", "if (r.digests.size() < r.chunk_count())"),
    "values_fuzz": ("src/format/values.cc", "if (position_ >= text_.size() || text_[position_] != '\\'')",
                    "if (position_ > text_.size() || text_.data()[position_] != '\\'')"),
    "zip_fuzz": ("src/format/zip_directory.cc", "if (bytes > extra.size() - 4) return std::nullopt;",
                    "if (bytes > extra.size()) return std::nullopt;"),
    "pickle_fuzz": ("src/format/pickle_machine.cc", "if (index < memo_.size()) return Push(memo_[index]);",
                    "if (index <= memo_.size()) return Push(memo_.data()[index]);"),
    "npy_fuzz": ("src/format/npy_header.cc", "if (head.size() < bytes) return", "if (head.size() + 8 < bytes) return"),
    "dcp_fuzz": ("src/format/dcp_metadata.cc", "if (LeavesFolder(place.file))", "if (place.file.empty())"),
    "tar_fuzz": ("src/format/torch_tar.cc", "length > rest.size() || rest[digits] != ' '",
                 "length > rest.size() + 64 || rest[digits] != ' '"),
    "global_fuzz": ("src/format/global_pieces.cc", "if (covered == all) return absl::OkStatus();",
                    "if (covered >= all / 2) return absl::OkStatus();"),
}


def copy_sources(root, copy):
    """The tree's files into `copy`, where only changed ones are written: the next build is short."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = root / name, copy / name
        if not source.is_file() or target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def main(root, build, seconds, wanted):
    copy = build / "source"
    copy_sources(root, copy)
    if not (copy / "build/fuzz/build.ninja").exists():
        subprocess.run(["cmake", "--preset", "fuzz"], cwd=copy, check=True, stdout=subprocess.DEVNULL)
    missed = []
    for fuzzer in wanted or PLANTED:
        name, right, wrong = PLANTED[fuzzer]
        path = copy / name
        text = path.read_text()
        if text.count(right) != 1:
            sys.exit(f"{name}: the place for the fault of {fuzzer} stands there {text.count(right)} times; mend the list in this file")
        path.write_text(text.replace(right, wrong))
        try:
            subprocess.run(["ninja", "-C", str(copy / "build/fuzz"), fuzzer], check=True, stdout=subprocess.DEVNULL)
            corpus = build / "corpus" / fuzzer
            shutil.rmtree(corpus, ignore_errors=True)
            corpus.mkdir(parents=True)
            run = subprocess.run([str(copy / "build/fuzz/bin" / fuzzer), f"-max_total_time={seconds}", "-max_len=65536",
                                  f"-artifact_prefix={build}/", str(corpus)], capture_output=True, text=True)
        finally:
            path.write_text(text)
        print(f"{fuzzer}: {'found' if run.returncode != 0 else 'NOT FOUND'}", flush=True)
        if run.returncode == 0:
            missed.append(fuzzer)
    sys.exit(f"not found in {seconds} s: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
