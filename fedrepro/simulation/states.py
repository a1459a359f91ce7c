"""What clients keep between visits, and what the server keeps about each of them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedrepro.simulation import scratch
from fedrepro.simulation.files import load_tensors, save_tensors
from fedrepro.simulation.ledger import nbytes

CLIENT_MEMORY = 256 << 20  # bytes of client state kept in memory
ROUND_MEMORY = 64 << 20  # and of what waits for the end of a round


class Clients:
    """The state of every client that has one: in memory while it fits, one file per client beyond that."""

    def __init__(self, folder: Path | None = None, memory: float = CLIENT_MEMORY):
        self._folder = folder
        self._own: TemporaryDirectory | None = None
        self.memory, self._held = memory, 0  # bytes it may, and does, hold in memory
        self._states: dict[int, dict[str, Any]] = {}
        self.size: dict[int, int] = {}  # bytes of each client's state, in memory or not
        self.version: dict[int, int] = {}  # the round that left the client's state
        self._dirty: set[int] = set()
        self._checked: set[Path] = set()  # files whose bytes were compared with their checksums

    @property
    def folder(self) -> Path:
        """The one given, else a temporary one, created when it is needed."""
        if self._folder is None:
            self._own = scratch.folder()
            self._folder = Path(self._own.name)
        return self._folder

    def get(self, cid: int) -> dict[str, Any] | None:
        """The client's state; None before its first."""
        found = self.find(cid)
        if not isinstance(found, Path):
            return found
        state = load_tensors(found, mapped=True, check=found not in self._checked)
        self._checked.add(found)
        return state

    def __getitem__(self, cid: int) -> dict[str, Any]:
        """The state of a client that has one."""
        if (state := self.get(cid)) is None:
            raise KeyError(cid)
        return state

    def find(self, cid: int) -> dict[str, Any] | Path | None:
        """The client's state, or the file that has it until the next checkpoint; None before its first."""
        if cid not in self.version:
            return None
        return self._states[cid] if cid in self._states else self._file(cid)

    def put(self, cid: int, state: dict[str, Any], t: int) -> None:
        """The client's state after round t; an empty one is not stored."""
        if not state:
            return
        size = nbytes(state)
        self._held += size - (self.size[cid] if cid in self._states else 0)
        self._states[cid], self.size[cid], self.version[cid] = state, size, t
        self._dirty.add(cid)
        if self._held > self.memory:
            self.flush()
            self._states.clear()
            self._held = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all states, in memory or not: a resumed run has them on disk."""
        return sum(self.size.values())

    def _file(self, cid: int) -> Path:
        return self.folder / f"{cid}-{self.version[cid]}.pt"

    def flush(self) -> None:
        """Write every state that its file does not have yet."""
        self.folder.mkdir(exist_ok=True)
        for cid in sorted(self._dirty):
            save_tensors(self._file(cid), self._states[cid])
        self._dirty.clear()

    def prune(self) -> None:
        """Remove the files that no checkpoint refers to any more."""
        if self.folder.exists():
            keep = {self._file(cid).name for cid in self.version}
            for file in self.folder.iterdir():
                if file.name not in keep:
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        if self._own:
            self._own.cleanup()
