import gc
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from spec_trt import names
from spec_trt.errors import BackendError, ConfigError, ManifestError, PromptError
from spec_trt.manifest import GraphFacts, TensorRtFacts, describe_files, save_manifest
from spec_trt.runtime import trt_backend
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.target import Target
from spec_trt.runtime.trt_backend import TrtBackend
from tests.runtime.fake_session import FakeSession, fake_facts
from tests.runtime.fake_tensorrt import FakeStream, fake_tensorrt
from tests.runtime.test_trt_session import doubling
from tests.test_manifest import make_engine_facts, make_manifest

MASK, PAST = [[1, 1, 16]] * 3, [[1, 1, 100, 2]] * 3
FACTS = TensorRtFacts(
    attention="native",
    plugin_version=None,
    compute_capabilities=["8.9"],
    max_length=100,
    max_batch=1,
    max_nodes=8,
    prefill_chunk=64,
    profiles={
        "base": {
            names.DECODE: {names.TREE_MASK: MASK, names.past_key(0): PAST},
            names.PREFILL: {names.TREE_MASK: [[1, 1, 64]] * 3, names.past_key(0): PAST},
        },
        "medusa": {names.DECODE: {}, names.PREFILL: {}},
    },
)


def trt_facts(**changes):
    return make_engine_facts(backend="trt-rtx", precision="fp16", tensorrt=FACTS, **changes)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "base.engine").write_bytes(b"engine")
    graphs = {"base": GraphFacts(file="base.engine", inputs=[], outputs=[])}
    save_manifest(make_manifest(graphs=graphs, engine=trt_facts(), files=describe_files(tmp_path)), tmp_path)
    return tmp_path


def backend(directory, facts=FACTS, **options):
    graphs = {"base": GraphFacts(file="base.engine", inputs=[], outputs=[])}
    library = fake_tensorrt({b"engine": doubling()})
    return TrtBackend(directory, make_manifest(graphs=graphs), facts, library=library, stream=FakeStream(), **options)


def test_what_is_fixed_comes_from_the_manifest(directory):
    shapes = backend(directory).fixed_shapes("base")
    assert (shapes.capacity, shapes.max_nodes, shapes.decode_window, shapes.prefill_chunk) == (100, 8, 16, 64)


@pytest.mark.parametrize("graph", ["medusa", "eagle"])
def test_a_graph_without_shapes_is_named(directory, graph):
    with pytest.raises(ManifestError, match=f"lacks the shapes of the graph '{graph}': build it again"):
        backend(directory).fixed_shapes(graph)


def test_cuda_graphs_are_an_option(directory):
    made = backend(directory, cuda_graphs=False)
    binding = made.open("base").bind({"x": torch.ones(1)}, {})
    binding.run()
    binding.run()
    assert made._stream.calls == ["run", "run"]


def test_a_graph_that_the_manifest_lacks(directory):
    with pytest.raises(ManifestError, match="names a draft head but no graph 'eagle'"):
        backend(directory).open("eagle")


def test_the_plugin_is_registered_as_long_as_a_session_lives(directory, monkeypatch):
    events = []

    @contextmanager
    def plugin(library):
        events.append(library.__name__)
        yield
        events.append("gone")

    monkeypatch.setattr(trt_backend, "tree_attention_plugin", plugin)
    facts = replace(FACTS, attention="plugin")
    session = backend(directory, facts).open("base")
    gc.collect()
    assert events == ["tensorrt_rtx"]
    del session
    gc.collect()
    assert events == ["tensorrt_rtx", "gone"]


def test_the_cpu_is_no_device_for_it(directory):
    with pytest.raises(ConfigError, match="built for trt-rtx, which runs on a GPU: leave the device out or give cuda"):
        Engine.load(directory, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_loaded(directory):
    pytest.importorskip("tensorrt_rtx")
    with pytest.raises(BackendError, match=r"no NVIDIA GPU is within reach .*: run on a machine with one and a CUDA"):
        Engine.load(directory)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A machine with an RTX 4090 and the library, as far as the checks before loading can tell."""
    monkeypatch.setattr(trt_backend, "import_tensorrt", lambda _backend: fake_tensorrt({}))
    monkeypatch.setattr(trt_backend, "tensorrt_version", lambda _backend: "1.0.0")
    monkeypatch.setattr(trt_backend, "require_gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    monkeypatch.setattr(trt_backend, "CudaStream", lambda _device: FakeStream())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"library_version": "0.9"}, "was built with TensorRT for RTX 0.9, found 1.0.0: build it again"),
        ({"tensorrt": None}, "has no TensorRT engine"),
    ],
)
@pytest.mark.usefixtures("on_a_gpu")
def test_an_engine_of_another_library_is_refused(directory, changes, words):
    facts = make_engine_facts(**{"backend": "trt-rtx", "tensorrt": FACTS} | changes)
    graphs = {"base": GraphFacts(file="base.engine", inputs=[], outputs=[])}
    save_manifest(make_manifest(graphs=graphs, engine=facts, files=describe_files(directory)), directory)
    with pytest.raises(ManifestError, match=words):
        Engine.load(directory)


@pytest.mark.usefixtures("on_a_gpu")
def test_an_engine_of_another_gpu_is_refused(directory, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    with pytest.raises(ManifestError, match=r"built for compute capability 8\.9, this GPU has 9\.0: build it again"):
        Engine.load(directory)


@pytest.mark.usefixtures("on_a_gpu")
def test_a_damaged_engine_file_is_the_librarys_to_refuse(directory):
    with pytest.raises(BackendError, match=r"can't load .*base.engine: \[fake\] magic tag does not match; build it"):
        Engine.load(directory)


def test_a_prompt_must_fit_what_the_engine_was_built_for(tmp_path):
    model = fake_facts()
    engine = Engine(
        make_manifest(model=model, engine=trt_facts()),
        Target(FakeSession(lambda text: len(text) % 16), model),
        tmp_path,
    )
    assert engine.max_length == 100
    with pytest.raises(PromptError, match=r"the engine holds 100 .*, or build it again with a larger --max-length"):
        engine.check_prompt([1] * 100)
    assert engine.stream([1] * 98).result().stats.emitted == 2
