"""A client's images as its process sees them, and as files."""

import numpy as np
import torch
from PIL import Image

from fedhet.site.local_data import examples_of, load_local


def images_of(config, client, part="test"):
    """The images of one part of a client's, in a simulation."""
    node = {"partition-id": int(client), "num-partitions": config.clients}
    data = load_local(config, node, simulated=True)
    return examples_of(data, part, data.dataset.classes, torch.device("cpu"))


def write_images(folder, images):
    """Images uint8 (n, h, w, 3) as PNG files, in their order."""
    for number, image in enumerate(images.numpy()):
        Image.fromarray(image).save(folder / f"{number:03d}.png")


def image_folder(folder, classes, count, size=20):
    """A folder of each class with square images and noise on them."""
    draws = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        pixels = draws.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
        write_images(folder / name, torch.from_numpy(pixels))
    return folder
