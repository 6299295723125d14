"""Functions of Flower's own that only tests call: the same code as its commands run."""

import contextlib
import subprocess
import sys

import psutil
from helpers.programs import wait_for

from fedhet.engines.system import environment, free_ports

# The command `flwr`, which else waits only 15 s for its SuperLink: too few on a busy machine.
PATIENT_FLWR = (
    "from flwr.cli import app, local_superlink as local; "
    "local.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300.0; app.app()"
)
# Statements after which a ServerApp announces its messages without sending them.
LOSE_WHAT_IS_PUSHED = """
    import flwr.superlink.grid.http_grid as http
    vars(http)["push_objects"] = lambda *words, **more: None
"""


def flwr_run(app, folder, words, ending):
    """What ``flwr run`` of two clients on Ray prints; Flower's SuperLink, the user's, is ended."""
    ports = zip(("SUPERLINK_HTTP", "CONTROL"), map(str, free_ports(2)), strict=True)
    own = {f"FLWR_LOCAL_{name}_API_PORT": port for name, port in ports}
    env = environment(own | {"FLWR_HOME": str(folder / "flwr")})
    command = [sys.executable, "-c", PATIENT_FLWR, "run", str(app), "local", "--stream"]
    command += ["--run-config", f"{words} out='{folder}'", "--federation-config"]
    command += ["num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=1"]
    keys = {"capture_output": True, "text": True, "timeout": 600}
    try:
        done = subprocess.run(command, check=False, env=env, cwd=folder, **keys)
        wait_for(lambda: ending.exists() or done.returncode, "the run ends")
    finally:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == env["FLWR_HOME"]:
                    process.kill()
    return done.stdout + done.stderr


def check_app(folder, project):
    """What Flower finds wrong with an app and its ``pyproject.toml``, and the bytes that it allows.

    Raises what Flower Hub's own command raises for files that it does not take.
    """
    # why: the Hub's rules, which nothing else says
    from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_files
    from flwr.common.config import validate_config  # why: what `flwr run` checks first
    from flwr.common.constant import FAB_MAX_SIZE  # why: the limit of a bundle

    _validate_files(_collect_file_paths(folder))
    fits, wrong, odd = validate_config(dict(project), check_module=True, project_dir=folder)
    return [] if fits else [*wrong, *odd], int(FAB_MAX_SIZE)


def packed_folder(folder):
    """Return what Flower packs of an app's folder."""
    from flwr.cli.build import build_fab_from_disk  # why: what `flwr run` calls

    return build_fab_from_disk(folder)


def read_run_config(words):
    """What ``flwr run --run-config`` makes of its words, or of a TOML file."""
    from flwr.common.config import parse_config_args  # why: to hold our file against its reader

    return parse_config_args(words)


def with_overrides(app, overrides):
    """The run config of the app in a folder, as Flower gives it to ServerApp and ClientApp."""
    # why: the same function runs in the CLI, the SuperLink and every SuperNode
    from flwr.common.config import get_fused_config_from_dir

    return get_fused_config_from_dir(app, dict(overrides))
