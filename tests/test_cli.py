import json

import pytest
from PIL import Image

from lanternpp.__main__ import main


def test_generate(toy_folder, tmp_path, capsys):
    picture, trace = tmp_path / "a.png", tmp_path / "a.json"
    code = main(["generate", "a red apple, 3d", "--method", "lanternpp", "--tree", "3,2", "--seed", "7",
                 "--out", str(picture), "--trace", str(trace), "--model", str(toy_folder)])
    assert code == 0
    assert Image.open(picture).size == (32, 32)
    assert json.loads(trace.read_text())["header"]["seed"] == 7
    assert "accepted length" in capsys.readouterr().out


@pytest.mark.parametrize("options", [
    ["--k", "nan"], ["--k", "-1"], ["--k", "seven"], ["--bound", "0"], ["--tree", "oak"], ["--tree", "100,100"],
    ["--tree", ",".join(["1"] * 100)], ["--seed", "1.5"], ["--method", "magic"], ["--order", "x"], ["--top-p", "0"],
    ["--temperature", "inf"], ["--model", "nowhere"], ["--out", "no/such/folder/a.png"],
])
def test_bad_options_say_one_sentence(options, toy_folder, capsys):
    base = [] if "--model" in options else ["--model", str(toy_folder)]
    assert main(["generate", "a fox", "--tree", "2", *base, *options]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("lanternpp: ") and said[0].endswith(".")


@pytest.mark.parametrize("prompt", ["", "\x07", "🦊🦊", "x" * 10_000])
def test_bad_prompts(prompt, toy_folder, capsys):
    assert main(["generate", prompt, "--model", str(toy_folder)]) == 2
    assert "prompt" in capsys.readouterr().err


def test_bench_prints_a_table_and_then_one_json_line(toy_folder, capsys):
    assert main(["bench", "--methods", "ar,exact,lanternpp", "--prompts", "2", "--tree", "3,2", "--model",
                 str(toy_folder)]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    document = json.loads(lines[-1])
    assert {"model", "device", "dtype", "mode", "threads", "torch", "methods"} <= set(document)
    assert list(document["methods"]) == ["ar", "exact", "lanternpp"]
    for row in document["methods"].values():
        assert set(row) == {"seconds", "tokens_per_second", "steps", "accepted_length", "step_compression", "speedup",
                            "n"}
        assert row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
        assert row["n"] == 2
    assert document["methods"]["ar"]["speedup"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert any("LANTERN++" in line for line in lines[:-1])


def test_bench_takes_a_seed_as_text_and_names_its_baseline(toy_folder, capsys):
    assert main(["bench", "--methods", "exact", "--prompts", "1", "--tree", "2", "--seed", "7.0", "--model",
                 str(toy_folder)]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["baseline"] == "exact"


def test_out_needs_no_ending(toy_folder, tmp_path):
    assert main(["generate", "a fox", "--tree", "2", "--out", str(tmp_path / "apple"), "--model", str(toy_folder)]) == 0
    assert Image.open(tmp_path / "apple").format == "PNG"


def test_bench_interrupted_leaves_a_partial_table(toy_folder, capsys, monkeypatch):
    from lanternpp import bench
    real, calls = bench.run, []

    def interrupted(stream):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(stream)

    monkeypatch.setattr(bench, "run", interrupted)
    assert main(["bench", "--methods", "ar,exact", "--prompts", "3", "--tree", "2", "--model", str(toy_folder)]) == 130
    document = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert document["stopped"] and document["methods"]["ar"]["n"] == 1


@pytest.mark.parametrize("options", [["--methods", "ar,magic"], ["--methods", ""], ["--prompts", "0"],
                                     ["--repeats", "100000"]])
def test_bench_bad_options(options, toy_folder, capsys):
    assert main(["bench", "--model", str(toy_folder), *options]) == 2
    assert capsys.readouterr().err.startswith("lanternpp: ")
