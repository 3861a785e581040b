"""Rows named on a device that can be had everywhere: `meta`, whose tensors have no contents."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from spec_trt.runtime.row_index import RowIndex
from spec_trt.runtime.staging import Staging
from tests.runtime.test_draft_model import make_draft, make_model, target_features

META = torch.device("meta")


class HostIndices(TorchFunctionMode):
    """Notes what PyTorch would have to copy up before it could index with it, the host waiting; copies nothing down."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__getitem__ and args[0].device == META:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.found += [part for part in parts if isinstance(part, (list, range, np.ndarray))]
        if function is torch.Tensor.copy_ and args[1].device == META:
            return args[0]
        return function(*args, **kwargs or {})


def test_on_a_host_rows_are_what_they_were():
    rows = [2, 0]
    assert RowIndex(4, torch.device("cpu")).on_device(rows) is rows


def test_elsewhere_they_go_up_by_staging(monkeypatch):
    uploads = []
    monkeypatch.setattr(Staging, "upload", lambda staging: uploads.append(staging.arrays["rows"].tolist()))
    index = RowIndex(4, META).on_device([2, 1])
    assert (index.device, index.shape, index.dtype) == (META, (2,), torch.int64)
    assert uploads == [[2, 1, 0, 0]]


@pytest.mark.parametrize("version", [1, 3])
def test_a_draft_takes_no_row_by_a_list_of_the_hosts(version, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr("tests.runtime.test_draft_model.TorchSession.device", META)
    monkeypatch.setattr("tests.runtime.test_draft_model.TorchBinding.run", lambda _binding: None)
    model = make_model(make_draft(version), chunk=4, cache_step=32)
    features = {name: tensor.to(META) for name, tensor in target_features(model, 7).items()}
    with HostIndices() as seen:
        model.take(features, [0, 2, 3, 4, 6], range(5))
        step = model.extend()
        step = model.expand(step, [0, 0], [3, 4])
        model.expand(step, np.array([1, 0, 1]), [3, 4, 5])
    assert seen.found == []
