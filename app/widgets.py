"""The page's knobs as Gradio widgets: words and limits from the schema, opening values from params.opening."""

from typing import Any

import gradio as gr

from app import html, params
from lanternpp.presets import TUNED, offered
from lanternpp.settings import BOUNDS, KNOBS, Knob
from lanternpp.tree import MAX_DEPTH, MAX_NODES, Tree


def prompt(opening: dict[str, Any], styled: bool = True) -> dict[str, gr.Component]:
    """Prompt and, for a model that reads one, style."""
    box = gr.Textbox(
        opening["prompt"],
        label="Prompt",
        placeholder="What should it paint?",
        lines=1,
        max_lines=1,
        elem_id="knob-prompt",
        html_attributes=gr.InputHTMLAttributes(autocomplete="off", spellcheck=False),
    )
    style = gr.Dropdown(
        list(params.STYLES),
        value=opening["style"],
        label="Style",
        elem_id="knob-style",
        filterable=False,
        visible=styled,
    )
    return {"prompt": box, "style": style}


def rail(opening: dict[str, Any], codes: int | None) -> tuple[dict[str, gr.Component], gr.HTML, gr.Button]:
    """All other knobs, the preview of the bound, and the dice of the seed."""
    knobs: dict[str, Any] = {}
    knobs["method"] = radio("method", "Method", params.CHOICES, opening)
    knobs["same"] = gr.Checkbox(
        opening["same"],
        label="Same picture as AR",
        info="Drafts are judged by AR's own draws. With the exact tree it is AR's very picture; pooling departs "
        "from it only where a near-equal code is swapped in, and from there on.",
        elem_id="knob-same",
    )
    against = [("Nothing", params.NOTHING), *((words, name) for name, words in params.METHODS.items())]
    knobs["against"] = gr.Dropdown(
        against, value=opening["against"], label="Compare with", elem_id="knob-against", filterable=False
    )
    presets = offered()
    trees = [(tree_name(name, tree), name) for name, tree in presets.items() if tree.nodes]
    knobs["tree"] = gr.Dropdown(
        [*trees, ("Custom branching", params.CUSTOM)],
        value=opening["tree"],
        label=KNOBS["tree"].label,
        elem_id="knob-tree",
        filterable=False,
    )
    knobs["branching"] = gr.Textbox(
        opening["branching"], label="Children per level", lines=1, max_lines=1, elem_id="knob-branching"
    )
    parents = {name: list(tree.parents) for name, tree in presets.items()}
    html.tree_preview(parents, {"nodes": MAX_NODES, "depth": MAX_DEPTH}, opening)
    knobs["k"] = html.stop_slider(opening["k"], KNOBS["k"].label, KNOBS["k"].help, int(KNOBS["k"].high))
    knobs["lam"] = slider("lam", BOUNDS["lanternpp"], opening)
    knobs["delta"] = slider("delta", BOUNDS["lantern"], opening)
    knobs["gamma"] = slider("gamma", KNOBS["gamma"], opening)
    bound = html.bound_preview()
    with gr.Row(elem_id="seedline"):
        knobs["seed"] = gr.Number(opening["seed"], label=KNOBS["seed"].label, precision=0, elem_id="knob-seed")
        dice = gr.Button("New random seed", elem_id="dice")
    with gr.Accordion("Sampling and order", open=False, elem_id="sampling"):
        knobs["order"] = radio("order", KNOBS["order"].label, KNOBS["order"].choices, opening, KNOBS["order"].help)
        for name in ("cfg_scale", "temperature", "top_k", "top_p"):
            high = codes if name == "top_k" else None  # no more codes can be kept than there are
            knobs[name] = slider(name, KNOBS[name], opening, high)
    return knobs, bound, dice


def slider(name: str, knob: Knob, opening: dict[str, Any], high: float | None = None) -> gr.Slider:
    """A slider with the label, help and limits of the schema."""
    high = high or knob.high
    return gr.Slider(
        knob.low,
        high,
        min(opening[name], high),
        step=knob.step,
        label=knob.label,
        info=knob.help,
        elem_id=f"knob-{name}",
        buttons=[],
    )


def radio(name: str, label: str, choices: dict[str, str], opening: dict[str, Any], info: str | None = None) -> gr.Radio:
    """A choice with the words of the page."""
    pairs = [(words, value) for value, words in choices.items()]
    return gr.Radio(pairs, value=opening[name], label=label, info=info, elem_id=f"knob-{name}")


def tree_name(name: str, tree: Tree) -> str:
    """A preset as the dropdown words it."""
    if set(tree.widths) == {1}:
        words = f"Chain of {tree.nodes}"
    else:
        words = f"{tree.nodes} tokens: {' / '.join(map(str, tree.widths))}"
    return f"Tuned here, {words[0].lower()}{words[1:]}" if name == TUNED else words
