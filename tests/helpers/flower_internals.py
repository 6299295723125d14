"""Functions of Flower's own that only tests call: the same code as its commands run."""

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


def read_run_config(words):
    """What ``flwr run --run-config`` makes of its words, or of a TOML file."""
    from flwr.common.config import parse_config_args  # why: to hold our file against its reader

    return parse_config_args(words)


def with_overrides(app, overrides):
    """The run config of the app in a folder, as Flower gives it to ServerApp and ClientApp."""
    # why: the same function runs in the CLI, the SuperLink and every SuperNode
    from flwr.common.config import get_fused_config_from_dir

    return get_fused_config_from_dir(app, dict(overrides))
