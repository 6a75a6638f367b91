"""Other drafts for the example's pool: one as good as the shipped one, and one that is worse."""

from __future__ import annotations

import json
import random
import shutil
import struct
from array import array
from pathlib import Path

import cluster
import image
import layout

SHIPPED = layout.REPOSITORY / "models" / "draft"
# What the name of a tensor has that is spoilt: what is left still speaks, and guesses less.
SPOILT = ("layers.1.", "mlp")


def load(folder: Path) -> None:
    """Gives the node the images `story-draft:equal` and `story-draft:worse`, made in a folder."""
    spoil(SHIPPED, folder / "worse")
    for name, model in (("equal", SHIPPED), ("worse", folder / "worse")):
        archive = folder / f"story-draft-{name}.tar"
        image.model(f"story-draft:{name}", model, archive)
        cluster.load(archive)


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
