"""The stream that the policy service writes for SGLang is one that torch's own reader understands."""

from __future__ import annotations

import base64
import io
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from services.policy.sglang_payload import payload
from triforge.store.tensor_files import read_folder

# What SGLang 0.5.23 lets through, as far as we need it.
ALLOWED = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.storage", "_load_from_bytes"),
    ("collections", "OrderedDict"),
}


class Reader(pickle.Unpickler):
    """As strict as SGLang's: a storage is read with weights only."""

    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) in ALLOWED
        if name == "_load_from_bytes":
            return lambda data: torch.load(io.BytesIO(data), weights_only=True)
        return super().find_class(module, name)


def test_tensors_arrive_whole(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    sent = {
        "matrix": torch.randn(3, 5, generator=generator),
        "half": torch.randn(7, generator=generator).to(torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "whole": torch.arange(4),
    }
    save_file(sent, tmp_path / "model.safetensors")
    text = payload(read_folder(tmp_path).values())
    found = dict(Reader(io.BytesIO(base64.b64decode(text))).load())
    assert set(found) == set(sent)
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
