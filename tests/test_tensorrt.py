"""The one import point of both TensorRT libraries."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from spec_trt.errors import BackendError
from spec_trt.tensorrt import import_tensorrt, tensorrt_version


@pytest.fixture
def library(monkeypatch):
    """Put a library in place of the installed one."""

    def put(name, version):
        module = ModuleType(name)
        module.__version__ = version  # type: ignore[attr-defined]
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_libs", "polygraphy", "polygraphy.config"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("POLYGRAPHY_USE_TENSORRT_RTX", "x")
    return put


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The directory of a package that holds the library's shared object."""
    directory = tmp_path / "tensorrt_rtx_libs"
    directory.mkdir()
    (directory / "__init__.py").touch()
    (directory / "libtensorrt_rtx.so.1").write_bytes(b"library")
    monkeypatch.syspath_prepend(tmp_path)
    return directory


def test_polygraphy_follows_the_back_end(library, monkeypatch):
    import os

    module = library("tensorrt", "11.4.0.1")
    assert import_tensorrt("trt") is module
    assert os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] == "0"
    monkeypatch.delitem(sys.modules, "tensorrt")
    library("tensorrt_rtx", "1.7.1.116")
    assert tensorrt_version("trt-rtx") == "1.7.1.116"
    assert os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] == "1"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("backend", "name"), [("trt", "tensorrt"), ("trt-rtx", "tensorrt_rtx")])
def test_missing_library_names_its_extra(monkeypatch, backend, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BackendError, match=rf"is not installed: `pip install 'spec-trt\[{backend}\]'`"):
        import_tensorrt(backend)


@pytest.mark.parametrize(
    ("backend", "name", "version"), [("trt", "tensorrt", "10.9.0"), ("trt-rtx", "tensorrt_rtx", "2.0.0")]
)
def test_other_versions_are_refused(library, backend, name, version):
    library(name, version)
    with pytest.raises(BackendError, match=rf"expected TensorRT.* 1?1, found {version}: `pip install"):
        import_tensorrt(backend)


@pytest.mark.usefixtures("library")
def test_library_that_fails_to_load_says_why(tmp_path, monkeypatch):
    (tmp_path / "tensorrt.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError, match=r"TensorRT can't be loaded \(libcudart\.so\.13: cannot open"):
        import_tensorrt("trt")


def test_one_process_uses_one_library(library):
    library("tensorrt_rtx", "1.7.1")
    import_tensorrt("trt-rtx")
    library("tensorrt", "11.4.0")
    with pytest.raises(BackendError, match="has loaded the other TensorRT library: use TensorRT in a new process"):
        import_tensorrt("trt")


def test_polygraphy_of_the_other_library_is_noticed(library, monkeypatch):
    library("tensorrt", "11.4.0")
    config = ModuleType("polygraphy.config")
    config.USE_TENSORRT_RTX = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "polygraphy.config", config)
    with pytest.raises(BackendError, match="has loaded the other TensorRT library"):
        import_tensorrt("trt")


def test_name_that_the_wheel_lacks_is_made_once(library, wheel):
    library("tensorrt_rtx", "1.7.1")
    import_tensorrt("trt-rtx")
    assert (wheel / "libtensorrt_rtx.so").read_bytes() == b"library"
    import_tensorrt("trt-rtx")
    assert sorted(path.name for path in wheel.glob("lib*")) == ["libtensorrt_rtx.so", "libtensorrt_rtx.so.1"]


@pytest.mark.usefixtures("wheel")
def test_name_that_cannot_be_made_is_told_with_its_command(library, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    library("tensorrt_rtx", "1.7.1")
    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(BackendError, match=r"Permission denied\): run `ln -s libtensorrt_rtx\.so\.1 /.*\.so`"):
        import_tensorrt("trt-rtx")
