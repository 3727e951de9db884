"""What one machine computes: for each case its contract, a digest of the bits, and a sample."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import torch

from samebits import bits
from samebits.check.environment import environment
from samebits.check.machines.cases import Case, cases
from samebits.engines import family
from samebits.engines.triton import device_class
from samebits.errors import ContractError, DeviceError, DTypeError, SettingError, UncoveredError
from samebits.files import RECORD, it_is
from samebits.mode import deterministic

#: Raised when the meaning of a record changes.
FORMAT = 1


#: Of a result, as an unsigned integer.
Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case.

    Attributes:
        name: of the case.
        contract: the canonical text of what decides its bits; "" where that is no single contract.
        shape: of the result.
        digest: SHA-256 of the result's words, row-major, little-endian.
        sample: words of some results, which the case names.
        refused: why there is no result.
    """

    name: str
    contract: str = ""
    shape: tuple[int, ...] = ()
    digest: str = ""
    sample: tuple[Word, ...] = ()
    refused: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All cases of one machine.

    Attributes:
        format: `FORMAT`.
        device_class: "cpu", or e.g. "sm_90".
        family: of the contracts, "device", "portable" or "exact".
        environment: versions, processor or GPU.
        entries: the cases, in their order.
    """

    format: int
    device_class: str
    family: str
    environment: dict[str, str]
    entries: tuple[Entry, ...]

    def to_json(self) -> str:
        """JSON with sorted keys, one line an entry."""
        lines = (msgspec.json.encode(e, order="sorted").decode() for e in self.entries)
        head = msgspec.to_builtins(self)
        head.pop("entries")
        start = msgspec.json.format(msgspec.json.encode(head, order="sorted"), indent=1).decode()
        return start[:-2] + ',\n "entries": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def record(
    device: str = "cpu",
    contract: str = "device",
    progress: Callable[[str, int, int], None] | None = None,
) -> Record:
    """Computes all cases here.

    Args:
        device: "cpu" or "cuda".
        contract: the family of contracts, as for `samebits.enable`.
        progress: told the name of a case, its number, and how many there are.

    Raises:
        DeviceError: there is no such device.
        SettingError: the device or the family is not known.
    """
    family.check(contract)
    place = _device(device)
    own = "cpu" if place.type == "cpu" else device_class(place.index or 0)
    wanted = cases(contract)
    entries = []
    with deterministic(contract=contract):
        for i, case in enumerate(wanted):
            if progress is not None:
                progress(case.name, i, len(wanted))
            entries.append(_entry(case, place, own if contract == "device" else contract))
    return Record(
        format=FORMAT, device_class=own, family=contract,
        environment={k: str(v) for k, v in environment(place).items()},
        entries=tuple(entries),
    )  # fmt: skip


def load(path: str | Path) -> Record:
    """A record from its file.

    Raises:
        SettingError: the file cannot be read, is no record, or one of another format.
    """
    data = b""
    try:
        data = Path(path).read_bytes()
        found = msgspec.json.decode(data, type=Record)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = it_is(data, RECORD) or f": {error}"
        raise SettingError(
            f"{path} is no record{reason}. `samebits record -o FILE` writes one"
        ) from None
    if found.format != FORMAT:
        raise SettingError(f"{path} has format {found.format}; this release reads {FORMAT}")
    names = [e.name for e in found.entries]
    if len(set(names)) != len(names):
        raise SettingError(f"{path} has a case twice: it was not written by `samebits record`")
    return found


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise SettingError(f"device {name!r} is not understood: use cpu or cuda")
    if name == "cpu":
        return torch.device("cpu")
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise DeviceError("torch sees no NVIDIA GPU here: record on the CPU, or install CUDA torch")
    return torch.device("cuda", torch.cuda.current_device())


def _entry(case: Case, device: torch.device, device_class: str) -> Entry:
    try:
        contract = case.contract(device_class)
        result = case.run(device)
    except (ContractError, DTypeError, UncoveredError) as error:
        return Entry(name=case.name, refused=str(error))
    result = result.cpu()
    return Entry(
        name=case.name, contract="" if contract is None else contract.text,
        shape=tuple(result.shape),
        digest=digest(result),
        sample=sample_words(case.sampled(result)),
    )  # fmt: skip


def digest(x: torch.Tensor) -> str:
    """Of a result in CPU memory, as `Entry` has it."""
    return hashlib.sha256(bits.view(x.contiguous()).numpy().tobytes()).hexdigest()


def sample_words(x: torch.Tensor) -> tuple[int, ...]:
    """The words of results as unsigned integers."""
    mask = (1 << 8 * x.element_size()) - 1
    return tuple(int(word) & mask for word in bits.view(x).flatten())
