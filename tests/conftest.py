import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory):
    """A saved toy model, loadable by every entry point."""
    from toy import bundle

    from lanternpp.hub import save_bundle
    folder = tmp_path_factory.mktemp("toy")
    save_bundle(bundle(), folder)
    return folder


@pytest.fixture(scope="session")
def pipe(toy_folder):
    import torch

    from lanternpp import LanternPipeline
    return LanternPipeline.from_pretrained(toy_folder, device="cpu", dtype=torch.float32)
