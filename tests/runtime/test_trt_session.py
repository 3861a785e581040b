"""The session's whole code on the CPU: the library is a stand-in that computes on the addresses it is told."""

import gc
import logging
import weakref
from typing import Any

import pytest
import torch

from spec_trt import names
from spec_trt.errors import BackendError
from spec_trt.manifest import GraphFacts, TensorFacts
from spec_trt.runtime.drafters.lookahead import LookaheadDrafter, LookaheadOptions
from spec_trt.runtime.fixed_shapes import FixedShapes
from spec_trt.runtime.kernel_cache import SECONDS_UNSAVED, KernelCache
from spec_trt.runtime.pass_graphs import RUNS_PER_EVICTION
from spec_trt.runtime.target import Target
from spec_trt.runtime.trt_log import error_log, last_error
from spec_trt.runtime.trt_session import TrtSession
from spec_trt.tensorrt import import_tensorrt
from tests.runtime.decoding import decode, tokens
from tests.runtime.device_memory import DeviceMemory
from tests.runtime.fake_session import FakeBinding, FakeSession, fake_facts
from tests.runtime.fake_tensorrt import (
    DataType,
    FakeConfig,
    FakeContext,
    FakeEngine,
    FakeRuntimeCache,
    FakeStream,
    fake_tensorrt,
    living_contexts,
)
from tests.runtime.fakes import FakeTarget

FACTS = GraphFacts(file="x.engine", inputs=[TensorFacts(name="x", dtype="float32", shape=["nodes"])], outputs=[])


def doubling(**changes):
    def compute(inputs, outputs):
        outputs["double"].copy_(inputs["x"] * 2)
        outputs["square"].copy_(inputs["x"] ** 2)

    settings: dict[str, Any] = {
        "inputs": {"x": DataType.FLOAT},
        "outputs": {"double": DataType.FLOAT, "square": DataType.FLOAT},
        "profiles": [{"x": ((1,), (2,), (4,))}, {"x": ((0,), (8,), (16,))}],
        "output_shapes": lambda shapes: {"double": shapes["x"], "square": shapes["x"]},
        "compute": compute,
    }
    return FakeEngine(**settings | changes)


@pytest.fixture
def opened(tmp_path):
    """Sessions whose memory is as particular as a GPU's."""
    with DeviceMemory() as memory:

        def make(engine, *, rtx=True, lazy=False, **options):
            path = tmp_path / "x.engine"
            path.write_bytes(b"engine")
            stream = FakeStream(lazy=lazy)
            library = fake_tensorrt({b"engine": engine}, rtx=rtx, memory=memory)
            return TrtSession(path, "base", FACTS, library=library, stream=stream, **options), stream

        yield make


def test_a_binding_reads_and_writes_the_tensors_themselves(opened):
    session, stream = opened(doubling())
    x, double, square = torch.tensor([1.0, 3.0]), torch.zeros(2), torch.zeros(2)
    binding = session.bind({"x": x}, {"double": double, "square": square})
    binding.run()
    assert (double.tolist(), square.tolist()) == ([2, 6], [1, 9])
    x.fill_(5)
    binding.run()
    assert square.tolist() == [25, 25]
    assert stream.calls[1:] == ["run", "capture", "replay"]


def test_what_other_threads_put_into_tensors_is_there_before_they_are_bound(opened):
    session, stream = opened(doubling())
    session.bind({"x": torch.ones(2)}, {}).run()
    session.bind({"x": torch.ones(2)}, {}).run()
    assert stream.settled == 2


def test_without_cuda_graphs_every_run_is_an_ordinary_one(opened):
    session, stream = opened(doubling(), cuda_graphs=False)
    binding = session.bind({"x": torch.ones(2)}, {"double": torch.zeros(2)})
    binding.run()
    binding.run()
    assert stream.calls[1:] == ["run", "run"]


def test_ordinary_passes_share_a_context_per_profile_and_all_contexts_one_memory(opened):
    engine, sizes = doubling(), [1, 9, 2, 3, 16]
    session, _ = opened(engine, cuda_graphs=False)
    doubles = {size: torch.zeros(size) for size in sizes}
    bindings = {size: session.bind({"x": torch.ones(size)}, {"double": doubles[size]}) for size in sizes}
    for size in [*sizes, 2, 2, 1]:
        doubles[size].zero_()
        bindings[size].run()
        assert doubles[size].tolist() == [2] * size
    contexts = living_contexts(engine)
    assert [context.profile for context in contexts] == [0, 1]
    assert len({context.memory for context in contexts}) == len({id(context.config) for context in contexts}) == 1
    assert contexts[0].memory[1] >= engine.device_memory_size_v2


