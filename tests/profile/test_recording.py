from itertools import pairwise
from types import SimpleNamespace

import pytest

from spec_trt.profile.acceptance import worth
from spec_trt.profile.generations import latency, record_batch, record_methods
from spec_trt.profile.overhead import measure_overhead
from spec_trt.profile.recording import Span
from spec_trt.profile.session_times import SessionRun, TimedBackend
from spec_trt.profile.trace import trace_json
from spec_trt.runtime.generation import GenerationConfig
from tests.runtime.fake_engine import fake_engine
from tests.runtime.fake_session import FakeSession
from tests.runtime.fakes import FakeTarget

MODEL = FakeTarget(vocab=32, order=1)
PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8]]
METHODS = ["autoregressive", "ngram", "medusa", "eagle2"]


class FakeBackend:
    """Opens the fake target's session."""

    def open(self, graph):
        assert graph == "base"
        return FakeSession(MODEL.next_token, vocab=MODEL.vocab)

    def fixed_shapes(self, _graph):
        return None


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """An engine, and the back end that keeps its runs."""
    backend = TimedBackend(FakeBackend())
    directory = tmp_path_factory.mktemp("engine")
    with fake_engine(directory, MODEL, session=backend.open("base")) as engine:
        yield engine, backend


@pytest.fixture(scope="module")
def recordings(timed):
    engine, _ = timed
    configs = {name: GenerationConfig(method=name, max_new_tokens=20) for name in METHODS}
    return record_methods(engine, PROMPTS, configs, lambda items, _name: items)


def test_every_method_answers_every_prompt_in_turn(recordings):
    assert [recording.method for recording in recordings] == METHODS * len(PROMPTS)


def test_no_prompt_is_begun_after_the_time_is_up(timed):
    configs = {"ngram": GenerationConfig(method="ngram", max_new_tokens=4)}
    assert record_methods(timed[0], PROMPTS, configs, lambda items, _name: items, seconds=0.0) == []


def test_a_recording_is_what_the_stats_say(recordings):
    for recording in recordings:
        passes, stats = recording.passes, recording.stats
        assert (len(passes), sum(one.nodes for one in passes)) == (stats.passes, stats.nodes)
        assert sum(len(one.accepted) + 1 for one in passes) == stats.emitted
        assert passes[0].past == stats.prompt_tokens - 1
        assert passes[-1].past == stats.prompt_tokens - 1 + stats.emitted - len(passes[-1].accepted) - 1
        assert all(one.accepted in [(), *one.drafts] for one in passes)
        for phase in ("draft", "verify", "accept", "commit", "emit"):
            spans = [span for group in recording.spans for span in group if span.phase == phase]
            assert sum(span.seconds for span in spans) == pytest.approx(stats.seconds[phase])


def test_what_drafts_were_worth_is_counted_place_by_place(recordings):
    for method in METHODS:
        own = [recording for recording in recordings if recording.method == method]
        found, passes = worth(own), [one for recording in own for one in recording.passes]
        assert len(found.accepted) == own[0].places
        assert sum(found.accepted) == pytest.approx(sum(len(one.accepted) for one in passes) / len(passes))
        assert sum(found.present) == pytest.approx(sum(len(one.drafts) for one in passes) / len(passes))
    exact = worth([recording for recording in recordings if recording.method == "eagle2"])
    assert exact.accepted[0] > 0.8  # the fake head knows the target's next token
    assert exact.calibration == pytest.approx(1, abs=0.1)
    assert worth([recording for recording in recordings if recording.method == "autoregressive"]).calibration == 1


def test_a_pass_goes_from_its_size_to_what_is_learned_of_it(recordings):
    for recording in recordings:
        assert len(recording.spans) == len(recording.passes)
        whole = ["draft", "draft", "verify", "accept", "commit", "emit", "draft"]  # sizes, nodes, what is learned
        assert [[span.phase for span in group] for group in recording.spans[:-1]] == [whole] * (
            len(recording.spans) - 1
        )
        assert [span.phase for span in recording.spans[-1]] == whole[:6]  # an ended sequence learns no more
        flat = [span for group in recording.spans for span in group]
        assert all(before.ended <= after.started for before, after in pairwise(flat))
        assert recording.prefill
        assert recording.prefill[-1].ended <= flat[0].started


def test_heads_that_are_always_right_are_accepted_at_the_first_rank(recordings):
    found = latency("medusa", {}, [one for one in recordings if one.method == "medusa"])
    assert found.accepted_by_rank == [[0.8], [1], [1], [1]]  # of 5 passes all but the first, after a prompt not its own
    assert found.accept_length == pytest.approx(found.tokens / found.passes)
    assert found.generations == 2
    assert found.accepted_by_depth == sorted(found.accepted_by_depth, reverse=True)


