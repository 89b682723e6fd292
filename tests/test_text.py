import warnings

import pytest
import synthetic
import torch
from tokenizers import Tokenizer

from lanternpp import text
from lanternpp.checkpoints import ModelError
from lanternpp.models import MODELS
from lanternpp.settings import SettingsError
from lanternpp.transformer import TransformerConfig

T2I = TransformerConfig(codes=32, width=32, layers=1, heads=2, hidden=48, grid=4, prefix=12, prefix_kind="features",
                        condition=synthetic.FEATURES)


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    synthetic.write_t5(folder)
    return text.CaptionPrompt.load(folder, T2I, torch.float32, torch.device("cpu"), "fetch it")


@pytest.mark.parametrize("prompt, number", [
    ("0", 0), ("207", 207), ("golden retriever", 207), ("Golden Retriever", 207), ("tench", 0), ("toilet paper", 999),
    ("stingray", 6), ("ostrich", 9)])
def test_classes_by_name_and_number(prompt, number):
    assert text.class_number(prompt) == number
    condition, valid = text.ClassPrompt()(prompt)
    assert condition.tolist() == [number] and valid is None


def test_class_names_are_the_thousand_and_each_finds_itself():
    names = text.class_names()
    assert len(names) == len({name.casefold() for name in names}) == 1000
    assert all(text.class_number(name) == number for number, name in enumerate(names))


@pytest.mark.parametrize("prompt, words", [("1000", "0 to 999"), ("99999999999", "0 to 999"), ("retriever", "such as"),
                                           ("unicorn", "none of them"), ("¹", "none of them")])
def test_other_prompts_are_no_class(prompt, words):
    with pytest.raises(SettingsError, match=words) as error:
        text.class_number(prompt)
    assert str(error.value).endswith(".")


def test_caption_rows_stand_at_the_right_end(captions):
    prompt = "red apple on blue"
    features, valid = captions(prompt)
    count = len(prompt.split()) + 1  # the end of the caption is kept
    assert features.shape == (1, 12, synthetic.FEATURES) and valid.tolist() == [[False] * (12 - count) + [True] * count]
    assert (features[:, : 12 - count] == 0).all()
    ids = captions.tokenizer(prompt, return_tensors="pt").input_ids
    assert ids.shape[1] == count and ids[0, -1] == captions.tokenizer.eos_token_id
    with torch.no_grad():
        alone = captions.encoder(input_ids=ids).last_hidden_state  # without padding
    assert torch.allclose(features[:, 12 - count:], alone, atol=1e-5)


def test_long_captions_are_cut_as_in_training(captions):
    features, valid = captions("red " * 50)
    assert features.shape[1] == 12 and valid.all()


def test_text_encoders_that_do_not_fit(tmp_path):
    with pytest.raises(ModelError, match="fetch it"):
        text.CaptionPrompt.load(tmp_path, T2I, torch.float32, torch.device("cpu"), "fetch it")
    synthetic.write_t5(tmp_path)
    wide = TransformerConfig(32, 32, 1, 2, 48, 4, 12, "features", 2048)
    with pytest.raises(ModelError, match="24 numbers a token where the target reads 2048"):
        text.CaptionPrompt.load(tmp_path, wide, torch.float32, torch.device("cpu"), "fetch it")


def test_missing_cleaners_are_said(monkeypatch):
    monkeypatch.setattr("diffusers.utils.is_ftfy_available", lambda: False)
    with pytest.warns(UserWarning, match="pip install ftfy beautifulsoup4"):
        assert text.clean_caption("  A Red <b>Fox</b> ") == "a red <b>fox</b>"


def test_captions_are_cleaned():
    pytest.importorskip("ftfy")
    pytest.importorskip("bs4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert text.clean_caption("  A Red <b>Fox</b>  &amp; a `cat` https://a.com/x ") == 'a red fox a "cat"'
        assert text.clean_caption("a red apple, 3d") == "a red apple, 3d"


@pytest.mark.parametrize("name", ["anole-7b", "lumina-mgpt-7b-768"])
def test_chameleon_prompts(name, tmp_path):
    spec = MODELS[name]
    synthetic.write_text_tokenizer(tmp_path / "tokenizer.json")
    words = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prompt = text.TokenPrompt(words, spec.target, spec.template, spec.suffix)
    ids, valid = prompt("red fox")
    body = words.encode(spec.template.format("red fox")).ids
    whole = [0, *body, *spec.suffix]
    prefix, null = spec.target.prefix, spec.target.null_prompt
    assert ids.tolist() == [[1] * (prefix - len(whole)) + whole] and (ids[0, valid[0]] != 1).all()
    assert valid.sum(1).tolist() == [len(whole), len(null)] and valid[:, -1].all()
    opening = [token for token in spec.suffix if token != 8710]  # what opens a picture ends the null prompt too
    assert list(null)[-len(opening):] == opening
    with pytest.raises(SettingsError, match="has .* tokens and at most .* are read: shorten it"):
        prompt("red " * prefix)


def test_the_null_prompt_is_padded_like_the_prompt():
    from dataclasses import replace

    from lanternpp.transformer import Transformer

    shape = replace(MODELS["lumina-mgpt-7b-768"].target, width=16, heads=2, hidden=16, layers=1, grid=4, prefix=6)
    assert Transformer(shape).prefix.null_ids(2).tolist() == [[1, 1, 1, 8197, 8828, 8828]] * 2
