"""Deal the breast cancer table that comes with scikit-learn to three sites: /data/K/patients.csv.

A file that is there already is kept: put the site's own table into its volume instead.
"""

from pathlib import Path

from sklearn.datasets import load_breast_cancer

SITES = 3


def main() -> None:
    """Write what is missing."""
    table = load_breast_cancer(as_frame=True)
    rows = table.frame.assign(diagnosis=table.target_names[table.target]).drop(columns="target")
    for site in range(SITES):
        path = Path(f"/data/{site}/patients.csv")
        if not path.exists():
            rows[site::SITES].to_csv(path, index=False)


if __name__ == "__main__":
    main()
