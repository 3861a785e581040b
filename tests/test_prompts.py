import pytest

from spec_trt.errors import DataError
from spec_trt.prompts import PromptRecord, load_prompts


def write(tmp_path, *lines):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_every_form(tmp_path):
    path = write(
        tmp_path,
        '{"prompt": "a"}',
        "",
        '{"question_id": 1, "category": "math", "turns": ["b", "c"]}',
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "d"}]}',
        '{"text": "e"}',
    )
    assert load_prompts(path) == [
        PromptRecord(turns=["a"]),
        PromptRecord(turns=["b", "c"], category="math"),
        PromptRecord(turns=["d"]),
        PromptRecord(turns=["e"]),
    ]


def test_limits_keep_file_order(tmp_path):
    lines = [f'{{"prompt": "{name}", "category": "{name[0]}"}}' for name in ("a1", "b1", "a2", "b2", "a3", "c1")]
    path = write(tmp_path, *lines)
    assert [record.turns[0] for record in load_prompts(path, per_category=2)] == [
        "a1",
        "b1",
        "a2",
        "b2",
        "c1",
    ]
    assert [record.turns[0] for record in load_prompts(path, per_category=1, limit=2)] == ["a1", "b1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "1 is not JSON"),
        ("[1]", "1 is not a JSON object"),
        ('{"question": "a"}', "1 has no prompt"),
        ('{"prompt": ""}', "1 has no prompt"),
        ('{"prompt": 3}', "1 has no prompt"),
        ('{"turns": []}', "1 has no prompt"),
        ('{"messages": ["hi"]}', "1 has no prompt"),
        ('{"prompt": "a", "category": 5}', "1 has the category 5"),
        ("[" * 100_000, "1 is not JSON"),
        ("", "has no prompt: expected lines"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    with pytest.raises(DataError, match=message):
        load_prompts(write(tmp_path, line))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none.jsonl: No such file"):
        load_prompts(tmp_path / "none.jsonl")


def test_other_separators_inside_a_text_and_a_byte_order_mark_are_fine(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('\ufeff{"prompt": "a\u2028b"}\r\n', encoding="utf-8")
    assert load_prompts(path) == [PromptRecord(turns=["a\u2028b"])]
