"""What a run was made with: versions, machine, and a digest of the code."""

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedhet import __version__, layout
from fedhet.config.schema import RunConfig

_PACKAGES = ("flwr", "ray", "torch", "torchvision", "numpy", "safetensors")
_CPUINFO = Path("/proc/cpuinfo")
# Rooms of fedhet that no result depends on.
_BESIDE = ("cli", "sweeps", "reports", "watch", "export")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {name: version(name) for name in _PACKAGES}
    return {"fedhet": __version__} | found | {"python": platform.python_version()}


@functools.cache
def source_digest() -> str:
    """SHA-256 of the source files that can change a run's result, names and contents."""
    digest = hashlib.sha256()
    for name, path in layout.sources():
        if name.split("/")[1] not in _BESIDE:
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def processor() -> str:
    """Architecture, make and model as far as the system tells, and the vector instructions in use.

    Sums are rounded in an order that depends on them: runs that were made on two kinds of processor
    drift apart. Example: ``x86_64, AMD EPYC (family 25, model 17), AVX512``.
    """
    import torch  # noqa: PLC0415  (who only reads a run folder waits for no torch)

    own: dict[str, str] = {}
    with contextlib.suppress(OSError):  # Linux's; not there elsewhere
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
        first = text.partition("\n\n")[0]
        pairs = (line.split(":", 1) for line in first.split("\n") if ":" in line)
        own = {key.strip(): value.strip() for key, value in pairs}
    numbers = {"family": "cpu family", "model": "model"}
    if own.get("CPU part"):  # ARM
        numbers = {"implementer": "CPU implementer", "part": "CPU part"}
    known = [f"{word} {own[key]}" for word, key in numbers.items() if own.get(key)]
    name = own.get("model name") or own.get("cpu") or platform.processor()
    make = f"{name} ({', '.join(known)})".strip() if known else name
    parts = (platform.machine(), make, torch.backends.cpu.get_cpu_capability())
    return ", ".join(part for part in dict.fromkeys(parts) if part)


def commit(package: Path = layout.HERE) -> str | None:
    """The commit of our checkout; None in a wheel, also one that lies in another repository."""
    try:
        found = subprocess.run(
            ["git", "-C", str(package), "rev-parse", "HEAD", "HEAD:./layout.py"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:  # there is no git in a container
        return None
    return found.stdout.split()[0] if found.returncode == 0 else None


def environment(config: RunConfig) -> dict[str, Any]:
    """Versions, device, threads, git commit and source digest, for ``environment.json``."""
    import torch  # noqa: PLC0415

    return {
        "versions": versions(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "device": config.device,
        "threads": config.threads,
        "git_commit": commit(),
        "source_sha256": source_digest(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
