import gc
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from spec_trt import names
from spec_trt.errors import BackendError, ConfigError, ManifestError, PromptError
from spec_trt.manifest import EagleFacts, GraphFacts, HeadFacts, TensorRtFacts, describe_files, save_manifest
from spec_trt.plugins.tree_attention.plugin import PLUGIN_VERSION, Refusals
from spec_trt.runtime import trt_backend
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.target import Target
from spec_trt.runtime.trt_backend import TrtBackend
from spec_trt.runtime.trt_session import TrtSession
from tests.runtime.device_memory import DeviceMemory
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


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """What is compiled in a test is kept for no other."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


@pytest.fixture
def memory():
    with DeviceMemory() as active:
        yield active


def backend(directory, facts=FACTS, *, memory=None, engine=None, **options):
    graphs = {"base": GraphFacts(file="base.engine", inputs=[], outputs=[])}
    library = fake_tensorrt({b"engine": engine or doubling()}, memory=memory)
    manifest = make_manifest(graphs=graphs, files=describe_files(directory))
    return TrtBackend(directory, manifest, facts, library=library, stream=FakeStream(), gpu="RTX 4090", **options)


def test_what_is_fixed_comes_from_the_manifest(directory):
    shapes = backend(directory).fixed_shapes("base")
    assert (shapes.capacity, shapes.max_nodes, shapes.decode_window, shapes.prefill_chunk) == (100, 8, 16, 64)


@pytest.mark.parametrize("graph", ["medusa", "eagle"])
def test_a_graph_without_shapes_is_named(directory, graph):
    with pytest.raises(ManifestError, match=f"lacks the shapes of the graph '{graph}': build it again"):
        backend(directory).fixed_shapes(graph)


def test_cuda_graphs_are_an_option(directory, memory):
    made = backend(directory, memory=memory, cuda_graphs=False)
    binding = made.open("base").bind({"x": torch.ones(1)}, {})
    binding.run()
    binding.run()
    assert made._stream.calls[1:] == ["run", "run"]


def test_compiled_kernels_are_kept_for_the_engine_the_gpu_and_the_library(directory, memory, own_cache):
    def run(**options):
        made = backend(directory, memory=memory, **options)
        made.open("base").bind({"x": torch.ones(1)}, {}).run()

    run()
    run()
    gc.collect()
    assert len(list(own_cache.glob("spec-trt/*.kernels"))) == 1
    (directory / "base.engine").write_bytes(b"another")
    graphs = {"base": GraphFacts(file="base.engine", inputs=[], outputs=[])}
    library = fake_tensorrt({b"another": doubling()}, memory=memory)
    manifest = make_manifest(graphs=graphs, files=describe_files(directory))
    made = TrtBackend(directory, manifest, FACTS, library=library, stream=FakeStream(), gpu="RTX 4090")
    made.open("base").bind({"x": torch.ones(1)}, {}).run()
    del made
    gc.collect()
    assert len(list(own_cache.glob("spec-trt/*.kernels"))) == 2


def test_what_the_plugin_raises_in_a_pass_is_told(directory, memory, monkeypatch):
    failure = ValueError("no such kernel")
    receivers: list[Refusals] = []
    loaded: list[list[Refusals]] = []
    refusals = Refusals(receivers)

    @contextmanager
    def plugin(_library):
        yield refusals

    monkeypatch.setattr(trt_backend, "tree_attention_plugin", plugin)
    facts, engine = replace(FACTS, attention="plugin"), doubling(fails=True)

    class Noted(TrtSession):
        def __init__(self, *given, **named):
            loaded.append([*receivers])
            super().__init__(*given, **named)

    monkeypatch.setattr(trt_backend, "TrtSession", Noted)
    made = backend(directory, facts, memory=memory, engine=engine, cuda_graphs=False)
    binding = made.open("base").bind({"x": torch.ones(1)}, {})
    assert loaded == [[refusals]]
    refusals.found.append(failure)
    with pytest.raises(BackendError, match="the plugin failed in a pass of 'base': no such kernel") as raised:
        binding.run()
    assert raised.value.__cause__ is failure


def test_a_graph_that_the_manifest_lacks(directory):
    with pytest.raises(ManifestError, match="names a draft head but no graph 'eagle'"):
        backend(directory).open("eagle")


def test_the_plugin_is_registered_as_long_as_a_session_lives(directory, memory, monkeypatch):
    events = []

    @contextmanager
    def plugin(library):
        events.append(library.__name__)
        yield Refusals([])
        events.append("gone")

    monkeypatch.setattr(trt_backend, "tree_attention_plugin", plugin)
    facts = replace(FACTS, attention="plugin")
    session = backend(directory, facts, memory=memory).open("base")
    gc.collect()
    assert events == ["tensorrt_rtx"]
    del session
    gc.collect()
    assert events == ["tensorrt_rtx", "gone"]


def test_the_cpu_is_no_device_for_it(directory):
    with pytest.raises(ConfigError, match="built for trt-rtx, which runs on a GPU: leave the device out or give cuda"):
        Engine.load(directory, device="cpu")


def test_threads_are_no_setting_of_a_gpus(directory):
    with pytest.raises(ConfigError, match="trt-rtx, which runs on a GPU and has no threads to set: leave --threads 2"):
        Engine.load(directory, threads=2)


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
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA GeForce RTX 4090")
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
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 6))
    with pytest.raises(ManifestError, match=r"built for compute capability 8\.9, this GPU has 8\.6: build it again"):
        Engine.load(directory)


def save_plugin_engine(directory, *, draft=None, **changes):
    facts = make_engine_facts(
        backend="trt-rtx",
        tensorrt=replace(FACTS, attention="plugin", plugin_version=PLUGIN_VERSION, compute_capabilities=["7.5", "8.9"]),
    )
    model = replace(replace(fake_facts(), dtype="fp16", head_dim=64, kv_heads=1, heads=1), **changes)
    graphs = {"base": GraphFacts(file="base.engine", inputs=[], outputs=[])}
    manifest = make_manifest(
        model=model, graphs=graphs, engine=facts, files=describe_files(directory), heads=HeadFacts(eagle=draft)
    )
    save_manifest(manifest, directory)


@pytest.mark.parametrize(
    ("changes", "capability", "words"),
    [
        ({"dtype": "bf16"}, (7, 5), r"needs compute capability 8\.0 for bf16, found 7\.5"),
        ({"head_dim": 12}, (8, 9), "takes a head_dim that is a multiple of 8 up to 256, found 12"),
        ({"heads": 3, "kv_heads": 2}, (8, 9), "multiple of the key heads, found 3 and 2"),
    ],
)
@pytest.mark.usefixtures("on_a_gpu")
def test_what_the_plugin_cannot_run_is_refused_before_anything_is_loaded(
    directory, monkeypatch, changes, capability, words
):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    save_plugin_engine(directory, **changes)
    with pytest.raises(BackendError, match=words):
        Engine.load(directory)


@pytest.mark.usefixtures("on_a_gpu")
def test_so_is_what_it_cannot_run_of_a_draft_head(directory):
    pytest.importorskip("triton")
    eagle = EagleFacts(
        version=1,
        layers=1,
        kv_heads=1,
        head_dim=260,
        hidden=8,
        feature_layers=[],
        top_k=2,
        draft_vocab=16,
        draft_ids=None,
        tree=[],
        source="test",
    )
    save_plugin_engine(directory, draft=eagle)
    with pytest.raises(BackendError, match="up to 256, found 260"):
        Engine.load(directory)


@pytest.mark.usefixtures("on_a_gpu")
def test_a_damaged_engine_file_is_the_librarys_to_refuse(directory):
    with pytest.raises(BackendError, match=r"can't load .*base.engine: \[fake\] magic tag does not match; build it"):
        Engine.load(directory)


def test_a_prompt_must_fit_what_the_engine_was_built_for(tmp_path):
    model = fake_facts()
    engine = Engine(
        make_manifest(model=model, engine=trt_facts()),
        tmp_path,
        lambda batch, _cache_bytes: Target(FakeSession(lambda text: len(text) % 16), model, batch=batch),
    )
    assert engine.max_length == 100
    with pytest.raises(PromptError, match=r"the engine holds 100 .*, or build it again with a larger --max-length"):
        engine.check_prompt([1] * 100)
    assert engine.stream([1] * 98).result().stats.emitted == 2
