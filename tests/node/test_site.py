"""What a client has on its device."""

import torch

from fedhet.node.site import examples_of, load_local
from fedhet.testing import small


def test_another_run_in_the_same_process_gets_its_own_images(tmp_path) -> None:
    """On a device that images are copied to once: the second partition is not the first one's."""
    device, sizes = torch.device("meta"), []
    for seed in (0, 1, 0):
        config = small(tmp_path, seed=seed, partition="dirichlet", alpha=0.5)
        data = load_local(config, {"partition-id": 0, "num-partitions": 3}, simulated=True)
        found = examples_of(data, "train", data.dataset.classes, device)
        assert len(found) == len(data.split.train)
        assert examples_of(data, "train", data.dataset.classes, device) is found
        sizes.append(len(found))
    assert sizes[0] == sizes[2] != sizes[1]
