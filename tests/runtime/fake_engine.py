"""An engine over a fake session, with a real (byte-level) tokenizer where text matters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from spec_trt.runtime.engine import Engine
from spec_trt.runtime.target import Target
from tests.runtime.fake_heads import fake_heads
from tests.runtime.fake_session import FakeSession, fake_facts
from tests.test_manifest import make_engine_facts, make_manifest

EOS = 256


class Model(Protocol):
    """What decides the next token."""

    @property
    def vocab(self) -> int: ...

    def next_token(self, prefix: Sequence[int]) -> int: ...


TEMPLATE = (
    "{% for message in messages %}<{{ message['content'] }}>{% endfor %}{% if add_generation_prompt %}:{% endif %}"
)


def fake_engine(
    directory: Path,
    model: Model,
    *,
    max_positions=512,
    eos_ids=(),
    heads=None,
    session=None,
    logits=None,
    **target_options,
) -> Engine:
    facts = fake_facts(vocab=model.vocab, max_positions=max_positions, eos_ids=eos_ids)
    session = session or FakeSession(model.next_token, vocab=model.vocab, logits=logits)
    manifest = make_manifest(model=facts, engine=make_engine_facts())

    def new_target(batch, cache_bytes):
        return Target(session, facts, batch=batch, cache_bytes=cache_bytes, **target_options)

    def new_heads():
        return fake_heads(model.next_token, vocab=model.vocab) if heads is None else heads

    return Engine(manifest, directory, new_target, new_heads)


def save_byte_tokenizer(directory: Path, *, chat: bool = True) -> None:
    """A tokenizer whose ids are bytes; id 256 is the end of a sequence."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    by_byte = {byte: char for char, byte in _bytes_by_char(sorted(alphabet)).items()}
    vocab = {by_byte[byte]: byte for byte in range(256)} | {"<eos>": EOS}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.chat_template = TEMPLATE if chat else None
    fast.save_pretrained(directory)


def _bytes_by_char(alphabet: list[str]) -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 characters stand for themselves, others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
    assert sorted(table) == alphabet
    return table
