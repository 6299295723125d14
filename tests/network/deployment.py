"""A federation as its members type it: ``fedhet certs``, ``server``, ``node``, ``run``."""

import contextlib
import json
import shutil
import subprocess
import tempfile

from network.pace import patience
from network.programs import Process

from fedhet.deploy.control_api import Control
from fedhet.deploy.server_folder import ServerFolder
from fedhet.engines.process_groups import environment, script
from fedhet.errors import RunFailedError


class Commands:
    """``fedhet`` in one folder, with HOME in it and a warm server that other tests do not share."""

    def __init__(self, folder):
        self.folder = folder
        self.runtime = tempfile.mkdtemp(prefix="fh", dir="/tmp")  # a socket's path must be short
        self.env = environment({"HOME": str(folder), "XDG_RUNTIME_DIR": self.runtime})
        self.started = []

    def start(self, name, *words):
        made = Process([script("fedhet"), *words], self.folder / f"{name}.log", self.env)
        self.started.append(made.start())
        return made

    def do(self, *words):
        return subprocess.run(
            [script("fedhet"), *words], env=self.env, cwd=self.folder, capture_output=True,
            text=True, check=False, timeout=patience(),
        )  # fmt: skip

    def status(self):
        done = self.do("status", "--superlink", "tls", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def online(self, name):
        """Whether the node of that name is; `status` would take seconds of a processor to say."""
        folder = ServerFolder(self.folder / "tls")
        control = Control(folder.control(), folder.credentials.ca)
        with contextlib.suppress(RunFailedError), contextlib.closing(control):
            return any(node.name == name and node.status == "online" for node in control.nodes())
        return False

    def stop(self):
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.end()
        shutil.rmtree(self.runtime, ignore_errors=True)
