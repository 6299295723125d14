"""Tiny networks of transformers, built from a config and saved as a folder, and texts for them."""

from pathlib import Path
from typing import Any

import pytest

from fedhet.rng import torch_seeded

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = ("oil bank price", "goal match team", "atom star light")


def library():
    """transformers and peft, or the test is skipped."""
    pytest.importorskip("peft", reason="the extra `transformers` is not installed")
    return pytest.importorskip("transformers", reason="the extra `transformers` is not installed")


def bert(folder: Path, words: str = " ".join(WORDS), seed: int = 0) -> Path:
    """A BERT whose tokenizer knows ``words``, and single digits."""
    transformers = library()
    folder.mkdir(parents=True)
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split(), *"0123456789,"]
    (folder / "vocab.txt").write_text("\n".join(known) + "\n")
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    return _saved(folder, "Bert", seed, vocab_size=len(known), max_position_embeddings=32)


def vit(folder: Path, side: int = 16, seed: int = 0) -> Path:
    """A ViT for square images."""
    return _saved(folder, "ViT", seed, image_size=side, patch_size=8)


def beit(folder: Path, side: int = 16) -> Path:
    """BERT's sibling for images: a BEiT."""
    return _saved(folder, "Beit", 1, image_size=side, patch_size=8)


def wav(folder: Path) -> Path:
    """A wav2vec2 for signals of one channel."""
    return _saved(
        folder, "Wav2Vec2", 2, conv_dim=(8, 8), conv_kernel=(4, 4), conv_stride=(2, 2),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
    )  # fmt: skip


def _saved(folder: Path, kind: str, seed: int, **keys: Any) -> Path:
    transformers = library()
    config = getattr(transformers, f"{kind}Config")(**TINY, intermediate_size=32, **keys)
    with torch_seeded(seed, kind.lower()):
        getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return folder


def weights(folder: Path, name: str) -> str:
    """``NAME`` of torchvision or timm with the place of a file of its weights, ``FILE``."""
    from safetensors.torch import save_file  # noqa: PLC0415
    from torchvision.models import get_model  # noqa: PLC0415  (late, as the zoo does)

    folder.mkdir(parents=True, exist_ok=True)
    with torch_seeded(3, "weights"):
        if name.startswith("timm:"):
            timm = pytest.importorskip("timm", reason="the extra `timm` is not installed")
            network = timm.create_model(name.removeprefix("timm:"), pretrained=False, img_size=32)
        else:
            network = get_model(name, weights=None)
    save_file(
        {k: v.contiguous() for k, v in network.state_dict().items()}, folder / "m.safetensors"
    )
    return str(folder / "m.safetensors")


def texts(folder: Path) -> dict[str, object]:
    """Keys of a data set of 120 sentences of three subjects."""
    rows = "".join(f'"{WORDS[k % 3]}, {k % 7} {WORDS[k % 2]}",{"xyz"[k % 3]}\n' for k in range(120))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "t.csv").write_text("text,label\n" + rows)
    return {
        "dataset": "texts", "data_path": str(folder / "t.csv"), "target": "label", "text": "text",
        "length": 12, "vocabulary": 100, "partition": "iid", "batch_size": 8,
        "representation": 16,
    }  # fmt: skip
