"""Tiny networks of transformers, built from a config and saved as a folder, and texts for them."""

import pytest

from fedhet.rng import torch_seeded

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = ("oil bank price", "goal match team", "atom star light")


def library():
    """transformers and peft, or the test is skipped."""
    pytest.importorskip("peft", reason="the extra `transformers` is not installed")
    return pytest.importorskip("transformers", reason="the extra `transformers` is not installed")


def bert(folder, words=None, seed=0):
    """A BERT whose tokenizer knows ``words``, and single digits."""
    transformers = library()
    folder.mkdir(parents=True)
    words = (words or " ".join(WORDS)).split()
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *"0123456789,"]
    (folder / "vocab.txt").write_text("\n".join(known) + "\n")
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    return _saved(folder, "Bert", seed, vocab_size=len(known), max_position_embeddings=32)


def vit(folder, side=16, seed=0):
    return _saved(folder, "ViT", seed, image_size=side, patch_size=8)


def beit(folder, side=16):
    """BERT's sibling for images: a BEiT."""
    return _saved(folder, "Beit", 1, image_size=side, patch_size=8)


def wav(folder):
    """A wav2vec2 for signals of one channel."""
    return _saved(
        folder, "Wav2Vec2", 2, conv_dim=(8, 8), conv_kernel=(4, 4), conv_stride=(2, 2),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
    )  # fmt: skip


def _saved(folder, kind, seed, **keys):
    transformers = library()
    config = getattr(transformers, f"{kind}Config")(**TINY, intermediate_size=32, **keys)
    with torch_seeded(seed, kind.lower()):
        getattr(transformers, f"{kind}Model")(config).save_pretrained(folder)
    return folder


def weights(folder, name):
    """``NAME`` of torchvision or timm with the place of a file of its weights, ``FILE``."""
    from safetensors.torch import save_file
    from torchvision.models import get_model  # late, as the zoo does

    folder.mkdir(parents=True, exist_ok=True)
    with torch_seeded(3, "weights"):
        if name.startswith("timm:"):
            timm = pytest.importorskip("timm", reason="the extra `timm` is not installed")
            network = timm.create_model(name.removeprefix("timm:"), pretrained=False, img_size=32)
        else:
            network = get_model(name, weights=None)
    file = str(folder / "m.safetensors")
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, file)
    return file


def texts(folder):
    """Keys of a data set of 120 sentences of three subjects."""
    rows = "".join(f'"{WORDS[k % 3]}, {k % 7} {WORDS[k % 2]}",{"xyz"[k % 3]}\n' for k in range(120))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "t.csv").write_text("text,label\n" + rows)
    return {"dataset": "texts", "data_path": str(folder / "t.csv"), "target": "label",
            "text": "text", "length": 12, "vocabulary": 100}  # fmt: skip
