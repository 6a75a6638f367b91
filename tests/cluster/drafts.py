"""Other drafts for the example's pool: one as good as the shipped one, and one that is worse."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tempfile
from array import array
from pathlib import Path

import cluster
import image
import layout
import where

SHIPPED = layout.REPOSITORY / "models" / "draft"
# What the name of a tensor has that is spoilt: what is left still speaks, and guesses less.
SPOILT = ("layers.1.", "mlp")


def load_stranger(folder: Path) -> None:
    """Gives our node the image `story-draft:stranger`, made in a folder: two of its tokens have each other's numbers."""
    model = folder / "stranger"
    shutil.copytree(SHIPPED, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    archive = folder / "story-draft-stranger.tar"
    image.model("story-draft:stranger", model, archive)
    cluster.load(archive)


def make(folder: Path) -> dict[str, Path]:
    """Makes the images `story-draft:equal` and `story-draft:worse` in a folder; answers where, by name."""
    archives = {f"story-draft:{name}": folder / f"story-draft-{name}.tar" for name in ("equal", "worse")}
    with tempfile.TemporaryDirectory() as other:
        worse = Path(other) / "worse"
        spoil(SHIPPED, worse)
        for (name, archive), model in zip(archives.items(), (SHIPPED, worse)):
            image.model(where.image(name), model, archive)
    return archives


def spoil(source: Path, target: Path) -> None:
    """Copies a model whose weights are of 16 bits, the elements of some of its tensors in another order."""
    shutil.copytree(source, target)
    path = target / "model.safetensors"
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    draw = random.Random(1)
    for name, tensor in header.items():
        if name == "__metadata__" or not any(part in name for part in SPOILT):
            continue
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        elements = array("H", bytes(content[begin:end]))
        draw.shuffle(elements)
        content[begin:end] = elements.tobytes()
    path.write_bytes(content)
