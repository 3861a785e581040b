"""Which engines a machine may load."""

import dataclasses
from pathlib import Path

import pytest

from spec_trt import tensorrt_engine
from spec_trt.errors import ManifestError
from spec_trt.manifest import TensorRtFacts
from spec_trt.tensorrt_engine import check_tensorrt_engine
from tests.test_manifest import make_engine_facts

BUILT = TensorRtFacts(
    attention="plugin",
    plugin_version="1",
    compute_capabilities=["8.9", "12.0"],
    max_length=64,
    max_batch=1,
    max_nodes=16,
    prefill_chunk=32,
    profiles={},
)
OPTIONS = {"opt_batch": 1, "opt_nodes": 8, "workspace_bytes": None}
SIZES = "--attention plugin --max-batch 1 --max-nodes 16 --prefill-chunk 32 --max-length 64 --opt-batch 1 --opt-nodes 8"
HERE = {"library_version": "1.7.1.116", "plugin_version": "1", "compute_capability": "8.9"}


@pytest.fixture(autouse=True)
def accepted(monkeypatch):
    """The GPUs that TensorRT for RTX builds for; the library itself need not be here."""
    capabilities = ["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]
    monkeypatch.setattr(tensorrt_engine, "accepted_compute_capabilities", lambda _backend: capabilities)


def check(built=BUILT, backend="trt-rtx", **changes):
    facts = make_engine_facts(backend=backend, library_version="1.7.1.116", tensorrt=built, options=OPTIONS)
    return check_tensorrt_engine(Path("engine"), facts, **(HERE | changes))


def test_engine_of_this_machine_is_taken():
    assert check() == BUILT
    assert check(compute_capability="12.0") == BUILT
    native = dataclasses.replace(BUILT, attention="native", plugin_version=None)
    assert check(native, plugin_version="2") == native


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"library_version": "1.8.0"}, r"built with TensorRT for RTX 1\.7\.1\.116, found 1\.8\.0"),
        ({"plugin_version": "2"}, "built with TreeAttention plugin 1, found 2"),
        ({"compute_capability": "8.6"}, r"built for compute capability 8\.9, 12\.0, this GPU has 8\.6"),
    ],
    ids=str,
)
def test_other_engines_are_refused_with_the_command_that_builds_again(changes, message):
    with pytest.raises(ManifestError, match=message) as raised:
        check(**changes)
    capabilities = "8.9,12.0,8.6" if "compute_capability" in changes else "8.9,12.0"
    command = f"spec-trt build BUNDLE engine --backend trt-rtx --compute-capability {capabilities} {SIZES} --force"
    assert f"build it again: `{command}`" in str(raised.value)


def test_gpu_that_rtx_has_no_engines_for_is_sent_to_tensorrt():
    other = (
        rf"this GPU has 9\.0: TensorRT for RTX does not build for that, TensorRT does: .*--backend trt {SIZES} --force"
    )
    with pytest.raises(ManifestError, match=other):
        check(compute_capability="9.0")


def test_engine_of_the_gpu_at_hand_is_built_again_for_the_gpu_at_hand():
    built = dataclasses.replace(BUILT, compute_capabilities=["9.0"])
    with pytest.raises(ManifestError, match=f"`spec-trt build BUNDLE engine --backend trt-rtx {SIZES} --force`"):
        check(built, compute_capability="9.0", library_version="1.8.0")
    with pytest.raises(ManifestError, match=rf"--backend trt-rtx --compute-capability 8\.9 {SIZES} --force`"):
        check(built)


def test_tensorrt_builds_again_on_the_gpu_it_finds():
    with pytest.raises(ManifestError, match=f"`spec-trt build BUNDLE engine --backend trt {SIZES} --force`"):
        check(backend="trt", compute_capability="9.0")


def test_engine_of_another_back_end_is_refused():
    with pytest.raises(ManifestError, match="engine has no TensorRT engine"):
        check(built=None, backend="ort")