def test_a_captured_pass_has_a_context_of_its_own_that_nothing_changes(opened):
    engine = doubling()
    session, stream = opened(engine)
    doubles = {size: torch.zeros(size) for size in (1, 2, 3)}
    bindings = [session.bind({"x": torch.ones(size)}, {"double": double}) for size, double in doubles.items()]
    for binding in bindings * 3:
        binding.run()
    contexts = living_contexts(engine)
    assert [context.shapes["x"] for context in contexts[2:]] == [(1,), (2,), (3,)]
    assert len({context.memory for context in contexts}) == 1
    assert (stream.calls.count("capture"), stream.calls.count("replay")) == (3, 6)
    assert all(double.tolist() == [2] * size for size, double in doubles.items())


def run_often(binding, count=RUNS_PER_EVICTION):
    for _ in range(count):
        binding.run()


def test_the_least_recently_used_graph_makes_room_and_its_context_is_the_next_ones(opened):
    engine = doubling()
    session, stream = opened(engine, max_cuda_graphs=2)
    doubles = {size: torch.zeros(size) for size in (1, 2, 3)}
    bindings = {size: session.bind({"x": torch.ones(size)}, {"double": doubles[size]}) for size in doubles}
    for size in (1, 2, 1):
        run_often(bindings[size])
    stream.calls.clear()
    for size in (3, 1, 3):
        doubles[size].zero_()
        bindings[size].run()
        assert doubles[size].tolist() == [2] * size
    assert stream.calls == ["synchronize", "run", "capture", "replay", "replay"]
    assert len(engine.made) == len(living_contexts(engine)) == 2 + len(engine.profiles)


def test_more_sizes_in_turn_than_there_are_places_do_not_take_them_from_each_other_all_the_time(opened):
    engine = doubling()
    session, stream = opened(engine, max_cuda_graphs=3)
    doubles = [torch.zeros(2) for _ in range(4)]
    bindings = [session.bind({"x": torch.ones(2)}, {"double": double}) for double in doubles]
    rounds = 2 * RUNS_PER_EVICTION
    for _ in range(rounds):
        for binding, double in zip(bindings, doubles, strict=True):
            double.zero_()
            binding.run()
            assert double.tolist() == [2, 2]
    assert 3 < stream.calls.count("capture") <= 3 + 4 * rounds / RUNS_PER_EVICTION
    assert stream.calls.count("replay") > 2 * rounds
    assert len(engine.made) == 3 + len(engine.profiles)


def test_a_pass_that_no_one_holds_is_gone_with_its_memory_at_once_and_with_its_graph_before_the_next(opened):
    engine = doubling()
    session, stream = opened(engine)
    kept = session.bind({"x": torch.ones(1)}, {})
    run_often(kept, 2)
    x = torch.ones(2)
    session.bind({"x": x}, {}).run()
    held = weakref.ref(x)
    del x
    assert held() is None
    kept.run()
    assert stream.calls[-2:] == ["synchronize", "replay"]
    made = len(engine.made)
    session.bind({"x": torch.ones(3)}, {}).run()
    assert len(engine.made) == made


def test_a_session_is_gone_with_its_last_reference(opened):
    gc.disable()
    try:
        session, _ = opened(doubling())
        held = weakref.ref(session)
        for size in (2, 3):
            run_often(session.bind({"x": torch.ones(size)}, {}), 2)
        del session
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("changes", [{}, {"capturable": False}, {"breaks_captures": True}])
def test_nothing_is_freed_or_changed_under_what_is_in_flight(opened, changes):
    engine = doubling(**changes)
    session, stream = opened(engine, lazy=True, max_cuda_graphs=1)
    tensors = [(torch.ones(2), torch.zeros(2)) for _ in range(3)]
    for x, double in tensors:
        binding = session.bind({"x": x}, {"double": double})
        run_often(binding)
        del binding
    del session
    stream.synchronize()
    assert [double.tolist() for _, double in tensors] == [[2, 2]] * 3


