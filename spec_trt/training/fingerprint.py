"""Tells a model from every other, wherever its files lie."""

import hashlib
import json

from transformers import PreTrainedModel

__all__ = ["fingerprint"]

_SAMPLE = 1024
_NOT_ITS_OWN = ("_name_or_path", "transformers_version")


def fingerprint(model: PreTrainedModel) -> str:
    """16 hex digits, of the configuration and some numbers of every weight.

    Of every one, because fine-tuning leaves some as they were: low-rank weights change linear layers alone.
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_ITS_OWN}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.state_dict().items()):
        numbers = weight.detach().flatten()
        sample = numbers[:: max(1, numbers.numel() // _SAMPLE)].float().cpu().numpy()
        digest.update(f"{name} {list(weight.shape)} {weight.dtype}".encode() + sample.tobytes())
    return digest.hexdigest()[:16]
