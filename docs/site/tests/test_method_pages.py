"""The pages of the methods: sizes are measured, equations readable, notes and figures found."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

import methods
from methods import DOCS, METHODS, SPELT, docstring, measured, ours, papers, sections


@pytest.mark.parametrize(
    ("name", "down", "up"), [("fedssa", 1002, 1002), ("pfedes", 443, 443), ("fedgh", 5010, 1000)]
)
def test_the_picture_has_what_crosses_the_wire(name, down, up):
    traffic = measured(name, METHODS[name])
    assert (traffic.down.floats, traffic.up.floats) == (down, up)
    assert f"{up:,} floats up" in methods.drawing("a", "b", traffic)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("theta_hat_k^{t-1,s} <= mu_0", "θ\u0302<sub>k</sub><sup>t-1,s</sup> ≤ μ<sub>0</sub>"),
        (
            "sum_k C^{y_i} of F^_k,s",
            "Σ<sub>k</sub> C<sup>y<sub>i</sub></sup> of F\u0302<sub>k,s</sub>",
        ),
        ("``lam_server`` of test_accuracy", "`lam_server` of test\\_accuracy"),
        ("    a_1 < [b]\n    c", '<p class="equation">a<sub>1</sub> &lt; [b]<br>c</p>'),
    ],
)
def test_symbols_get_their_indices(text, shown):
    assert docstring(text) == shown


def test_notes_and_figures_are_of_methods_that_there_are():
    assert set(sections(DOCS / "reference" / "method-notes.md")) <= set(SPELT.values())
    assert "| [Digits, 10 clients](../../results/digits-10-clients.md) | 3 | 97.50 [" in ours(
        "FedSSA"
    )
    assert "| heterogeneous | 96.54 | 73.39 |" in papers("fedssa")
    assert "server-epochs=100" in ours("FedGH")