def test_two_bindings_of_one_shape_are_two_graphs(opened):
    session, _ = opened(doubling())
    doubles = [torch.zeros(2), torch.zeros(2)]
    bindings = [session.bind({"x": torch.full((2,), 3.0 + row)}, {"double": doubles[row]}) for row in range(2)]
    for binding in bindings * 2:
        binding.run()
    assert [double.tolist() for double in doubles] == [[6, 6], [8, 8]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"capturable": False}, "the library says that they can't be captured"),
        ({"breaks_captures": True}, "CUDA error: operation not permitted when stream is capturing Compile with DSA"),
    ],
)
def test_passes_that_cannot_be_captured_run_as_they_are_and_one_warning_says_so(opened, changes, reason, caplog):
    engine = doubling(**changes)
    session, stream = opened(engine)
    doubles = {size: torch.zeros(size) for size in (1, 2)}
    bindings = {size: session.bind({"x": torch.ones(size)}, {"double": doubles[size]}) for size in doubles}
    for size in (1, 2, 1, 2, 1):
        doubles[size].zero_()
        bindings[size].run()
        assert doubles[size].tolist() == [2] * size
    assert "replay" not in stream.calls
    assert stream.calls.count("capture") == (1 if engine.breaks_captures else 0)
    assert len(engine.made) == len(engine.profiles) + 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].getMessage() == (
        f"passes of the graph 'base' run without CUDA graphs, which is slower: {reason}; with --no-cuda-graphs none is "
        "tried"
    )


def test_tensorrt_itself_cannot_tell_and_is_tried(opened, monkeypatch):
    monkeypatch.delattr(FakeContext, "is_stream_capturable")
    session, stream = opened(doubling(), rtx=False)
    binding = session.bind({"x": torch.ones(1)}, {})
    binding.run()
    binding.run()
    assert stream.calls[-2:] == ["capture", "replay"]


def test_what_the_plugin_raised_is_the_error_and_its_cause(opened):
    failures: list[Exception] = []
    engine = doubling()
    session, _ = opened(engine, cuda_graphs=False, plugin_failure=lambda: failures.pop() if failures else None)
    binding = session.bind({"x": torch.ones(1)}, {})
    engine.fails = True
    failures.append(ValueError("no kernel for\n shared memory of 300000"))
    with pytest.raises(BackendError) as raised:
        binding.run()
    assert str(raised.value) == "the plugin failed in a pass of 'base': no kernel for shared memory of 300000"
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(BackendError, match=r"tensorrt_rtx refuses a pass of 'base': \[fake\] .* went wrong"):
        binding.run()


def test_a_failure_of_the_plugins_that_the_library_did_not_notice_is_one_all_the_same(opened):
    failures: list[Exception] = []
    session, _ = opened(doubling(), cuda_graphs=False, plugin_failure=lambda: failures.pop() if failures else None)
    binding = session.bind({"x": torch.ones(1)}, {})
    binding.run()
    failures.append(ValueError("no kernel"))
    with pytest.raises(BackendError, match="the plugin failed in a pass of 'base': no kernel"):
        binding.run()


def test_kernels_are_kept_from_session_to_session(opened, tmp_path, caplog):
    kernels = KernelCache(tmp_path / "cache" / "x.kernels")
    first, _ = opened(doubling(), kernels=kernels)
    first.bind({"x": torch.ones(3)}, {}).run()
    del first
    gc.collect()
    engine = doubling()
    second, _ = opened(engine, kernels=KernelCache(kernels.path))
    assert living_contexts(engine)[0].config.cache.kernels == {"[('x', (3,))]"}
    kernels.path.unlink()
    second.bind({"x": torch.ones(3)}, {}).run()
    del second
    gc.collect()
    assert not kernels.path.exists()  # nothing new was compiled
    assert not caplog.records


def test_kernels_are_kept_while_the_session_goes_on(opened, tmp_path):
    seconds = [0.0]
    kernels = KernelCache(tmp_path / "cache" / "x.kernels", clock=lambda: seconds[0])
    session, _ = opened(doubling(), kernels=kernels)
    binding = session.bind({"x": torch.ones(3)}, {})
    binding.run()
    assert not kernels.path.exists()
    seconds[0] = SECONDS_UNSAVED
    binding.run()
    kept = FakeRuntimeCache()
    KernelCache(kernels.path).load(kept)
    assert kept.kernels == {"[('x', (3,))]"}


def test_an_address_that_the_library_does_not_take_is_refused(opened):
    session, _ = opened(doubling())
    with pytest.raises(BackendError, match="begin at a multiple of 256 bytes, found x 4 behind one"):
        session.bind({"x": torch.zeros(3)[1:]}, {})


def test_memory_lives_as_long_as_what_was_captured_on_it(opened):
    session, stream = opened(doubling())
    binding = session.bind({"x": torch.ones(2)}, {"double": torch.zeros(2)})  # no one else holds them
    binding.run()
    gc.collect()
    binding.run()
    assert stream.calls[-1] == "replay"


