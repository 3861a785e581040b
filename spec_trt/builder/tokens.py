"""The bundle's tokenizer, as far as the builder needs one."""

from pathlib import Path
from typing import Any

from spec_trt.errors import ModelError

__all__ = ["Tokenizer", "load_tokenizer"]

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


class Tokenizer:
    """Turns texts into token ids.

    Args:
        tokenizer: A transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - transformers has no types
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Tokenize a text as it stands, with the special tokens the model expects."""
        return list(self._tokenizer(text)["input_ids"])

    def encode_exchange(self, question: str, answer: str) -> list[int]:
        """Tokenize a question and its answer, in the chat template's form where there is one."""
        if not self._tokenizer.chat_template:
            return self.encode(f"{question}\n{answer}")
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return list(self._tokenizer.apply_chat_template(messages, return_dict=False))


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """Load the tokenizer kept in a bundle or engine directory; None where there is none.

    Raises:
        ModelError: The files are there, but transformers can't read them.
    """
    if not any((directory / name).is_file() for name in _FILES):
        return None
    from transformers import AutoTokenizer

    try:
        return Tokenizer(AutoTokenizer.from_pretrained(str(directory)))
    except Exception as error:  # transformers raises many unrelated types
        raise ModelError(f"the tokenizer in {directory} can't be loaded: {str(error).splitlines()[0]}") from error
