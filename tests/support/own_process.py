"""A call in a process of its own, for tests that kill it.

It is forked from a server that has imported PyTorch once, which takes longer than what most tests
let it do.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["elmokit.embed.files", "elmokit.train.pretraining"])


def start_process(function: Callable[..., object], *args: Any, **kwargs: Any) -> ForkServerProcess:
    """Call a function of a module, with arguments that can be pickled, in a process of its own."""
    process = _CONTEXT.Process(target=function, args=args, kwargs=kwargs)
    process.start()
    return process


def kill(process: ForkServerProcess) -> None:
    """SIGKILL, as a crash or a power cut would; and wait until the process is gone."""
    process.kill()
    process.join()
