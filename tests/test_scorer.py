"""The scorer: it ranks damage rightly, an untrained one does not; candidates, captions, training, files."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy import bundle as toy_bundle

from lanternpp import hub
from lanternpp.evaluate import LOOKS, References
from lanternpp.scorer import BUNDLED, NAMES, Scorer, ScorerConfig, candidates, parts, prompt
from lanternpp.training import data, loop, validation
from lanternpp.training import scorer as training

RECORDED = sorted((hub.BUNDLED.parent / "recorded").glob("*.json"))
# Strong damage, for the recorded pictures are a sampler's, with faults of their own, and few.
STRONG = {"blur": (4.0, 8.0), "noise": (32.0, 64.0), "random tokens": (0.2, 0.4), "shuffled tokens": (0.2, 0.4),
          "wrong captions": (1, 2)}
SLACK = 0.15  # of top-1, which moves by one in twenty-four


@pytest.fixture(scope="module")
def scorer():
    return Scorer.load()


@pytest.fixture(scope="module")
def damage():
    """Pictures of recorded runs, damaged in every way."""
    bundle, codes, facts = hub.load_bundle(hub.BUNDLED, torch.float32), [], []
    for path in RECORDED:
        for lane in json.loads(path.read_text())["lanes"]:
            codes.append([token for event in lane["events"] for token in event["tokens"]])
            facts.append(parts(lane["header"]["prompt"]))
    return [(each, each.pictures()) for each in validation.damaged(bundle, torch.tensor(codes), facts, damages=STRONG)]


def rows(scorer, damage):
    reference = scorer.features(damage[0][1])
    return [{"damage": each.name, "strength": each.strength,
             **validation.measure(scorer, *scorer.look(images), each.prompts, reference)[0]}
            for each, images in damage]


def test_every_damage_is_ranked_rightly(scorer, damage):
    found = rows(scorer, damage)
    # Two dozen pictures tell similarity and distance; top-1 of so few moves by chance (the figure has a thousand).
    assert not [said for said in validation.disorders(found, SLACK) if not said.startswith("top1")]
    assert found[0]["top5"] > 0.5 and abs(found[0]["frechet"]) < 1e-6


def test_an_untrained_scorer_fails(scorer, damage):
    torch.manual_seed(0)
    blank = Scorer(scorer.config, scorer.words).eval().requires_grad_(False)
    assert len(validation.disorders(rows(blank, damage), SLACK)) > 3


class Blind:
    """Aligns nothing: similarity is the embedding itself."""

    def alignment(self, embeddings, prompts):
        return embeddings, torch.zeros(len(embeddings), dtype=torch.int64)


def test_harm_is_told_from_none_and_none_is_not():
    generator = torch.Generator().manual_seed(0)
    clean, others, noise = (torch.randn(300, 8, generator=generator) for _ in range(3))
    similarity = torch.rand(300, generator=generator)
    harmed, less = clean + 0.3, similarity - 0.05 * torch.rand(300, generator=generator)
    found = validation.told(Blind(), (clean, similarity), (harmed, less), others, [])
    assert found["told"] and found["frechet"] > found["frechet_floor"] > found["frechet_clean"]
    assert not validation.told(Blind(), (clean, similarity), (clean, similarity), others, [])["told"]
    assert not validation.told(Blind(), (clean, similarity), (harmed, similarity), others, [])["told"]
    same = (0.95 * clean + (1 - 0.95**2) ** 0.5 * noise, less)  # other pictures of the same kind
    assert not validation.told(Blind(), (clean, similarity), same, others, [])["told"]


def test_validation_goes_on_where_it_stopped(tmp_path, monkeypatch, scorer):
    bundle, rng = toy_bundle(), np.random.default_rng(0)
    names = sorted(data.CORE_LABELS)[:4]
    records = [{"label": label, "tags": [], "style": style, "concept": label} for label in names for style in
               data.STYLES]
    pictures = data.Pictures(rng.integers(0, 255, (len(records), 128, 128, 4), dtype=np.uint8), records)

    def decoded(bundle, codes):
        squares = codes.float().unflatten(1, (1, round(codes.shape[1] ** 0.5), -1)) / 32 - 1
        return torch.nn.functional.interpolate(squares, (128, 128)).expand(-1, 3, -1, -1)

    monkeypatch.setattr(validation, "decoded", decoded)
    few = {"random tokens": (validation.FEW, 0.4), "wrong captions": (1,)}
    monkeypatch.setattr(validation.damaged, "__defaults__", (0, few))
    features = torch.randn(len(LOOKS), scorer.config.features)
    references = References(features, features)
    first = validation.validate(scorer, bundle, pictures, references, 8, tmp_path)
    assert [row["damage"] for row in first["rows"]] == ["none", "random tokens", "random tokens", "wrong captions"]
    monkeypatch.setattr(type(scorer), "look", None)  # nothing is left to look at
    again = validation.validate(scorer, bundle, pictures, references, 8, tmp_path)
    assert again == first
    validation.figure(first, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_disorder_is_seen():
    clean = {"damage": "none", "strength": 0, "similarity": 0.9, "top1": 0.9, "frechet": 0.0}
    weak = {"damage": "blur", "strength": 1, "similarity": 0.8, "top1": 0.9, "frechet": 1.0}
    strong = {"damage": "blur", "strength": 2, "similarity": 0.7, "top1": 0.5, "frechet": 2.0}
    assert not validation.disorders([clean, weak, strong])
    assert len(validation.disorders([clean, strong, weak])) == 4  # three measures at one step, and top-1 at the end
    assert len(validation.disorders([clean, weak, {**strong, "frechet": 0.5}])) == 1
    assert not validation.disorders([clean, {**weak, "top1": 0.95}, strong], slack=0.06)
    assert validation.disorders([clean, {**weak, "top1": 0.95}, strong])


def test_wrong_prompts_are_wrong_in_as_many_parts():
    facts = [("fox", "noto", "blue"), ("red apple", "fluent", None), ("owl", None, None)]
    known = [{part for part in fact if part} for fact in facts]
    for count in (1, 2, 3):
        said = [{part for part in parts(text) if part} for text in validation.wrong_prompts(facts, count, seed=0)]
        assert [len(a - b) for a, b in zip(said, known, strict=True)] == [min(count, len(a)) for a in known]
        assert list(map(len, said)) == list(map(len, known))


def test_token_damage_has_the_strength_it_says():
    codes = torch.arange(256).repeat(5, 1)
    wild = validation.random_tokens(codes, 0.1, 4096, torch.Generator().manual_seed(0))
    assert ((wild != codes).sum(1) <= 26).all() and (wild != codes).sum() > 5 * 22
    moved = validation.shuffled_tokens(codes, 0.1, torch.Generator().manual_seed(0))
    assert ((moved != codes).sum(1) == 26).all() and torch.equal(moved.sort(1).values, codes)


def test_blur_and_noise_have_the_strength_they_say():
    point = torch.zeros(1, 3, 41, 41)
    point[..., 20, 20] = 1
    spread = validation.blur(point, 2.0)[0, 0]
    offsets = torch.arange(41) - 20.0
    assert spread.sum() == pytest.approx(1, abs=1e-4)
    assert (spread.sum(0) * offsets**2).sum() == pytest.approx(4, rel=0.05)
    noisy = validation.noise(torch.zeros(4, 3, 64, 64), 16.0, torch.Generator().manual_seed(0))
    assert noisy.std().item() * 127.5 == pytest.approx(16, rel=0.02)


@pytest.mark.parametrize("text", ["red apple, 3d, white background", "a Fox on a blue background, google style",
                                  "dog face, flat", "cactus"])
def test_candidates(text):
    chosen = [parts(c) for c in candidates(text)]
    name, style, background = own = parts(text)
    assert len(set(chosen)) == 100 and chosen[0] == own
    looks = (3 if style else 1) * (8 if background else 1)
    same = [c for c in chosen if c[0] == name]
    assert len(same) == looks
    assert len({c[0] for c in chosen}) == 101 - looks
    alike = sum(c[1:] == (style, background) for c in chosen if c[0] != name)
    assert alike >= (100 - looks) // 2
    assert all((c[1] is None) == (style is None) and (c[2] is None) == (background is None) for c in chosen)
    assert candidates(text) == candidates(text) != candidates(text, seed=1)


def test_candidates_name_what_they_do_not_know():
    with pytest.raises(ValueError, match="names none of the 158 things"):
        candidates("a submarine, 3d")


def test_parts_of_every_prompt_and_of_captions():
    facts = [(n, s, b) for n in NAMES for s in data.STYLES for b in data.BACKGROUNDS]
    assert len(NAMES) == 158 and [parts(prompt(*fact)) for fact in facts] == facts
    record = {"label": "dog face", "tags": [], "style": "twemoji"}
    rng = np.random.default_rng(0)
    for _ in range(200):
        text = data.caption(record, "pink", rng)
        assert parts(text) == ("dog", "twemoji" if "flat" in text or "twitter" in text else None,
                               "pink" if "pink" in text else None)


def test_captions_that_are_also_true_are_no_negatives():
    facts = [("fox", "noto", "blue"), ("fox", "noto", "pink"), ("owl", "noto", "blue")]
    fits = training.fitting(facts, ["fox, classic", "a fox, pink background", "owl, classic",
                                    "fox, flat", "fox on a blue background", "owl"])
    assert fits.tolist() == [[True, False, False, False, True, False], [True, True, False, False, False, False],
                             [False, False, True, False, False, True]]


def test_the_bundled_scorer_is_small_and_says_bad_shapes(scorer):
    assert sum(f.stat().st_size for f in BUNDLED.glob("scorer-*.safetensors")) <= 8_000_000
    with pytest.raises(ValueError, match=r"\(n, 3, H, W\)"):
        scorer.features(torch.zeros(2, 128, 128, 3))
    embeddings = scorer.text_embeddings(["fox, 3d", "owl, flat, blue background"])
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(2))
    alone = torch.cat([scorer.text_embeddings([t]) for t in ("fox, 3d", "owl, flat, blue background")])
    assert torch.allclose(embeddings, alone, atol=1e-6)


def test_files_round_trip_and_damage_is_named(tmp_path):
    torch.manual_seed(0)
    model = Scorer(ScorerConfig(vocabulary=10, widths=(8, 8)), toy_bundle().words).eval()
    model.save(tmp_path)
    again, images = Scorer.load(tmp_path), torch.rand(3, 3, 64, 64) * 2 - 1
    assert torch.allclose(model.image_embeddings(images), again.image_embeddings(images), atol=5e-3)
    with pytest.raises(hub.ModelError, match="config.json"):
        Scorer.load(tmp_path / "nowhere")
    (tmp_path / "scorer-00001.safetensors").unlink()
    with pytest.raises(hub.ModelError, match="scorer weights"):
        Scorer.load(tmp_path)


def test_training_learns_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "ScorerConfig", lambda vocabulary: ScorerConfig(vocabulary, widths=(8, 8, 16)))
    rng = np.random.default_rng(0)
    labels = [*sorted(data.CORE_LABELS)[:8], *(f"thing {i}" for i in range(60))]
    records = [{"label": label, "tags": [], "style": style, "concept": label} for label in labels for style in
               data.STYLES]
    rgba = np.full((len(records), 128, 128, 4), 255, np.uint8)
    rgba[..., :3] = rng.integers(0, 255, (len(records), 1, 1, 3))
    pictures = data.Pictures(rgba, records)
    known, unknown = training.divided(pictures)
    assert len(unknown.records) and not {r["concept"] for r in known.records} & {r["concept"] for r in unknown.records}
    assert not {r["label"] for r in unknown.records} & data.CORE_LABELS
    words = toy_bundle().words
    for minutes in (0.03, 0.05):
        model = training.train(words, lambda images: images, pictures, tmp_path, minutes, batch=16)
        state = loop.resume(tmp_path / "scorer.pt")
        assert state["minutes"] >= minutes
    lines = [json.loads(line) for line in (tmp_path / "scorer.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "known_top1" in line][-1] == state["step"] > 0
    assert model.image.standardise.num_batches_tracked == state["step"]  # it went on, it did not begin anew
    other = SimpleNamespace(get_vocab_size=lambda: 11)
    with pytest.raises(hub.ModelError, match="another shape"):
        training.train(other, lambda images: images, pictures, tmp_path, 0.06)
