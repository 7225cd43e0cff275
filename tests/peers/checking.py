"""Runs checks in turn, and says of each whether it held; hides names of a host."""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from omlx_cache.integrations import host_server


def run_checks(title: str, checks: Iterable[Callable[[], object]]) -> int:
    """Print a line for each check, with what failed; return 1 if one did, else 0."""
    print(title)
    failed = False
    for check in checks:
        began = time.perf_counter()
        try:
            check()
        except Exception:
            failed = True
            print(f"FAILED {check.__name__}:\n{traceback.format_exc()}")
        else:
            print(f"ok     {check.__name__} ({time.perf_counter() - began:.0f} s)")
    return int(failed)


@contextmanager
def hidden(name: host_server.HostName) -> Iterator[None]:
    """Have an object's attribute be missing, as in a version that nobody has seen."""
    real = host_server.has
    host_server.has = lambda target, attribute: (
        attribute != name.attribute and real(target, attribute)
    )
    try:
        yield
    finally:
        host_server.has = real
