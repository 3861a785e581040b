"""A tiny tokenizer for the tiny models: one token per letter, and a chat template."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def save_tokenizer(directory: Path, end: str = "</s>") -> Path:
    """Write a tokenizer of 98 tokens beside a model."""
    letters = [chr(code) for code in range(32, 127)]
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", end, *letters])}
    vocabulary[end] = len(vocabulary) + 10
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token=end, chat_template=TEMPLATE
    ).save_pretrained(directory)
    return directory
