"""What clients keep between visits, and the server of single clients."""

from pathlib import Path

from fedrepro.simulation import scratch
from fedrepro.simulation.ledger import nbytes
from fedrepro.simulation.store import load_tensors, save_tensors

CLIENT_MEMORY = 2 << 30  # bytes of client state kept in memory


class Clients:
    """The state of every client that has one: in memory while it fits, one file a client beyond that."""

    def __init__(self, folder: Path | None, memory: int = CLIENT_MEMORY):
        self._folder, self._own = folder, None
        self.memory, self._held = memory, 0  # bytes it may, and does, hold in memory
        self._states: dict[int, dict] = {}
        self.size: dict[int, int] = {}  # bytes of each client's state, in memory or not
        self.version: dict[int, int] = {}  # the round after which the client's state was made
        self._dirty: set[int] = set()

    @property
    def folder(self) -> Path:
        """Its own temporary one, made when it is needed, unless one was given."""
        if self._folder is None:
            self._own = scratch.folder()
            self._folder = Path(self._own.name)
        return self._folder

    def get(self, cid: int) -> dict | None:
        if cid not in self.version:
            return None
        return self._states[cid] if cid in self._states else load_tensors(self._file(cid), mapped=True)

    def put(self, cid: int, state: dict, t: int) -> None:
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