def test_the_profile_is_chosen_by_shape(opened):
    engine = doubling()
    session, _ = opened(engine)
    session.bind({"x": torch.ones(4)}, {})
    session.bind({"x": torch.ones(5)}, {})
    assert [context.shapes["x"] for context in living_contexts(engine)] == [(4,), (5,)]


def test_outputs_that_no_one_reads_get_memory_for_the_largest_pass_once(opened):
    engine = doubling()
    session, _ = opened(engine)
    for size in (1, 4, 3, 9):
        session.bind({"x": torch.ones(size)}, {"double": torch.zeros(size)}).run()
    assert len({context.addresses["square"] for context in living_contexts(engine)}) == 1


def test_a_tensor_without_elements_has_an_address_all_the_same(opened):
    session, _ = opened(doubling())
    session.bind({"x": torch.ones(0)}, {"double": torch.zeros(0)}).run()


@pytest.mark.parametrize(("cuda_graphs", "expected"), [(True, "EAGER"), (False, "LAZY")])
def test_kernels_that_a_captured_graph_holds_are_not_replaced(opened, cuda_graphs, expected):
    engine = doubling()
    session, _ = opened(engine, cuda_graphs=cuda_graphs)
    session.bind({"x": torch.ones(1)}, {})
    config = living_contexts(engine)[0].config
    assert config.dynamic_shapes_kernel_specialization_strategy.name == expected
    assert config.strategy.name == "USER_MANAGED"
    assert config.cache is not None


def test_tensorrt_itself_compiles_nothing_at_run_time(opened):
    engine = doubling()
    session, _ = opened(engine, rtx=False)
    session.bind({"x": torch.ones(1)}, {})
    assert living_contexts(engine)[0].config.cache is None


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ({"y": torch.ones(1)}, {}, "interface differs at x, y"),
        ({"x": torch.ones(1)}, {"triple": torch.ones(1)}, "interface differs at triple"),
        ({"x": torch.ones(1)}, {"x": torch.ones(1)}, "interface differs at x"),
        ({"x": torch.ones(1, dtype=torch.float16)}, {}, "engine's x is torch.float32, found torch.float16: build it"),
        ({"x": torch.ones(4)[::2]}, {}, "must be contiguous, found x with strides"),
        ({"x": torch.ones(1, device="meta")}, {}, "must be on cpu, found x on meta"),
    ],
)
def test_what_does_not_fit_the_engine_is_refused_by_name(opened, inputs, outputs, words):
    session, _ = opened(doubling())
    with pytest.raises(BackendError, match=words):
        session.bind(inputs, outputs)


def test_a_pass_that_no_profile_takes_is_refused_by_the_dimension(opened):
    session, _ = opened(doubling())
    with pytest.raises(BackendError, match=r"'base' takes 1 to 4 nodes in decode, found 17: .* --max-nodes 17"):
        session.bind({"x": torch.ones(17)}, {})


def test_a_file_that_the_library_refuses(tmp_path):
    path = tmp_path / "other.engine"
    path.write_bytes(b"damaged")
    with pytest.raises(
        BackendError, match=r"tensorrt_rtx can't load .*other.engine: \[fake\] magic tag does not match"
    ):
        TrtSession(path, "base", FACTS, library=fake_tensorrt({}), stream=FakeStream())


def test_a_type_that_the_runtime_lacks(opened):
    with pytest.raises(BackendError, match="a tensor of type FP8, expected one of FLOAT"):
        opened(doubling(inputs={"x": DataType.FP8}))


def test_a_pass_that_fails_says_why_in_one_line(opened):
    engine = doubling()
    session, _ = opened(engine)
    binding = session.bind({"x": torch.ones(1)}, {})
    engine.fails = True
    with pytest.raises(BackendError, match=r"refuses a pass of 'base': \[fake\] \S+: something went wrong$"):
        binding.run()


def test_what_cuda_raises_becomes_one_line(opened):
    def compute(_inputs, _outputs):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")

    session, _ = opened(doubling(compute=compute))
    binding = session.bind({"x": torch.ones(1)}, {})
    with pytest.raises(BackendError, match=r"^a pass failed: CUDA error: .* encountered Compile with"):
        binding.run()


