import pytest

from spec_trt.errors import DataError
from spec_trt.training.conversations import Encoder, TokenSequence, count_answers, load_sequences, split_held_out
from tests.runtime.fake_engine import EOS
from tests.training.models import TEMPLATE, chat_tokenizer, conversation, turn, write_lines


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def encode(tokenizer, tmp_path):
    def encode(*lines, max_length=512, template=TEMPLATE):
        tokenizer.chat_template = template
        file = write_lines(tmp_path / "data.jsonl", lines)
        return load_sequences([file], Encoder(tokenizer, [EOS], max_length))

    return encode


def text(tokenizer, sequence, loss=None):
    kept = [
        token
        for token, carries in zip(sequence.input_ids, sequence.loss_mask, strict=True)
        if loss is None or carries == loss
    ]
    return tokenizer.decode(kept)


def test_only_answers_and_their_ends_carry_loss(encode, tokenizer):
    messages = [turn("system", "S"), turn("user", "Why?"), turn("assistant", "So."), turn("user", "Then?")]
    [sequence] = encode({"messages": [*messages, turn("assistant", "Thus."), turn("user", "unanswered")]})
    assert text(tokenizer, sequence, loss=True) == "So.<eos>Thus.<eos>"
    whole = "system: S<eos>\nuser: Why?<eos>\nassistant: So.<eos>\nuser: Then?<eos>\nassistant: Thus.<eos>"
    assert text(tokenizer, sequence) == whole


def test_a_mask_is_the_difference_between_prompt_and_whole(encode, tokenizer):
    line = conversation("Why?", "So, and so.")
    [sequence] = encode(line)
    prompt = tokenizer.apply_chat_template(line["messages"][:1], tokenize=False, add_generation_prompt=True)
    length = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    assert sequence.loss_mask == [False] * length + [True] * (len(sequence.input_ids) - length)
    assert sequence.input_ids[-1] == EOS


def test_prompt_and_response_are_a_conversation_of_two(encode):
    assert encode({"prompt": "Why?", "response": "So."}) == encode(conversation("Why?", "So."))


def test_without_a_chat_template_the_response_follows_the_prompt(encode, tokenizer):
    [sequence] = encode({"prompt": "Why? ", "response": "So."}, template=None)
    assert (text(tokenizer, sequence, loss=False), text(tokenizer, sequence, loss=True)) == ("Why? ", "So.<eos>")


def test_all_of_a_text_carries_loss(encode, tokenizer):
    [sequence] = encode({"text": "Once upon a time"})
    assert text(tokenizer, sequence, loss=True) == "Once upon a time"


@pytest.mark.parametrize("line", [conversation("Why?", "So and"), {"prompt": "Why?", "response": "So and"}])
@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_an_answer_that_was_cut_has_no_end(encode, tokenizer, line, template):
    if template is None and "messages" in line:
        pytest.skip("conversations need a template")
    [sequence] = encode(line | {"complete": False}, template=template)
    assert text(tokenizer, sequence, loss=True) == "So and"


def test_only_the_last_answer_of_a_conversation_can_be_cut(encode, tokenizer):
    line = {"messages": [*conversation("a", "b")["messages"], *conversation("c", "d")["messages"]], "complete": False}
    assert text(tokenizer, encode(line)[0], loss=True) == "b<eos>d"


def test_long_lines_are_cut(encode):
    [whole], [cut] = encode({"text": "abcdefgh"}), encode({"text": "abcdefgh"}, max_length=5)
    assert (cut.input_ids, cut.loss_mask) == (whole.input_ids[:5], [True] * 5)


def test_a_file_without_a_usable_line_is_refused_with_its_faults(encode):
    lines = [
        {"turns": ["a"]},
        conversation("Why?", "  "),
        {"messages": [turn("user", "alone")]},
        conversation("a question longer than is kept", "So."),
        {"text": "ab"},
        {"text": 3},
    ]
    with pytest.raises(DataError) as raised:
        encode(*lines, max_length=20)
    for fault in (
        "1 have none of the known forms",
        "2 have an empty text",
        "2 have no answer",
        "1 have no answer within 20 tokens",
    ):
        assert fault in str(raised.value)
    assert "data.jsonl" in str(raised.value)


def test_usable_lines_are_kept_beside_unusable_ones(encode):
    assert len(encode({"turns": ["a"]}, {"text": "abc"})) == 1


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (None, "no chat template"),
        (
            "{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}:{% endif %}",
            "in another way",
        ),
        ("{{ raise_exception('no') }}", "refused by the chat template"),
        (TEMPLATE.replace("message.content", "message.content | upper"), "rewrites"),
    ],
)
def test_templates_that_give_no_exact_mask_are_refused(encode, template, fault):
    with pytest.raises(DataError, match=fault):
        encode(conversation("why", "so"), template=template)


def test_the_held_out_part_does_not_depend_on_order():
    sequences = [TokenSequence(input_ids=[number, 1, 2], loss_mask=[True] * 3) for number in range(50)]
    train, held_out = split_held_out(sequences, 0.1, seed=1)
    assert (len(train), len(held_out)) == (45, 5)
    _, again = split_held_out(sequences[::-1], 0.1, seed=1)
    assert again == held_out[::-1]
    assert split_held_out(sequences, 0.1, seed=2)[1] != held_out
    assert split_held_out(sequences, 0, seed=1) == (sequences, [])


def test_equal_lines_are_never_on_both_sides():
    same = TokenSequence(input_ids=[1, 2, 3], loss_mask=[True] * 3)
    other = TokenSequence(input_ids=[4, 5, 6], loss_mask=[True] * 3)
    train, held_out = split_held_out([same, other, same], 0.01, seed=0)
    assert not {str(sequence) for sequence in train} & {str(sequence) for sequence in held_out}
    with pytest.raises(DataError, match="too few"):
        split_held_out([same, same], 0.1, seed=0)


def test_only_answers_are_counted_for_a_draft_vocabulary():
    sequences = [
        TokenSequence(input_ids=[9, 9, 9, 9, 5, 5, 7, 3], loss_mask=[False] * 4 + [True] * 4),
        TokenSequence(input_ids=[7, 7, 5, 5, 1], loss_mask=[True] * 5),
    ]
    assert count_answers(sequences) == {5: 4, 7: 3, 3: 1, 1: 1}
