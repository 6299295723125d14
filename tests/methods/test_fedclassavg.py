"""FedClassAvg: SupCon anchor by anchor, the proximal term, views."""

from copy import deepcopy

import torch
import torch.nn.functional as F
from methods.byhand import by_hand, check_round, overwritten

from fedhet.data.inputs import SIGNAL, TABLE, TOKENS
from fedhet.data.preparation import DROPPED, crop, jitter, two_views
from fedhet.rng import torch_seed
from fedhet.testing import make_client, small


def drawn():
    return torch.Generator().manual_seed(3)


def contrast(features, labels, tau):
    """Khosla et al. 2020, L_out, anchor by anchor."""
    labels = labels.repeat(2)
    likeness = (features @ features.T / tau).exp() * (1 - torch.eye(len(labels)))
    shares = likeness / likeness.sum(dim=1, keepdim=True)
    pairs = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    return torch.stack([-shares[a][pairs[a]].log().mean() for a in range(len(labels))]).mean()


def test_a_crop_of_everything_is_the_image_and_of_a_quarter_its_corner():
    x = torch.rand(2, 3, 32, 32, generator=drawn()) * 2 - 1
    whole = torch.tensor([[1.0], [0.5], [0.5], [0.5], [0.9]]).expand(5, 2)
    assert torch.allclose(crop(x, whole), x, atol=1e-5)
    flipped = whole.clone()
    flipped[4] = 0.1
    assert torch.allclose(crop(x, flipped), x.flip(3), atol=1e-5)
    # area 0.25, ratio 1, as far left and up as it goes: the top left 16 x 16 pixels
    draws = torch.tensor([[0.05 / 0.8], [0.5], [0.0], [0.0], [0.9]]).expand(5, 2)
    upsampled = F.interpolate(x[:, :, :16, :16], scale_factor=2, mode="bilinear")
    assert torch.allclose(crop(x, draws)[:, :, :31, :31], upsampled[:, :, :31, :31], atol=1e-5)


def test_jitter_by_hand():
    pixel = torch.tensor([0.2, 0.4, 0.6]).view(1, 3, 1, 1).expand(1, 3, 4, 4)

    def jittered(which=0, value=0.5):
        draws = torch.full((4, 1, 1, 1, 1), 0.5)
        draws[which] = value
        return jitter(pixel, draws)

    gray = 0.2989 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6
    brighter, duller = 1.4 * pixel, gray + 0.6 * (pixel - gray)
    for draw, wanted in (((0, 0.5), pixel), ((0, 1.0), brighter), ((2, 0.0), duller)):
        assert torch.allclose(jittered(*draw), wanted, atol=1e-5)
    after = jittered(3, 1.0)  # hue by 36 degrees keeps the mean and the distance to gray
    assert torch.allclose(after.mean(1), pixel.mean(1), atol=1e-6)
    assert torch.allclose(after.var(1, correction=0) * 3, torch.tensor(0.08), atol=1e-5)
    assert not torch.allclose(after, pixel, atol=0.02)


def test_one_round_by_hand(tmp_path):
    """Both views, cross-entropy of the first, SupCon of both, the distance to what was received."""
    config = small(tmp_path, method="fedclassavg", rho=5.0, tau=0.3)
    client = make_client(config, 0, tmp_path)
    own = deepcopy(client.model)
    received = overwritten(own.head)
    anchor = [torch.from_numpy(array) for array in received]
    draws = torch.Generator().manual_seed(torch_seed(config.seed, "views", "0", 1))

    def loss(inputs, labels):
        features = own.features(two_views(inputs, draws))
        logits = own.head(features[: len(labels)])
        unit = features / features.norm(dim=1, keepdim=True)
        away = sum(
            (p - a).square().sum() for p, a in zip(own.head.parameters(), anchor, strict=True)
        )
        return F.cross_entropy(logits, labels) + contrast(unit, labels, 0.3) + 2.5 * away

    expected = by_hand(client, [loss], [[own]])
    check_round(client, received, {"model": own}, own.head, expected, tolerance=1e-4)


def test_views_of_signals_rows_and_tokens():
    """Of signals a factor per channel and noise, of rows noise; of tokens words are dropped."""
    x = torch.linspace(-1, 1, 2 * 3 * 4).reshape(2, 3, 4)
    again, both = drawn(), torch.cat([x, x])
    factors, noise = torch.randn(4, 3, 1, generator=again), torch.randn(4, 3, 4, generator=again)
    expected = both * (1 + 0.1 * factors) + 0.05 * noise
    assert torch.allclose(two_views(x, drawn(), SIGNAL), expected)
    rows = torch.arange(6.0).reshape(2, 3)
    expected = torch.cat([rows, rows]) + 0.1 * torch.randn(4, 3, generator=drawn())
    assert torch.allclose(two_views(rows, drawn(), TABLE), expected)
    words = torch.arange(1, 20_001).reshape(100, 200)
    found = two_views(words, drawn(), TOKENS)
    assert found.dtype == torch.int64
    assert set((found - torch.cat([words, words]))[found != 0].tolist()) == {0}
    assert abs((found == 0).double().mean().item() - DROPPED) < 0.01
