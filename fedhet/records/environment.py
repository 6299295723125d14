"""What a run was made with: versions, machine, and a digest of the code."""

import functools
import hashlib
import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedhet.schema import RunConfig

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("fedhet", "flwr", "ray", "torch", "torchvision", "numpy", "safetensors")
_RESULTS = ("fedhet", "strategies", "clients")  # packages whose code decides a result
_BESIDE = ("cli", "experiments", "export")  # rooms of fedhet that do not


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {name: version(name) for name in _PACKAGES}
    return found | {"python": platform.python_version()}


@functools.cache
def source_digest() -> str:
    """SHA-256 of the source files that can change a run's result, names and contents."""
    digest = hashlib.sha256()
    for package in _RESULTS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if parts[1] not in _BESIDE:
                digest.update(f"{'/'.join(parts)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def environment(config: RunConfig) -> dict[str, Any]:
    """Versions, device, threads, git commit and source digest, for ``environment.json``."""
    try:
        commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True,
            check=False,
        ).stdout.strip()  # fmt: skip
    except OSError:  # there is no git in a container
        commit = ""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "device": config.device,
        "threads": config.threads,
        "git_commit": commit or None,
        "source_sha256": source_digest(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
