"""The pictures and captions that the bundled model learns from: three emoji sets, composited on soft backgrounds.

    python -m lanternpp.training.data --packages DIR --out DIR

`--packages` holds the unpacked npm packages (`npm pack @lobehub/fluent-emoji-3d@1.1.0 @twemoji/svg@15.0.0
emojibase-data@17.0.0`, then untar each into a folder of its own); the third set is Debian's fonts-noto-color-emoji.
Needs the package resvg-py to draw the vector set.
"""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 128
TOKEN = 8  # pixels that a code covers, each way
NOTO_FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
STYLES = {  # style -> words for it in captions; the first is the one the app uses
    "fluent": ("3d", "fluent", "shiny 3d"),
    "twemoji": ("flat", "twitter style", "flat cartoon"),
    "noto": ("classic", "google style", "noto"),
}
BACKGROUNDS = {
    "white": (246, 245, 242), "yellow": (250, 229, 150), "blue": (164, 202, 240), "green": (176, 222, 170),
    "pink": (248, 188, 208), "purple": (204, 184, 236), "orange": (250, 202, 150), "gray": (188, 190, 196),
}
# What people type first: animals, food, well-known things. One picture an idea, so that a short name means one thing.
CORE = """monkey face; dog face; wolf; fox; cat face; black cat; lion; tiger face; horse face; unicorn; zebra; cow face;
pig face; goat; camel; giraffe; elephant; hippopotamus; mouse face; rabbit face; hedgehog; bat; bear; polar bear; koala;
panda; kangaroo; rooster; hatching chick; penguin; eagle; duck; swan; owl; flamingo; peacock; parrot; frog; crocodile;
turtle; snake; dragon face; T-Rex; spouting whale; dolphin; fish; tropical fish; shark; octopus; crab; lobster; snail;
butterfly; honeybee; lady beetle; spider; cherry blossom; rose; sunflower; tulip; evergreen tree; palm tree; cactus;
four leaf clover; mushroom; grapes; watermelon; tangerine; lemon; banana; pineapple; red apple; green apple; pear;
cherries; strawberry; kiwi fruit; tomato; avocado; eggplant; carrot; ear of corn; broccoli; bread; croissant; pretzel;
pancakes; cheese wedge; hamburger; french fries; pizza; hot dog; taco; egg; popcorn; sushi; soft ice cream; ice cream;
doughnut; cookie; birthday cake; cupcake; lollipop; teapot; hot beverage; wine glass; beer mug; volcano; house; castle;
locomotive; bus; taxi; automobile; bicycle; sailboat; airplane; helicopter; rocket; flying saucer; alarm clock;
crescent moon; sun with face; ringed planet; star; cloud; rainbow; umbrella; snowflake; snowman; fire; jack-o-lantern;
Christmas tree; balloon; wrapped gift; trophy; soccer ball; basketball; teddy bear; crown; top hat; gem stone; bell;
guitar; camera; light bulb; candle; key; robot; ghost; alien; skull; smiling face with sunglasses;
smiling face with heart-eyes; thinking face; red heart; clown face; pile of poo"""
CORE_LABELS = frozenset(" ".join(CORE.split()).split("; "))


@dataclass(frozen=True)
class Pictures:
    """rgba (n, 128, 128, 4) uint8, straight alpha; one record (label, tags, group, style, concept) a picture."""

    rgba: np.ndarray
    records: list[dict]

    def select(self, index: np.ndarray) -> Pictures:
        return Pictures(self.rgba[index], [self.records[i] for i in index])


def load_pictures(folder: str | Path) -> Pictures:
    """Pictures written by this module. FileNotFoundError names the command that makes them."""
    folder = Path(folder)
    if not (folder / "pictures.npy").exists():
        raise FileNotFoundError(f"No pictures in {folder}: make them with "
                                "`python -m lanternpp.training.data --packages DIR --out DIR`.")
    return Pictures(np.load(folder / "pictures.npy", mmap_mode="r"),
                    json.loads((folder / "pictures.json").read_text()))


