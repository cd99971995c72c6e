"""Count the places where a step waits for the device: where a value of a tensor comes to the host."""

import traceback

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OPERATIONS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2")


class HostSyncs(TorchDispatchMode):
    """Records the callers of operations whose result a GPU would have to finish first: item, float, bool, nonzero.

    Tensor.tolist does not pass the dispatcher on a CPU and is recorded apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.callers: list[str] = []
        self._tolist = torch.Tensor.tolist

    def __enter__(self):
        torch.Tensor.tolist = lambda tensor: self._record("tolist") or self._tolist(tensor)
        return super().__enter__()

    def __exit__(self, *error):
        torch.Tensor.tolist = self._tolist
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in _OPERATIONS:
            self._record(name)
        return func(*args, **kwargs or {})

    def _record(self, name: str) -> None:
        frame = next(
            frame
            for frame in reversed(traceback.extract_stack())
            if "/torch/" not in frame.filename and not frame.filename.endswith("host_syncs.py")
        )
        self.callers.append(f"{name} in {frame.filename.rsplit('/', 1)[-1]}:{frame.name}")
