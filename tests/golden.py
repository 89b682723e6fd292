"""The numbers of the reference implementations: tests/golden/README.md says what each file holds.

Another folder of the same layout is read where the environment variable LANTERNPP_GOLDEN names one.
"""

import json
import os
from pathlib import Path

import torch
from safetensors import safe_open

FOLDER = Path(os.environ.get("LANTERNPP_GOLDEN") or Path(__file__).parent / "golden")


def load(name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    """The configuration and the tensors of golden file `name`; weights (`w/…`) are cast to float32."""
    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
        config = json.loads(file.metadata()["config"])
    return config, {key: value.float() if key.startswith("w/") else value for key, value in tensors.items()}


def weights(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors named `w/…`, without that prefix."""
    return {key.removeprefix("w/"): value for key, value in tensors.items() if key.startswith("w/")}
