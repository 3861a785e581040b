import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import spec_trt.profile
from spec_trt.cli import main
from spec_trt.errors import ConfigError
from spec_trt.profile.kernels import check_profiled
from spec_trt.runtime.costs import COSTS_FILE, Costs
from tests.test_manifest import make_engine_facts, make_manifest

SCHEMA = json.loads((Path(spec_trt.profile.__file__).parent / "schema.json").read_text(encoding="utf-8"))
SMALL = ("--max-new-tokens", 12, "--nodes", "1,2,4,8", "--past", "8,32", "--batch", "1,2", "--threads", 1)


@pytest.fixture
def run(capsys):
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*args):
        code: int | str | None = 0
        try:
            main([str(arg) for arg in ("profile", *args)])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def profiled(text_engine, tmp_path_factory):
    """A profile of all methods without a head, in every form."""
    out = tmp_path_factory.mktemp("out")
    files = {form: out / f"profile.{form}" for form in ("json", "trace", "html")}
    options = [word for form, file in files.items() for word in (f"--{form}", file)]
    main([str(word) for word in ("profile", text_engine, *SMALL, "--kernels", *options)])
    return files


def test_the_json_is_as_its_schema_says(profiled):
    Draft202012Validator.check_schema(SCHEMA)
    profile = json.loads(profiled["json"].read_text())
    Draft202012Validator(SCHEMA).validate(profile)
    assert [one["method"] for one in profile["methods"]] == ["autoregressive", "ngram", "jacobi", "lookahead"]
    assert [one["method"] for one in profile["standings"]] == [one["method"] for one in profile["methods"]]
    assert {(cost["batch"], cost["past"]) for cost in profile["costs"]["verify"]} == {(1, 8), (1, 32), (2, 8), (2, 32)}
    assert [one["batch"] for one in profile["overhead"]] == [1, 16]
    assert all(one["tokens"] >= 12 * 6 for one in profile["methods"])


def test_what_stands_where_follows_from_what_was_measured(profiled):
    profile = json.loads(profiled["json"].read_text())
    for method, standing in zip(profile["methods"], profile["standings"], strict=True):
        assert standing["accept_length"] == pytest.approx(method["accept_length"])
        assert standing["predicted_speedup"] == pytest.approx(standing["accept_length"] / standing["break_even"])
        assert standing["by_batch"]["1"] == pytest.approx(standing["predicted_speedup"])
    assert profile["best"]["speedup"] == max(one["best"]["speedup"] for one in profile["standings"]) >= 1


def test_operators_are_listed_largest_first(profiled):
    kernels = json.loads(profiled["json"].read_text())["kernels"]
    assert [one["nodes"] for one in kernels] == [1, 16]
    for one in kernels:
        for listed in (one["operators"], one["graph_nodes"]):
            assert listed
            assert [item["ms"] for item in listed] == sorted((item["ms"] for item in listed), reverse=True)
        assert sum(item["ms"] for item in one["operators"]) <= one["total_ms"] * 1.001


def test_the_trace_has_every_method(profiled):
    events = json.loads(profiled["trace"].read_text())["traceEvents"]
    assert {event["args"]["name"].split()[0] for event in events if event["name"] == "process_name"} == {
        "autoregressive",
        "ngram",
        "jacobi",
        "lookahead",
    }


class Outline(HTMLParser):
    """Headings, and everything that a page would load."""

    def __init__(self):
        super().__init__()
        self.stack, self.headings, self.loaded, self.svgs = [], [], [], 0

    def handle_starttag(self, name, attributes):
        self.loaded += [value for key, value in attributes if key in {"src", "href", "srcset"}]
        self.svgs += name == "svg"
        if name not in {"meta", "link"}:
            self.stack.append(name)

    def handle_endtag(self, name):
        assert self.stack.pop() == name

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "h2":
            self.headings.append(data)


def test_the_page_is_whole_small_and_loads_nothing(profiled):
    text = profiled["html"].read_text()
    page = Outline()
    page.feed(text)
    assert page.stack == []
    assert page.loaded == []
    assert not re.search(r"@import|url\(|<script", text)
    assert len(text.encode()) < 2_000_000
    assert {"Does it pay?", "How long a token takes", "How deep drafts are accepted", "What a pass costs"} <= set(
        page.headings
    )
    assert page.svgs >= 8
    assert "prefers-color-scheme: dark" in text
    assert "NaN" not in text
    assert "$" not in text.split("</style>")[1]


def test_a_profile_of_one_method_is_printed(run, text_engine, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "aba aba aba"}\n{"prompt": "121"}\n')
    before = sorted(path.name for path in text_engine.iterdir())
    code, out, err = run(
        text_engine, *SMALL, "--prompts", prompts, "--limit", 1, "--methods", "ngram", "-o", "ngram.num_draft_tokens=2"
    )
    assert code == 0
    assert "generations" in err
    assert "\n1 prompt " in out
    assert re.search(r"^ngram +[\d.]+ +", out, flags=re.MULTILINE)
    assert "jacobi" not in out
    assert out.strip().splitlines()[-1].startswith("best here: ")
    assert sorted(path.name for path in text_engine.iterdir()) == before


def test_costs_are_kept_where_asked_for(run, text_engine, tmp_path):
    engine = tmp_path / "engine"
    shutil.copytree(text_engine, engine)
    (engine / COSTS_FILE).write_text('{"version": 1}')  # an older one is no obstacle
    code, *_ = run(engine, *SMALL, "--methods", "ngram", "--save")
    assert code == 0
    costs = Costs.load(engine)
    assert costs is not None
    assert (costs.threads, costs.precision, set(costs.draft)) == (1, "fp32", {"autoregressive", "ngram"})
    assert len(costs.worth["ngram"].accepted) == 8
    assert (engine / COSTS_FILE).is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--methods", "telepathy"), "method must be one of"),
        (("--methods", "eagle"), "needs an EAGLE head"),
        (("--nodes", "0"), "--nodes"),
        (("--past", "-1"), "--past"),
        (("--batch", "x"), "--batch takes numbers like 1,4,16, found 'x'"),
        (("--max-new-tokens", 1), "max_new_tokens must be at least 2"),
        (("-o", "ngram.speed=3"), "speed"),
        (("--html", "absent/page.html"), "absent is not a directory"),
    ],
)
def test_bad_input_is_one_line(run, text_engine, options, words):
    code, out, err = run(text_engine, *options)
    assert (code, out) == (1, "")
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert words in line


def test_a_prompt_that_does_not_fit_is_refused(run, text_engine, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "long " * 400}))
    code, _, err = run(text_engine, "--prompts", prompts)
    assert code == 1
    assert "the prompt has" in err


def test_operators_of_tensorrt_are_refused():
    with pytest.raises(ConfigError, match="ONNX Runtime's own profile, the engine was built for trt-rtx"):
        check_profiled(make_manifest(engine=make_engine_facts(backend="trt-rtx")))