def split(pictures: Pictures, held_out: float = 0.03, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indices (train, validation), split by concept: no style of a held-out concept is trained on."""
    concepts = sorted({r["concept"] for r in pictures.records})
    chosen = np.random.default_rng(seed).permutation(len(concepts))[: max(1, round(held_out * len(concepts)))]
    held = {concepts[i] for i in chosen}
    mask = np.array([r["concept"] in held for r in pictures.records])
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def core(pictures: Pictures) -> np.ndarray:
    """Indices of the pictures of the few hundred concepts that people type first."""
    return np.array([i for i, r in enumerate(pictures.records) if r["label"] in CORE_LABELS])


def composite(rgba: np.ndarray, rng: np.random.Generator, background: str | None = None,
              place: str = "grid") -> np.ndarray:
    """One picture (128, 128, 4) on a softly shaded background -> (128, 128, 3) uint8.

    place "centre" draws nothing. "grid" moves the picture by whole tokens, so that its codes are the same wherever it
    stands: what a small target can learn to paint sharply. "any" also draws size, half tokens and a mirror, which a
    tokenizer and a scorer must know.
    """
    name = background or str(rng.choice(list(BACKGROUNDS)))
    colour = np.array(BACKGROUNDS[name], dtype=np.float32)
    centre = np.array([0.4, 0.4]) if place == "centre" else rng.uniform(0.3, 0.5, 2)
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32) / SIZE
    distance = (y - centre[0]) ** 2 + (x - centre[1]) ** 2
    ground = colour * (1.03 - 0.22 * distance)[..., None]
    side = round(SIZE * rng.choice((0.84, 0.9, 0.96))) if place == "any" else SIZE - 2 * TOKEN
    picture = Image.fromarray(np.ascontiguousarray(rgba)).resize((side, side), Image.Resampling.LANCZOS)
    if place == "any" and rng.random() < 0.15:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    shift = {"centre": 0, "grid": TOKEN, "any": TOKEN // 2}[place]
    left, top = (round((SIZE - side) / 2 + rng.integers(-1, 2) * shift) for _ in range(2))
    layer = Image.new("RGBA", (SIZE, SIZE))
    layer.paste(picture, (left, top))
    front = np.asarray(layer, dtype=np.float32)
    alpha = front[..., 3:] / 255
    return np.clip(front[..., :3] * alpha + ground * (1 - alpha) + 0.5, 0, 255).astype(np.uint8)


def short_name(label: str) -> str:
    """The name a person would type: "dog" for "dog face"."""
    return label.lower().removesuffix(" face").replace("-", " ")


def caption(record: dict, background: str, rng: np.random.Generator) -> str:
    """A caption as a person might write it: name or tags, style, background; parts are left out now and then."""
    if record["tags"] and rng.random() < 0.15:
        count = min(len(record["tags"]), int(rng.integers(1, 3)))
        name = " ".join([short_name(record["label"]).split()[-1], *rng.choice(record["tags"], count, replace=False)])
    else:
        name = record["label"].lower() if rng.random() < 0.2 else short_name(record["label"])
    if rng.random() < 0.25:
        name = ("an " if name[0] in "aeiou" else "a ") + name
    words = STYLES[record["style"]]
    style = words[0] if rng.random() < 0.75 else str(rng.choice(words))
    parts = [name]
    if rng.random() < 0.9 and rng.random() < 0.4:
        parts[0] += f" on a {background} background"
    elif rng.random() < 0.85:
        parts.append(f"{background} background")
    if rng.random() < 0.92:
        parts.insert(int(rng.integers(1, len(parts) + 1)), style)
    return ", ".join(parts)


def _fitted(picture: Image.Image) -> np.ndarray:
    """Crop to what is opaque, fit into a square of 128 with the aspect kept."""
    picture = picture.convert("RGBA")
    box = picture.getchannel("A").point(lambda a: 255 * (a > 8)).getbbox()
    picture = picture.crop(box) if box else picture
    side = max(picture.size)
    square = Image.new("RGBA", (side, side))
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return np.asarray(square.resize((SIZE, SIZE), Image.Resampling.LANCZOS))


def _sources(packages: Path):
    """Three functions from an emojibase entry to a picture or None, by style."""
    import resvg_py

    def names(entry):
        code = entry["hexcode"].lower()
        bare = code.replace("-fe0f", "")
        return dict.fromkeys([code, bare, f"{code}-fe0f", f"{bare}-fe0f"])

    def find(pattern: str, entry) -> Path | None:
        folder = next(packages.glob(pattern))
        suffix = ".webp" if "fluent" in pattern else ".svg"
        return next((p for n in names(entry) if (p := folder / (n + suffix)).exists()), None)

    def fluent(entry):
        path = find("lobehub-fluent-emoji-3d*/package/assets", entry)
        return Image.open(path) if path else None

    def twemoji(entry):
        path = find("twemoji-svg*/package", entry)
        if not path:
            return None
        drawn = resvg_py.svg_to_bytes(svg_path=str(path), width=256, height=256)
        return Image.open(io.BytesIO(bytes(drawn)))

    font = ImageFont.truetype(NOTO_FONT, 109)

    def noto(entry):
        canvas = Image.new("RGBA", (160, 160))
        ImageDraw.Draw(canvas).text((8, 8), entry["emoji"], font=font, embedded_color=True)
        return canvas if canvas.getbbox() else None

    return {"fluent": fluent, "twemoji": twemoji, "noto": noto}


def build(packages: Path, out: Path) -> Pictures:
    """Draw every emoji without flags, keycaps and skin tones in each set that has it."""
    entries = json.loads(next(packages.glob("emojibase-data*/package/en/data.json")).read_text())
    sources, pictures, records = _sources(packages), [], []
    for entry in entries:
        if entry.get("group") in (None, 2, 9) or "keycap" in entry["label"]:
            continue
        for style, draw in sources.items():
            picture = draw(entry)
            if picture is not None:
                pictures.append(_fitted(picture))
                records.append({"label": entry["label"], "tags": entry.get("tags", []), "group": entry["group"],
                                "style": style, "concept": entry["hexcode"]})
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "pictures.npy", np.stack(pictures))
    (out / "pictures.json").write_text(json.dumps(records))
    return Pictures(np.stack(pictures), records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of the unpacked npm packages")
    parser.add_argument("--out", type=Path, required=True, help="folder to write pictures.npy and pictures.json to")
    args = parser.parse_args()
    pictures = build(args.packages, args.out)
    found = {r["label"] for r in pictures.records}
    print(f"{len(pictures.records)} pictures of {len({r['concept'] for r in pictures.records})} concepts, "
          f"{len(core(pictures))} of them of {len(CORE_LABELS & found)} core concepts")
    if missing := CORE_LABELS - found:
        print("no picture for:", "; ".join(sorted(missing)))


if __name__ == "__main__":
    main()