def test_a_full_gpu_is_named(opened):
    def compute(_inputs, _outputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    session, _ = opened(doubling(compute=compute))
    with pytest.raises(BackendError, match="GPU's memory is full; free some, or build again with a smaller"):
        session.bind({"x": torch.ones(1)}, {}).run()


MODEL = FakeTarget(vocab=16, order=3, period=5)
NODES = 24


def base_engine(*, past):
    """The fake base graph of the other tests, behind the library's interface."""
    session = FakeSession(MODEL.next_token)
    layers = range(2)
    buffers = [name(layer) for layer in layers for name in (names.past_key, names.past_value)]
    rows = [name(layer) for layer in layers for name in (names.new_key, names.new_value)]
    integers = [names.INPUT_IDS, names.POSITION_IDS, names.PAST_LENS, names.LOGITS_ROWS]
    ranges = {
        names.INPUT_IDS: ((1, 1), (1, 8), (1, NODES)),
        names.POSITION_IDS: ((1, 1), (1, 8), (1, NODES)),
        names.PAST_LENS: ((1,), (1,), (1,)),
        names.LOGITS_ROWS: ((1, 0), (1, 8), (1, NODES)),
        names.TREE_MASK: ((1, 1, 1), (1, 8, 8), (1, NODES, NODES)),
    } | dict.fromkeys(buffers, ((1, 1, 1, 2), (1, 1, past, 2), (1, 1, past, 2)))

    def output_shapes(shapes):
        batch, nodes = shapes[names.INPUT_IDS]
        row = (batch, shapes[names.LOGITS_ROWS][1])
        per_layer = dict.fromkeys(rows, (batch, 1, nodes, 2))
        return {
            names.ARGMAX: row,
            names.LOGITS: (*row, MODEL.vocab),
            names.HIDDEN_STATES: (batch, nodes, 3),
            **per_layer,
        }

    return FakeEngine(
        inputs=dict.fromkeys(integers, DataType.INT64)
        | {names.TREE_MASK: DataType.BOOL}
        | dict.fromkeys(buffers, DataType.FLOAT),
        outputs={names.ARGMAX: DataType.INT64}
        | dict.fromkeys((names.LOGITS, names.HIDDEN_STATES, *rows), DataType.FLOAT),
        profiles=[ranges],
        output_shapes=output_shapes,
        compute=lambda inputs, outputs: FakeBinding(session, dict(inputs), dict(outputs)).run(),
    )


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_a_whole_generation_through_the_session(opened, cuda_graphs):
    engine, prompt = base_engine(past=256), [1, 2, 3, 4, 5, 6, 7]
    session, stream = opened(engine, cuda_graphs=cuda_graphs)
    fixed = FixedShapes(capacity=256, max_nodes=NODES, decode_window=NODES, prefill_chunk=16)
    target = Target(session, fake_facts(), fixed=fixed)
    drafter = LookaheadDrafter(LookaheadOptions(), vocab=MODEL.vocab, eos_ids=frozenset())
    assert tokens(decode(prompt, target=target, drafter=drafter, count=60)) == MODEL.greedy(prompt, 60)
    assert ("replay" in stream.calls) == cuda_graphs
    assert {context.shapes[names.past_key(0)] for context in living_contexts(engine)} == {(1, 1, 256, 2)}


def test_the_stand_in_has_nothing_that_the_library_lacks():
    pytest.importorskip("tensorrt_rtx")
    real = import_tensorrt("trt-rtx")
    for stand_in, its in (
        (FakeEngine, real.ICudaEngine),
        (FakeContext, real.IExecutionContext),
        (FakeConfig, real.IRuntimeConfig),
        (FakeRuntimeCache, real.IRuntimeCache),
        (fake_tensorrt({}).Runtime, real.Runtime),
    ):
        members = {name for name, value in vars(stand_in).items() if callable(value) or isinstance(value, property)}

        assert {name for name in members if not name.startswith("_")} <= set(dir(its))
    assert {"device_memory_size_v2", "create_runtime_config"} <= set(dir(real.ICudaEngine))
    assert "dynamic_shapes_kernel_specialization_strategy" in dir(real.IRuntimeConfig)
    assert {"EAGER", "LAZY"} <= set(real.DynamicShapesKernelSpecializationStrategy.__members__)
    assert "USER_MANAGED" in real.ExecutionContextAllocationStrategy.__members__


def test_a_process_has_one_log_per_library():
    library = fake_tensorrt({})
    log = error_log(library)
    assert error_log(library) is log
    log.log(library.ILogger.ERROR, "out of\n memory")
    log.log(library.ILogger.WARNING, "slow")
    assert last_error(log) == "out of memory"
    assert last_error(log) == "the library gave no reason"
