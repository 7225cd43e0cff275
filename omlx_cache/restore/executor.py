"""Carrying out a plan: which executor suits the pages and the device.

Targets are allocated once at their final size, so a restore peaks at about what it delivers.
"""

from collections.abc import Mapping
from concurrent.futures import Executor as ThreadPool

from omlx_cache.arrays.mlxio import Array
from omlx_cache.restore.device import restore_on_device
from omlx_cache.restore.host import restore_on_host
from omlx_cache.restore.pages import Pages
from omlx_cache.restore.plan import Plan
from omlx_cache_storage.page import Page, PageId


def execute(
    plan: Plan,
    hot: Mapping[PageId, Page],
    pages: Pages,
    pool: ThreadPool,
    *,
    on_device: bool,
) -> dict[str, Array]:
    """Return the filled target arrays by tensor name, evaluated and owned.

    Blocks on the disk for pages that are not in `hot`. Raises PageFailed; nothing is left behind.
    """
    if on_device:
        return restore_on_device(plan, hot, pages, pool)
    return restore_on_host(plan, hot, pages, pool)
