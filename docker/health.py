"""Health of a container: its SuperLink answers over TLS, or its SuperNode's own API does.

The first process says which of the two it is; anything else is healthy while it runs.
"""

import ssl
import sys
import urllib.request
from pathlib import Path


def main() -> int:
    """Return 0 if healthy."""
    words = Path("/proc/1/cmdline").read_bytes().decode().split("\0")
    programs = {Path(word).name for word in words}
    if "flower-superlink" in programs:
        context = ssl.create_default_context(cafile="/tls/ca.crt")
        address = "https://127.0.0.1:8443/health"
        with urllib.request.urlopen(address, context=context, timeout=5) as answer:
            return 0 if answer.status == 200 else 1
    if "flower-supernode" in programs:
        with urllib.request.urlopen("http://127.0.0.1:9094/health", timeout=5) as answer:
            return 0 if answer.status == 200 else 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"not healthy: {error}")
