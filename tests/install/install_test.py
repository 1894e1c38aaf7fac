"""Projects outside this tree, built against what `cmake --install` and `pip install` put there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "release"


def run(*command, **options) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def prefix(tmp_path_factory) -> Path:
    """The installed tree, moved after the install: it must not remember where it was put first."""
    first = tmp_path_factory.mktemp("first") / "prefix"
    run("cmake", "--install", BUILD, "--prefix", first)
    moved = tmp_path_factory.mktemp("moved") / "neve"
    shutil.move(first, moved)
    return moved


@pytest.fixture
def quiet(tmp_path) -> dict:
    """An environment with a RAM folder of the test's own, and no way into the build tree."""
    ram = tmp_path / "ram"
    ram.mkdir(mode=0o700)
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NEVE_RAM_DIR": str(ram)}


def find_one(prefix: Path, pattern: str) -> Path:
    found = list(prefix.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def build_with_cmake(source: Path, build: Path, prefix: Path, program: str = "consumer") -> Path:
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    return build / program


def test_find_package_serves_a_c_project(prefix, tmp_path, quiet):
    consumer = build_with_cmake(HERE / "c", tmp_path / "build", prefix)
    assert "saved and restored" in run(consumer, tmp_path / "job", env=quiet)


def test_find_package_serves_a_cpp_project(prefix, tmp_path, quiet):
    consumer = build_with_cmake(HERE / "cpp", tmp_path / "build", prefix)
    (tmp_path / "job").mkdir()
    assert run(consumer, tmp_path / "job", env=quiet).startswith("neve ")


def goes_on_after_kills(program: Path, folder: Path, environment: dict) -> None:
    """Killed thrice in the middle of a step, it ends as if it never had been."""
    undisturbed = run(program, folder / "undisturbed", "300", env=environment)
    for kill_after in (40, 90, 170):
        child = subprocess.Popen([program, folder / "killed", "300"], env=environment, stdout=subprocess.PIPE, text=True)
        last = next(line for line in child.stdout if line.startswith(f"step {kill_after} "))
        child.kill()
        child.wait()
        child.stdout.close()
        assert last
    ended = run(program, folder / "killed", "300", env=environment)
    restored = int(re.match(r"restored step (\d+)", ended)[1])
    assert restored >= 170   # each step was saved before it was told
    assert ended.splitlines()[-1] == undisturbed.splitlines()[-1]
    assert ended.splitlines()[-1].startswith("checksum ")


def test_the_example_in_c_goes_on_after_kills(prefix, tmp_path, quiet):
    goes_on_after_kills(build_with_cmake(ROOT / "examples" / "c", tmp_path / "build", prefix, "trainer"), tmp_path, quiet)


def test_the_example_in_cpp_goes_on_after_kills(prefix, tmp_path, quiet):
    goes_on_after_kills(build_with_cmake(ROOT / "examples" / "cpp", tmp_path / "build", prefix, "fit"), tmp_path, quiet)


@pytest.fixture(scope="session")
def rust_example(prefix, tmp_path_factory) -> Path:
    """A copy of examples/rust, built without a registry; skipped where no cargo is there that can build at all."""
    if shutil.which("cargo") is None:
        pytest.skip("no cargo here: examples/rust was not built")
    folder = tmp_path_factory.mktemp("rust") / "fit"
    shutil.copytree(ROOT / "examples" / "rust", folder)
    library = find_one(prefix, "lib/**/libneve.so").parent
    environment = dict(os.environ, PKG_CONFIG_PATH=str(library / "pkgconfig"), CARGO_TARGET_DIR=str(folder / "target"))
    run("cargo", "build", "--release", "--offline", "--locked", "--quiet", cwd=folder, env=environment)
    return folder / "target" / "release" / "fit"


def test_the_example_in_rust_goes_on_after_kills(rust_example, tmp_path, quiet):
    goes_on_after_kills(rust_example, tmp_path, quiet)


def test_the_example_in_rust_declares_the_structs_of_the_header():
    """Field by field: what Rust cannot check by itself."""
    rust = (ROOT / "examples" / "rust" / "src" / "neve.rs").read_text()
    described = (ROOT / "tests" / "capi" / "abi" / "structs.txt").read_text()
    names = {"Options": "neve_options", "Tensors": "neve_tensors", "SaveRequest": "neve_save_request",
             "RestoreRequest": "neve_restore_request"}
    kinds = {"usize": "size_t", "u8": "uint8_t", "u32": "uint32_t", "u64": "uint64_t", "i32": "int32_t", "i64": "int64_t", "f64": "double",
             "c_int": "int"}
    for ours, theirs in names.items():
        body = re.search(rf"pub struct {ours} \{{(.*?)\n    \}}", rust, re.S)[1]
        fields = re.findall(r"pub (\w+): ([^,]+),", body)
        expected = re.findall(rf"^{theirs}\.(\w+) .* type=(.*) initial=", described, re.M)
        assert [name for name, _ in fields] == [name for name, _ in expected], ours
        for (name, ours_kind), (_, kind) in zip(fields, expected):
            assert ours_kind.startswith("*") == (kind.endswith("*") or kind.endswith("_fn")), name
            assert ours_kind.startswith("*") or kinds[ours_kind] == kind, name
    dtypes = (ROOT / "tests" / "capi" / "abi" / "enums.txt").read_text()
    assert int(re.search(r"const F64: u8 = (\d+);", rust)[1]) == int(re.search(r"NEVE_F64 = (\d+)", dtypes)[1])
    assert int(re.search(r"const NOT_FOUND: c_int = (\d+);", rust)[1]) == int(re.search(r"NEVE_NOT_FOUND = (\d+)", dtypes)[1])


def test_pkg_config_serves_a_c_project(prefix, tmp_path, quiet):
    found = find_one(prefix, "lib/**/neve.pc").parent
    environment = dict(os.environ, PKG_CONFIG_PATH=str(found))
    flags = run("pkg-config", "--cflags", "--libs", "neve", env=environment).split()
    assert run("pkg-config", "--modversion", "neve", env=environment).strip() == version()
    consumer = tmp_path / "consumer"
    run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", HERE / "c" / "consumer.c", "-o", consumer, *flags)
    library = find_one(prefix, "lib/**/libneve.so").parent
    assert "saved and restored" in run(consumer, tmp_path / "job", env=dict(quiet, LD_LIBRARY_PATH=str(library)))


def test_headers_are_plain_c11_and_cpp(prefix, tmp_path):
    include = f"-I{prefix / 'include'}"
    for compiler, language, standard in (("cc", "c", "c11"), ("c++", "c++", "c++17")):
        run(compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", include,
            prefix / "include" / "neve" / "neve.h")


def test_installed_command_runs_where_it_was_moved_to(prefix, quiet):
    assert version() in run(prefix / "bin" / "neve", "--version", env=quiet)


def test_library_exports_only_its_own_names(prefix):
    library = find_one(prefix, "lib/**/libneve.so")
    symbols = run("nm", "-D", "--defined-only", library).splitlines()
    names = [line.split()[-1].split("@")[0] for line in symbols if line.split()[-2] != "A"]
    assert names and not [name for name in names if not name.startswith("neve_")]


def test_installed_files_name_no_build_path(prefix):
    for file in prefix.rglob("*"):
        if file.suffix in (".cmake", ".pc"):           # the fixture installed to a folder named "first"
            text = file.read_text()
            assert str(ROOT) not in text and "/first" not in text, file
    dynamic = run("readelf", "-d", find_one(prefix, "lib/**/libneve.so"), prefix / "bin" / "neve")
    assert str(ROOT) not in dynamic


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> Path:
    """An empty virtual environment with this tree installed by pip: neither torch nor numpy there."""
    venv = tmp_path_factory.mktemp("pip") / "venv"
    run(sys.executable, "-m", "venv", venv)
    index = subprocess.run([venv / "bin/python", "-m", "pip", "download", "-q", "--no-deps", "-d", venv / "probe", "scikit-build-core"],
                           capture_output=True)
    if index.returncode != 0:
        pytest.skip("no Python package index can be reached")
    # As the release build has it, down to the compiler's name, so that its objects are in the compiler cache.
    werror, compilers = "--config-settings=cmake.define.NEVE_WERROR=ON", {"CC": "cc", "CXX": "c++"}
    run(venv / "bin/python", "-m", "pip", "install", "-q", werror, ROOT, env={**os.environ, **compilers})
    return venv


def test_pip_package_imports_without_torch_and_numpy(package, tmp_path, quiet):
    script = "import json, neve, sys; print(json.dumps([neve.__file__, 'torch' in sys.modules, 'numpy' in sys.modules]))"
    file, torch, numpy = json.loads(run(package / "bin/python", "-c", script, cwd=tmp_path, env=quiet))
    assert Path(file).is_relative_to(package) and not torch and not numpy


def test_pip_package_has_its_library_and_command(package, tmp_path, quiet):
    folder = find_one(package, "lib/python*/site-packages/neve")
    assert (folder / "lib" / "libneve.so").is_file() and (folder / "bin" / "neve").is_file() and (folder / "py.typed").is_file()
    assert version() in run(package / "bin/neve", "--version", cwd=tmp_path, env=quiet)
    script = f"import ctypes; print(ctypes.CDLL({str(folder / 'lib' / 'libneve.so')!r}).neve_version is not None)"
    assert run(package / "bin/python", "-c", script, cwd=tmp_path, env=quiet).strip() == "True"


def test_pip_package_saves_and_restores_plain_values(package, tmp_path, quiet):
    script = ("import neve\n"
              "with neve.Checkpointer('job') as c: c.save(3, {'a': 1, 'b': [2.5, 'x', None]})\n"
              "with neve.Checkpointer('job') as c: found = c.restore()\n"
              "print(found.step, found.state)")
    assert run(package / "bin/python", "-c", script, cwd=tmp_path, env=quiet).strip() == "3 {'a': 1, 'b': [2.5, 'x', None]}"


def test_versions_agree():
    assert version() == re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]


def version() -> str:
    return re.search(r"project\(neve VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
