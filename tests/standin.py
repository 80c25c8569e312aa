"""A project with the names of the real packages and contents of a few lines, for tests of scripts/dev.py.

Its llama-cpp-python is a source package that is "compiled" by a build backend of its own. pip finds them all
in one folder, so a real run with a real venv takes seconds and needs no network.
"""

from __future__ import annotations

import inspect
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def write_wheel(
    folder: str | pathlib.Path, name: str, version: str, files: dict[str, str], metadata: str = ""
) -> str:
    """Write a wheel of these files, return its name. Its source is part of both build backends."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    wheel = pathlib.Path(folder) / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel.name


FAST = "ik_llama_cpp_python"
BACKEND = f"import pathlib, zipfile\n\n{inspect.getsource(write_wheel)}"
LLAMA_BACKEND = """
import os, time
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder) / "llama_cpp_python-0.3.36.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: llama_cpp_python\\nVersion: 0.3.36\\n")
    return info.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    what = os.environ.get("STAND_IN_COMPILER", "")
    if what == "fails":
        raise SystemExit("fatal error: this compiler is a stand-in")
    if what == "never ends":
        time.sleep(600)
    text = f"ARGS = {os.environ.get('CMAKE_ARGS', '')!r}"
    return write_wheel(folder, "llama_cpp_python", "0.3.36", {"llama_cpp.py": text})
"""
LOCALSPEC_BACKEND = """
def build_editable(folder, config_settings=None, metadata_directory=None):
    needs = ["llama-cpp-python", 'pytest; extra == "test"']
    metadata = "Provides-Extra: test\\n" + "".join(f"Requires-Dist: {need}\\n" for need in needs)
    files = {
        "stand_in.pth": str(pathlib.Path.cwd() / "src"),
        "localspec-0.dist-info/entry_points.txt": "[console_scripts]\\nlocalspec = stand_in:main\\n",
    }
    return write_wheel(folder, "localspec", "0", files, metadata)
"""
STAND_IN = """
import signal, sys, time
def main():
    import llama_cpp
    print(sys.argv[1:], llama_cpp.ARGS, flush=True)
    if "wait" not in sys.argv:
        sys.exit(7)
    try:
        print("waiting", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("the answer so far", flush=True)
        sys.exit(130)
"""
PYTEST = "import os, sys\nprint(sys.argv[1:], os.getcwd())\nsys.exit(5)\n"
BUILD_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


class Project:
    """A folder with scripts/ and pyproject.toml, and beside it the packages that pip will find."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.packages = root.parent / "packages"
        self.packages.mkdir()
        shutil.copytree(ROOT / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "src").mkdir()
        (root / "src" / "stand_in.py").write_text(STAND_IN)
        (root / "backend.py").write_text(BACKEND + LOCALSPEC_BACKEND)
        self.write_pyproject("")
        self._write_llama()
        write_wheel(self.packages, "pytest", "99", {"pytest.py": PYTEST})
        write_wheel(self.packages, FAST, "0.1.5", {f"{FAST}.py": ""})

    def write_pyproject(self, comment: str, where: str = "python_version > '3'") -> None:
        dependencies = 'dependencies = ["click>=8", "llama-cpp-python>=0.3.36,<0.3.37"]'
        fast = f'[project.optional-dependencies]\nfast = ["ik-llama-cpp-python==0.1.5; {where}"]'
        project = f'[project]\nname = "localspec"\nversion = "0"\n{dependencies}\n{fast}\n'
        (self.root / "pyproject.toml").write_text(f"{BUILD_SYSTEM}\n{project}{comment}\n")

    def _write_llama(self) -> None:
        project = '[project]\nname = "llama-cpp-python"\nversion = "0.3.36"\n'
        info = "Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.36\n"
        files = {
            "pyproject.toml": BUILD_SYSTEM + project,
            "PKG-INFO": info,
            "backend.py": BACKEND + LLAMA_BACKEND,
        }
        with tarfile.open(self.packages / "llama_cpp_python-0.3.36.tar.gz", "w:gz") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(f"llama_cpp_python-0.3.36/{name}")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))

    def environment(self, **changes: str) -> dict[str, str]:
        own = ("PIP_", "CMAKE_", "PYTEST_", "PYTHON", "CXX", "STAND_IN_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        pip = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.packages),
            "PIP_CACHE_DIR": str(self.root.parent / "cache"),
        }
        return {**kept, **pip, **changes}

    def run(self, *args: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """`dev.py ARGS`, to its end, with these changes to the environment."""
        env = self.environment(**changes)
        return subprocess.run(self._argv(args), env=env, cwd=self.root.parent, capture_output=True, text=True)

    def start(self, *args: str, **changes: str) -> subprocess.Popen[str]:
        """Start in a process group of its own, so that a Ctrl-C can be sent to it as a terminal does."""
        return start(self._argv(args), self.environment(**changes))

    def _argv(self, args: tuple[str, ...]) -> list[str]:
        return [sys.executable, str(self.root / "scripts" / "dev.py"), *args]


def start(argv: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """A program in a process group of its own, both its output streams in one pipe."""
    out, err = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(argv, env=env, text=True, stdout=out, stderr=err, start_new_session=True)
