"""Text to token ids and back, by the tokenizer files of a bundle or engine directory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spec_trt.errors import ManifestError, PromptError

__all__ = ["Tokenizer", "load_tokenizer"]

Decode = Callable[[list[int]], str]

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


class Tokenizer:
    """A model's own tokenizer and chat template.

    Args:
        directory: Where the tokenizer's files are.

    Raises:
        ManifestError: They are missing or can't be read.
    """

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        except Exception as error:  # transformers raises many unrelated types
            raise ManifestError(
                f"{directory} holds no tokenizer that transformers can read: export it again from a model that has "
                "one, or give token ids instead of text"
            ) from error
        self._decode = _decoder(self._tokenizer)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw text, with the special tokens the model expects in front."""
        return list(self._tokenizer(text).input_ids)

    def encode_chat(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation.

        Args:
            messages: Each a `role` and a `content`.
            add_generation_prompt: Whether to go on to where the assistant's next answer begins.

        Raises:
            PromptError: The tokenizer has no chat template.
        """
        if not self.has_chat_template:
            raise PromptError("the model has no chat template: give the prompt without --chat")
        encoded = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=add_generation_prompt, return_dict=True
        )
        return list(encoded["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._decode(list(token_ids))


def _decoder(tokenizer: Any) -> Decode:  # noqa: ANN401 - transformers has no types
    """The tokenizer's own decoding, without special tokens.

    Straight from the library behind it where there is one: every pass decodes, and what transformers does
    around it takes longer than the decoding.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda token_ids: str(
            tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def decode(token_ids: list[int]) -> str:
        return str(backend.decode(token_ids, skip_special_tokens=True))

    return _RememberingDecoder(decode) if type(backend.decoder).__name__ == "ByteLevel" else decode


class _RememberingDecoder:
    """Decodes where every token stands for bytes, whatever its neighbours: only a character may span several."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._texts: dict[int, str] = {}

    def __call__(self, token_ids: list[int]) -> str:
        texts = [self._text(token) for token in token_ids]
        return self._decode(token_ids) if any("\ufffd" in text for text in texts) else "".join(texts)

    def _text(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._decode([token])
        return text


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer kept in a bundle or engine directory; None where there is none.

    Raises:
        ManifestError: Its files are there, but can't be read.
    """
    return Tokenizer(directory) if any((directory / name).is_file() for name in _FILES) else None
