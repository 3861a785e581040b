"""What a head is trained and measured on: from the files, and from the base itself."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accelerate import PartialState

from spec_trt.heads.frequent_ids import DraftVocabulary, coverage, most_frequent_ids
from spec_trt.heads.target import head_target
from spec_trt.training.base import LoadedBase
from spec_trt.training.config import TrainConfig
from spec_trt.training.conversations import Encoder, TokenSequence, count_answers, load_sequences, split_held_out
from spec_trt.training.self_distill import self_distill
from spec_trt.training.start import started_ids

__all__ = ["TrainingData", "describe_data", "load_data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """What is trained on, what is measured on, and which ids the head drafts (None: all)."""

    train: list[TokenSequence]
    held_out: list[TokenSequence]
    vocab: DraftVocabulary | None

    @property
    def draft_ids(self) -> list[int] | None:
        """The target's id of each row of the head; None for all."""
        return None if self.vocab is None else self.vocab.ids

    @property
    def digest(self) -> str:
        """Tells these data from others, whatever files they came from."""
        digest = hashlib.sha256(f"{len(self.train)} {self.draft_ids}".encode())
        for sequence in [*self.train, *self.held_out]:
            digest.update(f"{sequence.input_ids} {sequence.loss_mask}".encode())
        return digest.hexdigest()[:16]


def load_data(config: TrainConfig, base: LoadedBase, working: Path) -> TrainingData:
    """Read what there is, then let the base write what it is asked for.

    Args:
        config: What is asked for.
        base: Whose tokens they become.
        working: Where the base's own are kept if nowhere else.

    Raises:
        DataError: A file can't be read or has no usable line, or the base can't write any.
        ConfigError: The draft vocabulary reduces nothing, or holds nothing; or `start_from` is another kind of head.
    """
    encoder = Encoder(base.tokenizer, base.eos_ids, config.max_length)
    counted = None if config.draft_vocab_data is None else load_sequences([config.draft_vocab_data], encoder)
    sequences = load_sequences(config.data, encoder)
    if config.self_distill:
        file = config.save_data or working / f"self_distilled.{base.fingerprint}.{config.seed}.jsonl"
        with PartialState().main_process_first():  # the others find it written
            self_distill(base, config.self_distill, file, config.seed, config.text_tasks)
        sequences += load_sequences([file], encoder)
    train, held_out = split_held_out(sequences, config.held_out, config.seed)
    return TrainingData(train=train, held_out=held_out, vocab=_vocabulary(config, base, counted or train))


def _vocabulary(config: TrainConfig, base: LoadedBase, counted: Sequence[TokenSequence]) -> DraftVocabulary | None:
    counts = count_answers(counted)
    if config.start_from is not None:
        ids = started_ids(config.start_from, head_target(base.model), config.head)
        return None if ids is None else DraftVocabulary(ids=ids, coverage=coverage(counts, ids))
    if config.draft_vocab is None:
        return None
    return most_frequent_ids(counts, config.draft_vocab, vocab=base.vocab, always=base.eos_ids)


def describe_data(data: TrainingData, report: Callable[[str], None]) -> None:
    """Report how much there is."""
    for name, sequences in (("train on", data.train), ("held out", data.held_out)):
        tokens = sum(len(sequence.input_ids) for sequence in sequences)
        answers = sum(sum(sequence.loss_mask) for sequence in sequences)
        report(f"{name}: {len(sequences):,} sequences, {tokens:,} tokens, {answers:,} of them in answers")
    if data.vocab is not None:
        report(f"draft vocabulary: {len(data.vocab.ids):,} ids, {100 * data.vocab.coverage:.2f} % of the answer tokens")
