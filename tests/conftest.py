import os

import pytest
from hypothesis import HealthCheck, settings

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("GRADIO_SERVER_PORT", str(7860 + 100 * WORKER))  # where a worker's servers look for free ports
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch: two workers fill two cores, and toy tensors split badly
# How long an example takes says what else the machine does, nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


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
