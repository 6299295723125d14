"""What a site allows: a small file of its administrator that wins over any run.

``limits="/etc/fedhet/limits.yaml"`` in a node configuration. The client alone reads it, in the
handshake and again before every training, and refuses what breaks it, with the limit's name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedhet import plugins
from fedhet.config.schema import RunConfig, Schema, Words
from fedhet.errors import Refused, UserError
from fedhet.files import parse_object, read_yaml
from fedhet.models.names import is_built_in
from fedhet.protocol.codes import Code
from fedhet.site.privacy import noise_multiplier

# Honest payloads of all methods had norms from 1 to 56 in five rounds of three clients on digits; a
# model of 100 million parameters of 0.1 has 1,000.
MAX_DOWNLOAD_NORM = 1e4
MAX_DOWNLOAD_BYTES = 1 << 30


class Limits(Schema):
    """The keys of the file; one that is left out limits nothing, but for what comes down."""

    max_epochs: int | None = Field(None, ge=1, description="most epochs of any kind in one round")
    max_rounds: int | None = Field(None, ge=1, description="most rounds of one run")
    methods: Words | None = Field(None, description="methods that may run here")
    modules: Words | None = Field(
        None, description="packages of others that a run may name as module:NAME"
    )
    shared_models: bool = Field(True, description="whether a method may share a model")
    min_noise: float | None = Field(None, gt=0, description="least noise, sigma / dp-clip")
    min_sum_noise: float | None = Field(
        None, gt=0, description="least noise of a sum, sigma / dp-clip, in runs that have sums"
    )
    secure_sum: Literal["required"] | None = Field(
        None, description="required: only masked sums, also of metrics, and sum-owners above 1"
    )
    min_sum: int | None = Field(None, ge=2, description="least clients of a sum")
    max_upload_bytes: int | None = Field(None, ge=0, description="most bytes of one upload")
    class_counts: bool = Field(True, description="whether examples per class may be told")
    max_download_bytes: int = Field(
        MAX_DOWNLOAD_BYTES, ge=1, description="most bytes of one message that comes down"
    )
    code: Literal["installed"] | None = Field(
        None, description="installed: `fedhet node --code sent` is refused"
    )
    max_download_norm: float = Field(
        MAX_DOWNLOAD_NORM, gt=0, description="largest L2 norm of the floats that come down at once"
    )

    def check_download_norm(self, norm: float) -> None:
        """Raise Refused for a payload of this norm, before anything is built from it."""
        if not norm <= self.max_download_norm:
            raise _broken("max-download-norm", f"{self.max_download_norm:g}", f"it is {norm:.4g}")

    def check_download_size(self, size: int) -> None:
        """Raise Refused for a message of so many bytes, before it is decoded."""
        if size > self.max_download_bytes:
            raise _broken("max-download-bytes", self.max_download_bytes, f"{size} came")


def read_limits(node: Mapping[str, Any]) -> Limits:
    """Return the limits of this node; none where its configuration names no file.

    Raises Refused if the file cannot be read or understood: then nothing is allowed. The reason
    goes to the server, so it says nothing of the file's place or content; this node's own log does.
    """
    if not node.get("limits"):
        return Limits()
    try:
        values = read_yaml(Path(str(node["limits"])))
    except UserError as error:
        raise Refused("limits: the file of this site cannot be read", Code.LIMITS_FILE) from error
    try:
        return Limits.model_validate(values)
    except ValidationError as error:
        key = error.errors(include_url=False)[0]["loc"][0]
        raise Refused(
            f"limits: the file of this site is wrong at '{key}'", Code.LIMITS_FILE
        ) from error


def check_modules(limits: Limits, run_config: Mapping[str, Any]) -> None:
    """Raise Refused if a run names a module that the site does not allow; import nothing."""
    if limits.modules is None:
        return
    text = str(run_config.get("config", ""))
    values = parse_object(text, "run config", "config")["config"] if text else run_config
    names = [name for name in plugins.named(values) if not is_built_in(name)]
    if others := plugins.modules(names) - set(limits.modules):
        allowed = ", ".join(limits.modules) or "none"
        raise _broken("modules", allowed, f"the run names {min(others)}")


def check_run(limits: Limits, config: RunConfig, *, shares_model: bool) -> None:
    """Raise Refused for the first limit that a run breaks; no round is beyond its ``rounds``."""
    keys = config.params.model_dump().items()
    own = {k: v for k, v in keys if k.endswith("epochs") and not k.startswith("server-")}
    epochs = {"local_epochs": config.local_epochs} | own
    longest = max(epochs, key=lambda key: epochs[key])
    if limits.max_epochs is not None and epochs[longest] > limits.max_epochs:
        name = longest.replace("_", "-")
        raise _broken("max-epochs", limits.max_epochs, f"{name} is {epochs[longest]}")
    if limits.max_rounds is not None and config.rounds > limits.max_rounds:
        raise _broken("max-rounds", limits.max_rounds, f"rounds is {config.rounds}")
    if limits.methods is not None and config.method not in limits.methods:
        raise _broken("methods", ", ".join(limits.methods), f"method is {config.method}")
    if not limits.shared_models and shares_model:
        raise _broken("shared-models", "none", f"method {config.method} shares a model")
    _check_noise(limits, config)
    if not limits.class_counts and not config.summed:
        raise _broken("class-counts", "only runs with secure-sum", "secure-sum is off")
    if limits.secure_sum is not None and config.secure_sum != "masked":
        raise _broken("secure-sum", "only masked sums", f"secure-sum is {config.secure_sum}")
    if limits.secure_sum is not None and not config.sum_metrics:
        raise _broken("secure-sum", "only summed metrics", "sum-metrics is false")
    if limits.secure_sum is not None and config.sum_owners == 1:
        raise _broken("secure-sum", "only sums over several owners", "sum-owners is 1")
    size = config.cohort(config.clients) if config.summed and config.clients else 0
    if size and limits.min_sum is not None and size < limits.min_sum:
        raise _broken("min-sum", f"at least {limits.min_sum}", f"a round has {size} clients")


def check_steps(limits: Limits, config: RunConfig, examples: int) -> None:
    """Raise Refused if ``local-steps`` are more epochs of so many examples than allowed."""
    epochs = config.local_steps * config.batch_size / max(1, examples)
    if limits.max_epochs is not None and epochs > limits.max_epochs:
        raise _broken("max-epochs", limits.max_epochs, f"local-steps are {epochs:.1f}")


def check_upload(limits: Limits, size: int) -> None:
    """Raise Refused for an upload of so many bytes, before it leaves."""
    if limits.max_upload_bytes is not None and size > limits.max_upload_bytes:
        raise _broken("max-upload-bytes", limits.max_upload_bytes, f"this upload has {size}")


def _broken(limit: str, allowed: object, found: str) -> Refused:
    text = f"limit {limit}: this site allows {allowed}, and {found}"
    return Refused(text, Code(f"limit-{limit}"))


def _check_noise(limits: Limits, config: RunConfig) -> None:
    """Raise Refused for too little noise: a sum's protects no vector that is not masked."""
    noise, own, common = noise_multiplier(config), limits.min_noise, limits.min_sum_noise
    says = f"the run has {noise:.4g}"
    if not config.summed:
        if own is not None and noise < own:
            raise _broken("min-noise", f"at least {own:g}", says)
    elif common is not None:
        if config.secure_sum != "masked":
            raise _broken("min-sum-noise", "only masked sums", "secure-sum is unmasked")
        if noise < common:
            raise _broken("min-sum-noise", f"at least {common:g}", says)
    elif own is not None:
        says = "the run adds noise to sums, for which min-sum-noise is"
        raise _broken("min-noise", f"at least {own:g}", says)
