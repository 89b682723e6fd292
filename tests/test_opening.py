"""The first opening of each view, on a finished run of 256 tokens with a tree of 57 nodes."""

import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from serving import serve
from test_browser import browser, visit  # noqa: F401
from test_browser import pytestmark as needs_chromium

from app import inspector, record
from lanternpp.detail import LIKELIEST, LISTED, Detail
from lanternpp.settings import Settings
from lanternpp.trace import StepEvent, Trace
from lanternpp.tree import PRESETS

TREE = PRESETS["lantern57"]
GRID, CODES, PIXELS = 16, 64, 8
BUDGET = 300  # milliseconds that a view may take to open
MARGIN = 2  # of the page's own computing, which a busy machine makes slower, though not as much as the wall clock


def made(method: str) -> SimpleNamespace:
    """A run as the decoder leaves it: of each step the first path of its tree, as long as the picture still needs."""
    rng, knobs = random.Random(method), {} if method == "ar" else {"tree": "lantern57"}
    settings = Settings.checked(prompt="fox, 3d", method=method, seed=3, top_k=CODES, **knobs)
    header = settings.to_dict() | {"settings": settings.to_dict(), "model": "Made", "grid": GRID, "codes": CODES,
                                   "device": "none", "dtype": "none", "mode": "none"}  # fmt: skip
    nodes, events, at = settings.tree.nodes, [StepEvent(0, 0, (1,), 0.01)], 1
    while at < GRID**2:
        path = () if not nodes else tuple(range(1, 1 + rng.randrange(2)))
        tokens = tuple(rng.randrange(CODES) for _ in range(min(len(path) + 1, GRID**2 - at)))
        path = path[: max(0, len(tokens) - 1)]
        rows = [[round(rng.random(), 6) for _ in range(nodes)] for _ in range(3)]
        verdicts = "".join("x" if node in path else "r" for node in range(1, nodes + 1))
        drafted = tuple(rng.randrange(CODES) for _ in range(nodes))
        ending = "recovered" if nodes else "sampled"
        events.append(StepEvent(len(events), at, tokens, 0.01 * len(events), ending, path, drafted, *rows, verdicts))
        at += len(tokens)
    seconds = {"prompt": 0.01, "decode": 1.0, "pixels": 0.01, "total": 1.02}
    image = Image.effect_noise((128, 128), 60).convert("RGB")
    return SimpleNamespace(images=[image], trace=Trace(header, events, seconds))


def detail(trace: Trace) -> Detail:
    """Arrays of a run's shapes, drawn at random."""
    rng, events, nodes, tokens = np.random.default_rng(0), len(trace.events), len(trace.events[-1].drafted), GRID**2
    rows = [rng.random((events, nodes), np.float32) for _ in range(5)]
    first = np.arange(events * nodes + 1, dtype=np.int32) * 20
    place = np.tile(np.arange(1, 21, dtype=np.uint16), events * nodes)
    total = np.tile(np.linspace(0.01, 0.9, 20, dtype=np.float32), events * nodes)
    likeliest = rng.integers(0, CODES, (tokens, LIKELIEST), dtype=np.int32)
    near = rng.integers(0, CODES, (CODES, LISTED), dtype=np.int32)
    each = [rng.random(tokens, np.float32) for _ in range(3)]
    return Detail(*rows, first, place, total, np.arange(CODES, dtype=np.int32), near, *each, likeliest,
                  rng.random((tokens, LIKELIEST), np.float32), *(rng.random(tokens, np.float32) for _ in range(2)),
                  rng.integers(0, 255, (events, nodes, PIXELS, PIXELS, 3), dtype=np.uint8))  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder, outputs = tmp_path_factory.mktemp("recorded"), [made("ar"), made("lanternpp")]
    Image.effect_noise((64, 64), 60).convert("RGB").save(folder / "atlas.png")
    record.save(folder, "fox-3", "fox", "3D", outputs, None, [detail(output.trace) for output in outputs])

    def never():
        raise RuntimeError("no model here")

    with serve(never, folder) as (url, demo):
        yield url, demo.worker, outputs[1].trace


def test_what_the_views_are_told_is_made_once(site):
    _, worker, trace = site
    inspector.whole(worker, trace.run_id)
    began = time.process_time()
    again = [inspector.whole(worker, trace.run_id) for _ in range(20)]
    assert time.process_time() - began < 0.05 and all(each is again[0] for each in again)
    assert len(trace.tokens) == GRID**2 and len(again[0]["parents"]) == TREE.nodes + 1 and again[0]["patches"]


READY = {
    "Step inspector": "document.querySelectorAll('#inspector .node').length > 57",
    "Ambiguity": "document.querySelector('#ambiguity [data-part=histogram] svg')",
    "Tree lab": "document.querySelector('#treelab [data-part=tree] svg')",
    "Learn": "document.querySelector('#learn .lessons li')",
}
OPEN = """async ([name, test]) => {
    const tab = [...document.querySelectorAll('#tabs [role="tab"]')].find(each => each.textContent.trim() === name);
    const ready = new Function(`return ${test}`), began = performance.now();
    tab.click();
    while (!ready()) await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""


@needs_chromium[0]
@needs_chromium[1]
def test_each_view_opens_at_once(visit, site):  # noqa: F811
    url, _, trace = site
    page = visit(url, reduced_motion="reduce")
    asked = []
    page.wait_for_function("id => Lantern.keptRuns.has(id)", arg=trace.run_id)  # fetched ahead, before any view asks
    page.on("request", lambda request: asked.append(request.post_data or ""))
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def computed() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return 1000 * next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    spent = {}
    for name, test in READY.items():
        before = computed()
        waited = page.evaluate(OPEN, [name, test])
        spent[name] = (round(computed() - before), round(waited))
    print("computed and waited, ms:", spent)
    assert all(mine < BUDGET * MARGIN for mine, _ in spent.values()), spent
    assert all(mine > 0 for mine, _ in spent.values())  # the clock runs
    assert not any('"look"' in each and trace.run_id in each for each in asked)  # nothing was asked for twice
