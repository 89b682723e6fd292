import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from lanternpp import LanternPipeline, SettingsError, Trace
from lanternpp.hub import SHARD_BYTES, ModelError, save_sharded
from lanternpp.trace import TraceError


@pytest.mark.parametrize("method", ["ar", "exact", "lantern", "lanternpp", "annealed"])
def test_prompt_to_picture_and_trace(pipe, method):
    output = pipe("red apple", method=method, tree="3,2", k=5, seed=3)
    assert output.images[0].size == (32, 32)
    trace = output.trace
    facts = trace.summary()
    assert facts["tokens"] == 16 == len(trace.tokens) == len(trace.accepted_map())
    assert facts["target_passes"] == facts["steps"] + 1 == len(trace.events)
    assert facts["accepted_length"] == pytest.approx(15 / facts["steps"])
    assert facts["step_compression"] == pytest.approx(16 / (facts["steps"] + 1))
    if method == "ar":
        assert facts["accepted_length"] == facts["step_compression"] == 1
    assert set(trace.seconds) == {"prompt", "decode", "pixels", "total"}
    assert trace.seconds["total"] == pytest.approx(sum(trace.seconds[k] for k in ("prompt", "decode", "pixels")))
    assert trace.events[-1].seconds <= trace.seconds["decode"]
    assert trace.header["method"] == method
    assert trace.header["device"].endswith(("thread", "threads"))


def test_same_seed_same_picture(pipe):
    a, b, c = (pipe("red apple", tree="3,2", seed=s) for s in (1, 1, 2))
    assert a.images[0].tobytes() == b.images[0].tobytes()
    assert a.trace.tokens == b.trace.tokens != c.trace.tokens
    assert a.trace.run_id != b.trace.run_id


def test_stream_can_be_closed_after_a_step(pipe):
    stream = pipe.stream(pipe.check(prompt="fox", tree="3,2"))
    assert next(stream).index == 0
    assert next(stream).index == 1
    stream.close()
    assert len(pipe("fox", tree="3,2").trace.tokens) == 16


def test_trace_round_trip(pipe, tmp_path):
    trace = pipe("fox", tree="3,2").trace
    trace.save(tmp_path / "t.json")
    again = Trace.load(tmp_path / "t.json")
    assert again.tokens == trace.tokens
    assert again.run_id == trace.run_id
    assert again.header == json.loads(json.dumps(trace.header))
    assert [e.verdicts for e in again.events] == [e.verdicts for e in trace.events]
    assert again.summary()["accepted_length"] == trace.summary()["accepted_length"]
    for broken in ("", "[]", "{}", '{"schema": "other"}', trace.to_json()[:100]):
        with pytest.raises(TraceError):
            Trace.from_json(broken)


def test_guidance_of_one_decodes_one_row(pipe):
    assert pipe.step(pipe.check(prompt="fox", cfg_scale=1)).rows == 1
    assert len(pipe("fox", tree="3,2", cfg_scale=1).trace.tokens) == 16


def test_save_and_load_again(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "copy")
    again = LanternPipeline.from_pretrained(tmp_path / "copy", device="cpu", dtype=torch.float32)
    assert again("fox", tree="3,2", seed=4).trace.tokens == pipe("fox", tree="3,2", seed=4).trace.tokens


def test_shards_stay_small(tmp_path):
    state = {f"w{i}": torch.zeros(1000, 900) for i in range(6)}
    save_sharded(state, tmp_path, "target")
    files = sorted(tmp_path.glob("target-*.safetensors"))
    assert len(files) == 3 and all(f.stat().st_size < SHARD_BYTES + 10_000 for f in files)
    save_sharded({"w": torch.zeros(3)}, tmp_path, "target")
    assert len(list(tmp_path.glob("target-*.safetensors"))) == 1


def spoil_missing(folder):
    (folder / "target-00001.safetensors").unlink()


def spoil_truncated(folder):
    path = folder / "target-00001.safetensors"
    path.write_bytes(path.read_bytes()[:500])


def spoil_pointer(folder):
    (folder / "drafter-00001.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def spoil_config(folder):
    (folder / "config.json").write_text("{")


def spoil_format(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"format": "other/9"}))


def spoil_words(folder):
    (folder / "captions.json").unlink()


def spoil_key(folder):
    state = load_file(folder / "target-00001.safetensors")
    state["extra"] = state.pop("norm.weight")
    save_file(state, folder / "target-00001.safetensors")


@pytest.mark.parametrize("spoil", [spoil_missing, spoil_truncated, spoil_pointer, spoil_config, spoil_format,
                                   spoil_words, spoil_key], ids=lambda f: f.__name__)
def test_unreadable_model_says_one_sentence(toy_folder, tmp_path, spoil):
    folder = tmp_path / "model"
    shutil.copytree(toy_folder, folder)
    spoil(folder)
    with pytest.raises(ModelError) as error:
        LanternPipeline.from_pretrained(folder)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_missing_folder(tmp_path):
    with pytest.raises(ModelError, match="no model"):
        LanternPipeline.from_pretrained(tmp_path / "nowhere")


def test_bad_knob_is_refused_before_decoding(pipe):
    with pytest.raises(SettingsError, match="k must be"):
        pipe("fox", k=-1)


def test_drafting_without_a_drafter():
    from toy import bundle
    lonely = bundle()
    lonely.drafter = None
    pipe = LanternPipeline(lonely)
    assert len(pipe("fox", method="ar").trace.tokens) == 16
    with pytest.raises(ValueError, match="drafter"):
        pipe("fox", method="exact")
