"""Who a client says it is. What it declares here bounds what it may upload later."""

from dataclasses import dataclass

from fedhet.ids import is_id
from fedhet.protocol.messages import Reply


@dataclass(frozen=True)
class ClientInfo:
    """What a client declared; ``seen`` and ``images`` are empty where it hides its classes."""

    client: str
    classes: tuple[str, ...]
    seen_names: tuple[str, ...]
    images: tuple[int, ...]
    train_images: int
    model: str
    device: str
    seen: tuple[int, ...] = ()  # ids in the global class list


def read_info(reply: Reply) -> ClientInfo:
    """A query reply as ClientInfo; ValueError with a reason if it makes no sense."""
    info = reply.info
    client = str(info["client"])
    if not is_id(client):
        raise ValueError(f"client id '{client[:80]}' is not allowed")
    declared = ClientInfo(
        client=client,
        classes=tuple(map(str, info["classes"])),
        seen_names=tuple(map(str, info["seen"])),
        images=tuple(map(int, info["images"])),
        train_images=int(info["train-images"]),
        model=str(info["model"]),
        device=str(info["device"]),
    )
    if not 1 <= declared.train_images <= 10**9 or len(declared.images) != len(declared.seen_names):
        raise ValueError(f"client '{client}' declares impossible numbers of images")
    return declared
