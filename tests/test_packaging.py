"""The root carries every plugin, each plugin also stands alone, and the two descriptions never drift apart."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGIN_FOLDERS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
PLUGIN_IDS = [folder.name for folder in PLUGIN_FOLDERS]
CONFORMANCE = ROOT / "conformance"
CUDA_SOURCES = {path.name for path in (ROOT / "plugins/attn_cuda/paged_attn_cuda/csrc").glob("*.cu*")}


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def wheel_packages(folder: Path) -> list[str]:
    return list(project(folder)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])


def entry_points(folder: Path, group: str = "paged_core") -> dict[str, str]:
    return dict(project(folder)["project"]["entry-points"][group])


def test_root_carries_exactly_the_packages_of_the_plugins() -> None:
    theirs = {f"plugins/{folder.name}/{package}" for folder in PLUGIN_FOLDERS for package in wheel_packages(folder)}
    assert set(wheel_packages(ROOT)) - {"paged_core", "conformance/paged_conformance"} == theirs


def test_editable_install_sees_exactly_the_plugin_folders() -> None:
    folders = project(ROOT)["tool"]["hatch"]["build"]["dev-mode-dirs"]
    assert sorted(folders) == sorted([".", "conformance", *(f"plugins/{name}" for name in PLUGIN_IDS)])


def test_type_checker_sees_exactly_the_plugin_folders() -> None:
    paths = project(ROOT)["tool"]["mypy"]["mypy_path"]
    assert sorted(paths) == sorted(
        f"$MYPY_CONFIG_FILE_DIR{part}" for part in ["", "/conformance", *(f"/plugins/{n}" for n in PLUGIN_IDS)]
    )


def test_root_registers_exactly_the_entry_points_of_the_plugins() -> None:
    theirs: dict[str, str] = {}
    for folder in PLUGIN_FOLDERS:
        theirs |= entry_points(folder)
    assert entry_points(ROOT) == theirs


def test_one_version_everywhere() -> None:
    versions = {folder.name: project(folder)["project"]["version"] for folder in [ROOT, CONFORMANCE, *PLUGIN_FOLDERS]}
    for path in ("paged_core/__init__.py", "conformance/paged_conformance/__init__.py"):
        (line,) = [line for line in (ROOT / path).read_text().splitlines() if line.startswith("__version__ = ")]
        versions[path] = ast.literal_eval(line.removeprefix("__version__ = "))
    assert len(set(versions.values())) == 1, versions


def test_no_project_freezes_a_path_into_its_metadata() -> None:
    # `{root:uri}` breaks the resolver for every other plugin once the checkout has moved.
    for folder in [ROOT, CONFORMANCE, *PLUGIN_FOLDERS]:
        assert "{root:" not in (folder / "pyproject.toml").read_text(), folder.name


def test_conformance_in_the_bundle_is_the_one_that_stands_alone() -> None:
    mine, bundle = project(CONFORMANCE)["project"], project(ROOT)["project"]
    assert mine["name"] == "paged-core-conformance"
    assert wheel_packages(CONFORMANCE) == ["paged_conformance"]
    assert entry_points(CONFORMANCE, "pytest11") == entry_points(ROOT, "pytest11")
    core = [text for text in mine["dependencies"] if name_only(text) == "paged-core"]
    major, minor = bundle["version"].split(".")[:2]
    assert core == [f"paged-core>={major}.{minor},<{major}.{int(minor) + 1}"]
    assert sorted(set(mine["dependencies"]) - set(core)) == sorted(bundle["optional-dependencies"]["conformance"])
    extras = bundle["optional-dependencies"]
    for name, needs in extras.items():
        assert set(needs) <= set(extras["dev"]), f"dev lacks what the extra {name} needs: its tests would not run"
    assert (CONFORMANCE / "paged_conformance/py.typed").is_file()
    assert len((CONFORMANCE / "README.md").read_text().split()) >= 40


def test_cuda_is_pinned_to_what_torchs_cuda_build_asks_for() -> None:
    """Both must install together: torch 2.13.0 asks for cuda-toolkit 13.0.3, whose NVRTC this is."""
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line[0] != "#" and "==" in line
    )
    assert (pins["torch"], pins["nvidia-cuda-nvrtc"]) == ("2.13.0", "13.0.88")
    assert {name_only(text) for text in project(ROOT)["project"]["optional-dependencies"]["cuda"]} <= set(pins)


def test_kernels_in_cuda_lie_beside_the_code_that_compiles_them() -> None:
    from paged_attn_cuda.compile import SOURCES

    assert SOURCES.is_relative_to(ROOT / "plugins/attn_cuda")
    assert len(CUDA_SOURCES) > 0


def test_developers_get_what_users_may_add() -> None:
    extras = project(ROOT)["project"]["optional-dependencies"]
    assert set(extras["structured"]) <= set(extras["dev"])
    pinned = {name_only(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert {name_only(text) for text in extras["structured"]} | {"apache-tvm-ffi"} <= pinned


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=PLUGIN_IDS)
class TestPlugin:
    def test_name_entry_point_and_package_agree(self, folder: Path) -> None:
        plugin_id = folder.name
        assert project(folder)["project"]["name"] == f"paged-{plugin_id.replace('_', '-')}"
        assert entry_points(folder) == {plugin_id: f"paged_{plugin_id}"}
        assert wheel_packages(folder) == [f"paged_{plugin_id}"]

    def test_pins_the_core_it_was_written_for(self, folder: Path) -> None:
        major, minor = project(ROOT)["project"]["version"].split(".")[:2]
        pin = f"paged-core>={major}.{minor},<{major}.{int(minor) + 1}"
        assert pin in project(folder)["project"]["dependencies"]

    def test_every_dependency_is_also_the_roots(self, folder: Path) -> None:
        mine = project(folder)["project"]["dependencies"]
        root = {name_only(text) for text in project(ROOT)["project"]["dependencies"]} | {"paged-core"}
        assert {name_only(text) for text in mine} <= root

    def test_has_a_readme_worth_reading(self, folder: Path) -> None:
        assert len((folder / "README.md").read_text().split()) >= 40

    def test_has_tests(self, folder: Path) -> None:
        files = list((folder / "tests").glob("test_*.py"))
        assert any("def test_" in path.read_text() for path in files)

    def test_is_typed(self, folder: Path) -> None:
        assert (folder / f"paged_{folder.name}" / "py.typed").is_file()


def name_only(requirement: str) -> str:
    return "".join(
        character if character.isalnum() or character in "-_." else " " for character in requirement
    ).split()[0]


def build_wheel(folder: Path, out: Path) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = out.glob("*.whl")
    return zipfile.ZipFile(wheel)


def contents(wheel: zipfile.ZipFile) -> tuple[list[str], str]:
    """Names in the wheel, and its entry points."""
    names = wheel.namelist()
    (entry_file,) = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
    return names, wheel.read(entry_file).decode()


@pytest.mark.slow
def test_wheel_of_the_root_carries_core_and_plugins_but_no_tests(tmp_path: Path) -> None:
    names, entries = contents(build_wheel(ROOT, tmp_path))
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"paged_core", "paged_conformance", *(f"paged_{name}" for name in PLUGIN_IDS)}
    suite = {path.name for path in (CONFORMANCE / "paged_conformance/suite").glob("*.py")}
    assert {name for name in suite if f"paged_conformance/suite/{name}" not in names} == set()
    assert "paged_conformance = paged_conformance.plugin" in entries
    assert not [name for name in names if "/tests/" in name or name.startswith("tests/") or name.endswith(".pyc")]
    assert all(f"{top}/py.typed" in names for top in tops)
    assert {name for name in CUDA_SOURCES if f"paged_attn_cuda/csrc/{name}" not in names} == set()
    assert "paged-core = paged_core.cli:main" in entries
    assert all(f"{name} = paged_{name}" in entries for name in PLUGIN_IDS)


@pytest.mark.slow
@pytest.mark.parametrize(("plugin", "data"), [("sched_fcfs", set()), ("attn_cuda", CUDA_SOURCES)])
def test_wheel_of_a_plugin_stands_alone(plugin: str, data: set[str], tmp_path: Path) -> None:
    names, entries = contents(build_wheel(ROOT / "plugins" / plugin, tmp_path))
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {f"paged_{plugin}"}
    assert f"paged_{plugin}/py.typed" in names
    assert {name for name in data if f"paged_{plugin}/csrc/{name}" not in names} == set()
    assert f"{plugin} = paged_{plugin}" in entries


@pytest.mark.slow
def test_wheel_of_the_conformance_suite_stands_alone(tmp_path: Path) -> None:
    names, entries = contents(build_wheel(CONFORMANCE, tmp_path))
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"paged_conformance"}
    assert {"paged_conformance/py.typed", "paged_conformance/suite/test_contract.py"} <= set(names)
    assert "paged_conformance = paged_conformance.plugin" in entries
