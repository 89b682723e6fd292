import json
import shutil
from dataclasses import replace

import pytest
import synthetic
import torch
from PIL import Image

from lanternpp import LanternPipeline, SettingsError, published
from lanternpp.__main__ import main
from lanternpp.checkpoints import ModelError
from lanternpp.decode import Decoder, Step
from lanternpp.drafter import Drafter
from lanternpp.hub import load_bundle
from lanternpp.models import MODELS, Source
from lanternpp.transformer import Transformer
from lanternpp.vq import to_pil

PROMPTS = {"c2i": "golden retriever"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    return {family: synthetic.write(root / family.replace(" ", "-"), family) for family in synthetic.FAMILIES}


@pytest.fixture(scope="module")
def pipes(folders):
    return {family: LanternPipeline.from_pretrained(folder, "cpu", torch.float32) for family, folder in folders.items()}


@pytest.fixture
def copied(folders, tmp_path):
    """A family's folder, to be spoilt."""
    def copy(family):
        return shutil.copytree(folders[family], tmp_path / "copy")
    return copy


@pytest.mark.parametrize("family", synthetic.FAMILIES)
def test_from_folder_to_picture(pipes, family):
    pipe, prompt = pipes[family], PROMPTS.get(family, "a red fox")
    method = "ar" if pipe.bundle.drafter is None else "lanternpp"
    output = pipe(prompt, method=method, k=5, seed=1)
    assert output.images[0].size == (8, 8) and len(output.trace.tokens) == pipe.bundle.target.config.image_tokens
    assert output.images[0].tobytes() != pipe(prompt, method=method, k=5, seed=2).images[0].tobytes()


@pytest.mark.parametrize("family", [family for family in synthetic.FAMILIES if family != "c2i"])
def test_exact_greedy_tree_decoding_is_plain_decoding(pipes, family):
    lengths = []
    for prompt in ("a red fox", "blue apple"):
        plain, tree = (pipes[family](prompt, method=method, temperature=0, tree="6,3").trace
                       for method in ("ar", "exact"))
        assert plain.tokens == tree.tokens
        lengths.append(tree.summary()["accepted_length"])
    assert max(lengths) > 1


@pytest.mark.parametrize("family", synthetic.FAMILIES)
def test_command_line(folders, family, tmp_path, capsys):
    out = tmp_path / "a.png"
    assert main(["generate", PROMPTS.get(family, "a red fox"), "--method", "ar", "--model", str(folders[family]),
                 "--out", str(out)]) == 0
    assert Image.open(out).size == (8, 8)
    assert main(["generate", "a red fox", "--method", "ar", "--model", str(folders["c2i"])]) == 2
    assert "ImageNet classes" in capsys.readouterr().err


@pytest.mark.parametrize("method, temperature", [("ar", 1), ("exact", 1), ("exact", 0), ("lanternpp", 1),
                                                 ("lantern", 1)])
def test_each_row_of_lumina_ends_with_its_token_and_only_there(pipes, method, temperature):
    pipe, side = pipes["lumina"], synthetic.GRID
    output = pipe("a red fox", method=method, temperature=temperature, k=5, seed=3)
    ends = [token == synthetic.CODES for token in output.trace.tokens]
    assert ends == ([False] * side + [True]) * side
    tree = pipe.check(prompt="a red fox", method=method).tree
    for event in output.trace.events[1:]:  # the drafter knows where rows end, too
        for node, (token, q) in enumerate(zip(event.drafted, event.q, strict=True), start=1):
            place = event.position + tree.depths[node] - 1
            assert q == 0 or (token == synthetic.CODES) == (place % (side + 1) == side)
    codes = [token for token, end in zip(output.trace.tokens, ends, strict=True) if not end]
    with torch.no_grad():
        picture = to_pil(pipe.bundle.tokenizer.decode(torch.tensor([codes]), (side, side)))[0]
    assert picture.tobytes() == output.images[0].tobytes()


@pytest.mark.parametrize("family", ["anole", "lumina"])
def test_padding_changes_nothing(pipes, family):
    """A prefix of twice the length, all of it padding, gives the same tokens, drafts included."""
    pipe = pipes[family]
    settings = pipe.check(prompt="a red fox", method="exact", tree="3,2", seed=5)
    condition, valid = pipe.encode_prompt("a red fox")
    count = condition.shape[1]
    events = []
    for target in (pipe.bundle.target, longer(pipe.bundle.target, 2 * count)):
        drafter = Drafter(pipe.bundle.drafter.config, target.config)
        drafter.load_state_dict(pipe.bundle.drafter.state_dict())
        step = Step(target, drafter, settings.tree, settings.relaxation, settings.sampling)
        more = target.config.prefix - count
        padded = torch.nn.functional.pad(condition, (more, 0), value=1)
        events.append(Decoder(step).generate(padded, 5, torch.nn.functional.pad(valid, (more, 0))))
    one, other = ([(event.tokens, event.drafted, event.verdicts) for event in run] for run in events)
    assert one == other


@pytest.mark.parametrize("family", ["anole", "lumina"])
def test_prompts_of_other_lengths_side_by_side(pipes, family):
    """Each row of the batch has its own padding: conditional rows by prompt, unconditional ones all alike."""
    pipe, prompts, seeds = pipes[family], ["a red fox on a blue apple", "fox"], [3, 4]
    settings = pipe.check(prompt="fox", method="exact", tree="3,2")

    def step(pictures):  # not the int8 drafter, which rounds by what stands beside
        return Step(pipe.bundle.target, pipe.bundle.drafter, settings.tree, settings.relaxation, settings.sampling,
                    pictures=pictures)

    read = [pipe.encode_prompt(prompt) for prompt in prompts]
    valid = torch.cat([torch.cat([rows[i:i + 1] for _, rows in read]) for i in range(2)])
    together = Decoder(step(2)).generate_many(torch.cat([ids for ids, _ in read]), seeds, valid)
    for events, (ids, rows), seed in zip(together, read, seeds, strict=True):
        alone = Decoder(step(1)).generate(ids, seed, rows)
        assert [(event.tokens, event.drafted) for event in events] == [(event.tokens, event.drafted) for event in alone]


def longer(target, prefix):
    again = Transformer(replace(target.config, prefix=prefix))
    again.load_state_dict(target.state_dict())
    return again.eval().requires_grad_(False)


def test_prompts_steer(pipes):
    for family in synthetic.FAMILIES:
        first, second = ("goldfish", "7") if family == "c2i" else ("a red fox", "blue apple")
        one, other = (pipes[family](prompt, method="ar", temperature=0).trace.tokens for prompt in (first, second))
        assert one != other, family


def test_both_layouts_of_one_network_paint_the_same(folders, tmp_path):
    """The transformers-style target written once more in FoundationVision's names, fused and unsharded."""
    root = shutil.copytree(folders["t2i"], tmp_path / "official")
    state = {}
    for path in sorted((root / "target").glob("*.safetensors")):
        from safetensors.torch import load_file
        state |= load_file(path)
    names = {"model.embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
             "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "model.": ""}
    fused = {f"layers.{i}.attention.wqkv.weight": torch.cat(
        [state.pop(f"model.layers.{i}.self_attn.{x}_proj.weight") for x in "qkv"]) for i in range(synthetic.LAYERS)}
    for key, value in state.items():
        for theirs, ours in names.items():
            key = key.replace(theirs, ours)
        fused[key] = value
    config = json.loads((root / "config.json").read_text())
    config["target"] |= {"width": synthetic.WIDTH, "heads": synthetic.HEADS, "layers": synthetic.LAYERS,
                         "hidden": synthetic.HIDDEN, "codes": synthetic.CODES, "condition": synthetic.FEATURES}
    (root / "config.json").write_text(json.dumps(config))
    shutil.rmtree(root / "target")
    (root / "target").mkdir()
    torch.save(fused, root / "target/t2i_XL_stage1_256.pt")  # bare, as FSDP writes it
    one, other = (LanternPipeline.from_pretrained(folder, "cpu", torch.float32) for folder in (root, folders["t2i"]))
    assert one("a red fox", seed=3).trace.tokens == other("a red fox", seed=3).trace.tokens


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("spoil, words", [
    (lambda root: change(root / "target/config.json", block_size=1024), "would look enlarged"),
    (lambda root: change(root / "config.json", model="llamagen-t2i-512"), "would look enlarged|another grid"),
    (lambda root: change(root / "drafter/config.json", input_type="t2i2"), "another grid"),
    (lambda root: change(root / "target/config.json", vocab_size=99), "do not belong together"),
    (lambda root: change(root / "target/config.json", num_hidden_layers=3), "lack the tensor 'model.layers.2"),
    (lambda root: change(root / "target/config.json", num_key_value_heads=1), "num_key_value_heads = 1"),
    (lambda root: change(root / "config.json", model="llamagen"), "names the model 'llamagen'"),
    (lambda root: change(root / "config.json", target={"sides": 3}), "sides"),
    (lambda root: (root / "target/model-00002-of-00003.safetensors").unlink(), "00002.*hf download jadohu/LlamaGen-T2"),
    (lambda root: (root / "drafter/pytorch_model.bin").write_bytes(b"x"), "hf download jadohu/llamagen_drafter"),
    (lambda root: (root / "tokenizer/vq_ds16_t2i.pt").unlink(), "lack the file vq_ds16_t2i.pt.*hf download peizesun"),
    (lambda root: (root / "text/config.json").unlink(), "text encoder.*hf download google/flan-t5-xl"),
    (lambda root: (root / "text/model.safetensors").write_bytes(b"x"), "text encoder.*hf download google/flan-t5-xl"),
    (lambda root: shutil.rmtree(root / "drafter"), "jadohu/llamagen_drafter is not on this machine.*run `hf download"),
])
def test_a_fault_says_one_sentence(copied, spoil, words):
    root = copied("t2i")
    spoil(root)
    with pytest.raises(ModelError, match=words) as error:
        load_bundle(root, torch.float32)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_the_other_stages_file_is_refused(copied):
    root = copied("t2i official")
    (root / "target/t2i_XL_stage2_512.pt").rename(root / "target/t2i_XL_stage1_256.pt")
    with pytest.raises(ModelError, match="t2i_XL_stage1_256.pt, which is not the target of llamagen-t2i-512"):
        load_bundle(root, torch.float32)


def test_without_its_drafter_a_model_decodes_plainly(copied):
    root = copied("anole")
    shutil.rmtree(root / "drafter")
    pipe = LanternPipeline.from_pretrained(root, "cpu", torch.float32, drafter=False)
    assert len(pipe("fox", method="ar").trace.tokens) == 16
    with pytest.raises(SettingsError, match="no drafter"):
        pipe("fox", method="exact")


def test_published_models_are_not_saved_again(pipes, tmp_path):
    with pytest.raises(ModelError, match="published"):
        pipes["c2i"].save_pretrained(tmp_path / "copy")


def test_memory_is_counted_before_anything_is_read(folders, monkeypatch):
    monkeypatch.setattr("lanternpp.checkpoints.free_memory", lambda device: 1000)
    monkeypatch.setattr(published, "fill", None)
    with pytest.raises(ModelError, match="LlamaGen-XL.* needs .* GB and this machine has 0.0 GB free"):
        load_bundle(folders["t2i"], torch.float32)


def test_names_and_hub_ids_come_from_the_cache(folders, monkeypatch, tmp_path):
    """The hub's cache is stood in for: what is asked of it is a repository and the files in it."""
    asked, root = [], folders["t2i"]
    made = {"jadohu/LlamaGen-T2I": "target", "google/flan-t5-xl": "text", "peizesun/llamagen_t2i": "tokenizer",
            "jadohu/llamagen_drafter": "drafter"}
    config = json.loads((root / "config.json").read_text())
    tiny = published.read_spec(MODELS["llamagen-t2i-256"], config)
    monkeypatch.setitem(MODELS, "llamagen-t2i-256", tiny)

    def snapshot_download(repo, allow_patterns, local_files_only):
        asked.append((repo, local_files_only))
        return str(root / made[repo])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("lanternpp.pipeline.cached_assets_path", lambda library, namespace: tmp_path)
    for name in ("llamagen-t2i-256", "jadohu/LlamaGen-T2I"):
        asked.clear()
        pipe = LanternPipeline.from_pretrained(name, "cpu", torch.float32)
        assert {repo for repo, _ in asked} == set(made)
        assert all(local for _, local in asked)  # what the cache has is not asked of the network
        assert pipe.bundle.name.startswith("LlamaGen-XL text to image, stage I ")
        assert len(pipe("a red fox", method="lanternpp", k=5).trace.tokens) == 16
        assert len(list(tmp_path.glob("neighbours-*"))) == 1  # the table is kept for the next time


def test_missing_parts_are_told_and_a_half_fetched_one_is_not_taken(folders, monkeypatch, tmp_path):
    """The official repository is in the cache for its tokenizer alone: that does not make its target present."""
    from huggingface_hub import errors
    root, asked = folders["t2i"], []
    made = {"peizesun/llamagen_t2i": root / "tokenizer", "google/flan-t5-xl": root / "text",
            "jadohu/llamagen_drafter": tmp_path}

    def snapshot_download(repo, allow_patterns, local_files_only):
        if not local_files_only:
            asked.append(repo)
        if repo not in made:
            raise errors.LocalEntryNotFoundError("x")
        return str(made[repo])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    spec = MODELS["llamagen-t2i-256"]
    assert published.missing(spec) == [spec.targets[0].command(), spec.drafters.command()]
    with pytest.raises(ModelError, match="run `hf download jadohu/LlamaGen-T2I "):
        published.locate("target", spec.targets, None)
    assert asked == ["jadohu/LlamaGen-T2I"]
    made |= {"jadohu/LlamaGen-T2I": root / "target", "jadohu/llamagen_drafter": root / "drafter"}
    assert published.missing(spec) == []


def hub_errors():
    from httpx import Request, Response
    from huggingface_hub import errors
    response = Response(403, request=Request("GET", "https://example.org"))
    return [(errors.GatedRepoError("x", response=response), "accept its licence.*hf auth login"),
            (errors.RepositoryNotFoundError("x", response=response), "not on the hub, or is private"),
            (errors.LocalEntryNotFoundError("x"), "is not on this machine"),
            (errors.OfflineModeIsEnabled("x"), "is not on this machine"),
            (ConnectionError("x"), "was interrupted"), (OSError("disk full"), "was interrupted")]


@pytest.mark.parametrize("error, words", hub_errors(), ids=lambda x: type(x).__name__)
def test_what_cannot_be_fetched_names_the_command(monkeypatch, error, words):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelError, match=words) as said:
        published.snapshot(Source("some/model", ("a.pt",)))
    text = str(said.value)
    assert "`hf download some/model a.pt`" in text and text.endswith(".") and "\n" not in text


def test_nothing_in_the_cache_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert main(["generate", "a fox", "--model", "anole-7b"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("lanternpp: leloy/Anole-7b-v0.1-hf is not on this machine") and said.count("\n") == 0


def test_loaded_modules_are_whole(pipes):
    for pipe in pipes.values():
        for part in (pipe.bundle.target, pipe.bundle.drafter, pipe.bundle.tokenizer):
            if part is not None:
                assert all(value.device.type == "cpu" for value in [*part.parameters(), *part.buffers()])
                assert not any(value.requires_grad for value in part.parameters()) and not part.training


def test_dtype_is_chosen_once(folders):
    bundle = load_bundle(folders["t2i"], torch.bfloat16)
    assert bundle.target.dtype == torch.bfloat16 and bundle.text.encoder.dtype == torch.bfloat16
    assert {value.dtype for value in bundle.drafter.parameters()} == {torch.bfloat16}
    assert {value.dtype for value in bundle.tokenizer.parameters()} == {torch.float32}
