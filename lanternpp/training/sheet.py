"""The contact sheet: twenty prompts fixed beforehand, seeds 0 to 19, nothing picked.

    python -m lanternpp.training.sheet --out assets/contact-sheet.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from .. import bench
from ..pipeline import LanternPipeline

PROMPTS = (
    *bench.PROMPTS, "lion, 3d, blue background", "pizza, flat, gray background",
    "ghost, classic, purple background", "sunflower, 3d, green background", "taxi, flat, blue background",
    "frog, 3d, pink background", "snowman, classic, blue background", "banana, 3d, purple background",
    "robot, flat, yellow background", "red heart, 3d, white background",
)


def sheet(pipe: LanternPipeline, methods: tuple[str, ...] = ("ar", "lanternpp"), columns: int = 5) -> Image.Image:
    """Each prompt's pictures side by side, one a method, over the prompt's text; prompt i has seed i."""
    size = int(pipe.describe()["image_size"])
    gap, label = 16, 20
    width, height = len(methods) * size + 4 * (len(methods) - 1) + gap, size + label + gap
    rows = -(-len(PROMPTS) // columns)
    page = Image.new("RGB", (columns * width + gap, rows * height + gap), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(11)
    for seed, prompt in enumerate(PROMPTS):
        left, top = gap + seed % columns * width, gap + seed // columns * height
        for place, method in enumerate(methods):
            picture = pipe(prompt, method=method, seed=seed).images[0]
            page.paste(picture, (left + place * (size + 4), top))
        draw.text((left, top + size + 3), f"{prompt}, seed {seed}", fill="#4a4e57", font=font)
        print(f"{seed + 1}/{len(PROMPTS)} {prompt}", flush=True)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=None, help="folder of the model; the bundled one if left out")
    parser.add_argument("--out", type=Path, default=Path("assets/contact-sheet.png"))
    args = parser.parse_args()
    sheet(LanternPipeline.from_pretrained(args.model)).save(args.out, optimize=True)


if __name__ == "__main__":
    main()
