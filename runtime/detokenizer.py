"""Text of a growing list of tokens, piece by piece."""

from collections.abc import Callable, Sequence

__all__ = ["Detokenizer"]

_REPLACEMENT = "\ufffd"
_MAX_OPEN_TOKENS = 3
"""A character has at most 4 bytes and a token at least one: only the last 3 tokens can leave one open."""
_LONG_WINDOW = 16
"""Tokens; moving the window costs a decode, so that it moves only once it is longer."""


class Detokenizer:
    """Decodes tokens as they come, never giving out half a character.

    Only a window of the newest tokens is decoded: those not yet given out, after some that were
    (tokenizers treat the first token of a decode specially, for instance strip its leading space,
    so the text of tokens before them is decoded too, and subtracted). Text that ends in U+FFFD may
    be the beginning of a character and waits for more tokens, as long as it can still be one.

    The pieces, `flush` included, join to `decode` of all tokens, given a `decode` where complete
    characters keep their text whatever follows.

    Args:
        decode: The text of a list of token ids; whether special tokens show is its business.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._window = 0
        self._given = 0
        self._given_text = ""
        self._settled = 0

    @property
    def settled(self) -> int:
        """How many tokens, counted from the first, have had all their text given out."""
        return self._settled

    def push(self, tokens: Sequence[int]) -> str:
        """Add tokens; the text that they complete, which may be none."""
        self._tokens.extend(tokens)
        text = self._decode(self._tokens[self._window :])
        if not text.endswith(_REPLACEMENT):
            return self._give(text, len(self._tokens))
        return self._give_closed(text)

    def flush(self) -> str:
        """What is still held back, an incomplete character included, at the end of the tokens."""
        return self._give(self._decode(self._tokens[self._window :]), len(self._tokens))

    def _give_closed(self, text: str) -> str:
        """Of a window that ends in U+FFFD, the text of tokens too old to be part of an open character."""
        newest = len(self._tokens) - _MAX_OPEN_TOKENS
        oldest = max(self._given, newest - _MAX_OPEN_TOKENS - 1)
        for end in range(newest, oldest, -1):
            head = self._decode(self._tokens[self._window : end])
            if head + self._decode(self._tokens[end:]) == text:
                return self._give(head, end)
        return ""

    def _give(self, text: str, end: int) -> str:
        """Settle the tokens before `end`, where `text` is the window's text up to there."""
        piece = text[len(self._given_text) :]
        self._settled = end
        if piece and end - self._window > _LONG_WINDOW:
            self._window = self._given
            text = self._decode(self._tokens[self._window : end])
        if piece:
            self._given, self._given_text = end, text
        return piece
