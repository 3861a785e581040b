import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import spec_trt

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "spec_trt"
HEAVY = ("torch", "onnxruntime", "tensorrt", "transformers", "onnx", "numpy")
SOURCES = sorted(
    path for folder in ("spec_trt", "export", "runtime", "plugins") for path in (ROOT / folder).rglob("*.py")
)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def module_name(path):
    relative = path.relative_to(ROOT).with_suffix("")
    parts = [part for part in relative.parts if part != "__init__"]
    return ".".join(parts if parts[0] == "spec_trt" else ["spec_trt", *parts])


def test_every_package_directory_is_installed():
    found = {module_name(path) for path in SOURCES if path.name == "__init__.py"}
    assert found == set(project()["tool"]["setuptools"]["packages"])


def test_version_is_public_and_typed():
    assert spec_trt.__all__ == ["__version__"]
    assert spec_trt.__version__.count(".") == 2
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_are_listed_and_exist(path):
    if path.name in {"__init__.py", "__main__.py"} and "__all__" not in path.read_text():
        return
    module = importlib.import_module(module_name(path))
    assert module.__doc__
    defined = {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert defined <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("code", ["import spec_trt", "import spec_trt.cli; spec_trt.cli.main(['--help'])"])
def test_importing_and_help_are_light(code):
    report = f"lambda: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    program = f"import atexit, sys\natexit.register({report})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("export", ("spec_trt.runtime", "spec_trt.builder", "spec_trt.cli")),
        ("runtime", ("spec_trt.export", "spec_trt.builder", "spec_trt.cli")),
        ("plugins", ("spec_trt.export", "spec_trt.runtime", "spec_trt.builder", "spec_trt.cli")),
        ("spec_trt/builder", ("spec_trt.export", "spec_trt.runtime", "spec_trt.cli")),
    ],
)
def test_dependencies_point_one_way(package, never):
    imported = {
        (path.name, name)
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imports(node)
    }
    assert [pair for pair in imported if pair[1].startswith(never)] == []


def _imports(node):
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