def test_latencies_are_those_of_steps_and_tokens(recordings):
    mine = [one for one in recordings if one.method == "eagle2"]
    found = latency("eagle2", {"depth": 2}, mine)
    gaps = [gap for one in mine for gap, _ in one.stats.gaps]
    assert found.step_ms.mean == pytest.approx(1e3 * sum(gaps) / len(gaps))
    assert found.step_ms.p50 <= found.step_ms.p90 <= found.step_ms.p99 <= 1e3 * max(gaps)
    tokens = sum(count for one in mine for _, count in one.stats.gaps)
    assert found.token_ms.mean == pytest.approx(1e3 * sum(gaps) / tokens)
    assert found.first_token_ms.p99 <= 1e3 * max(time for one in mine for time in one.stats.first_token_seconds)
    assert found.phase_ms["verify"].mean == pytest.approx(
        1e3 * sum(one.stats.seconds["verify"] for one in mine) / found.passes
    )
    assert found.phase_ms["other"].mean >= 0


def test_the_loops_own_time_is_what_the_graphs_leave_of_a_step(timed):
    engine, backend = timed
    for batch in (1, 3):
        begin = len(backend.runs)
        recordings = record_batch(engine, PROMPTS[0], GenerationConfig(max_new_tokens=12), batch)
        found = measure_overhead(recordings, backend.runs[begin:])
        assert found.batch == batch
        assert 0 < found.besides_ms <= found.loop_ms < found.step_ms
        assert found.share == pytest.approx(found.loop_ms / found.step_ms)


def steps(*verify):
    """A recording's groups of spans, one verify pass each."""
    return SimpleNamespace(
        spans=[[Span("draft", begin - 0.5, begin), Span("verify", begin, end)] for begin, end in verify]
    )


def test_only_steps_that_all_sequences_took_count():
    both, alone = ((10.0, 14.0), (16.0, 20.0), (22.0, 26.0)), ((2.0, 4.0), (10.0, 14.0), (16.0, 20.0), (22.0, 26.0))
    runs = [SessionRun("base", begin + 0.5, end) for begin, end in ((2, 4), (10, 14), (16, 20), (22, 26))]
    found = measure_overhead([steps(*both), steps(*alone)], runs)
    assert (found.step_ms, found.loop_ms, found.besides_ms) == (6000, 2500, 2000)
    read = [*runs[:3], SessionRun("base", 20.5, 21.5), runs[3]]
    assert measure_overhead([steps(*both[1:]), steps(*both[1:])], read).step_ms == 0  # a prompt was read in between


@pytest.mark.usefixtures("recordings")
def test_runs_are_kept_with_their_graphs_name(timed):
    _, backend = timed
    assert {run.graph for run in backend.runs} == {"base"}
    assert all(before.ended <= after.started for before, after in pairwise(backend.runs))


def test_the_trace_is_one_that_perfetto_opens(timed, recordings):
    """The Trace Event Format: metadata events name processes and threads, complete ones have a start and a duration."""
    _, backend = timed
    trace = trace_json("an engine", recordings, backend.runs)
    assert trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all(isinstance(event[key], int) for event in events for key in ("pid", "tid"))
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {f"{method} (an engine)" for method in METHODS}
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in slices} <= threads
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in slices)
    assert {"prefill", "draft", "verify", "accept", "commit", "emit", "base", "pass 0"} <= {
        event["name"] for event in slices
    }


def test_a_traces_slices_nest(timed, recordings):
    """A pass holds its phases, and no two of a thread overlap otherwise: or Perfetto shows neither."""
    _, backend = timed
    slices = [event for event in trace_json("e", recordings, backend.runs)["traceEvents"] if event["ph"] == "X"]
    for process, thread in {(event["pid"], event["tid"]) for event in slices}:
        mine = sorted(
            (event for event in slices if (event["pid"], event["tid"]) == (process, thread)),
            key=lambda event: (event["ts"], -event["dur"]),
        )
        ends: list[float] = []
        for event in mine:
            while ends and ends[-1] <= event["ts"] + 0.002:
                ends.pop()
            assert len(ends) < 2
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 0.002
            ends.append(event["ts"] + event["dur"])


def test_the_trace_says_what_every_pass_gave(timed, recordings):
    trace = trace_json("e", recordings, timed[1].runs)
    passes = [event["args"] for event in trace["traceEvents"] if event.get("cat") == "pass"]
    assert sum(one["tokens"] for one in passes) == sum(recording.stats.emitted for recording in recordings)
    assert sum(one["nodes"] for one in passes) == sum(recording.stats.nodes for recording in recordings)
