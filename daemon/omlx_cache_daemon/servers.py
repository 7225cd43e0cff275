"""The running server that has a model and a directory, and others that use the directory."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import ProcessRow
from omlx_cache_daemon.client import Client, as_map
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.render import text
from omlx_cache_daemon.stores import process_of, running

if TYPE_CHECKING:
    from omlx_cache.settings import CacheSettings

_TIMEOUT_SECONDS = 5.0
_IDENTIFYING = ("block_size", "codec", "cold_codec")
"""Settings that are part of every namespace: with another one, pages are not found."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers requests at `url`; `client` is its control socket."""

    client: Client
    title: str
    url: str
    cold_dir: str | None


class Found(NamedTuple):
    """Servers that are as wanted; and why each other store that uses the directory is not."""

    servers: list[Server]
    others: list[str]


def find_servers(args: argparse.Namespace, wanted: "CacheSettings") -> Found:
    """Ask every running store for one with the model of a command line and these settings; without
    a model any server will do. One that does not answer is among the others."""
    found = Found([], [])
    for store in running():
        client = store.client(_TIMEOUT_SECONDS)
        try:
            info = process_of(client)
            theirs = as_map(client.call("config")).get("settings") if _url(info) else None
        except (CommandError, ControlError):
            found.others.append(
                f"process {store.pid} does not say what it is, and may use this directory"
            )
            continue
        cold_dir = info.cold_dir
        shares = cold_dir is not None and _same_place(cold_dir, str(wanted.cold_dir))
        if args.model and not shares:
            continue
        url, trouble = _url(info), _mismatch(info, theirs, args, wanted)
        title = text(info.title)
        if url is not None and not trouble:
            found.servers.append(Server(client, title, url, cold_dir))
        elif shares:
            found.others.append(f"{title} uses this directory, {trouble}")
    return found


def _mismatch(
    info: ProcessRow, theirs: object, args: argparse.Namespace, wanted: "CacheSettings"
) -> str:
    """Return in words why a store cannot prefill what is wanted, empty when it can."""
    service = info.service
    if not service:
        return "and is no server"
    if _url(info) is None:
        return "and does not listen yet"
    if not args.model:
        return "" if service.get("model") else "and has no model of its own"
    if args.model != service.get("model") and not _same_folder(args.model, service):
        return f"with the model {service.get('model')}"
    for name, mine in (("adapter", args.adapter_path), ("draft_model", args.draft_model)):
        if mine != service.get(name):
            return f"with {name.replace('_', ' ')} {service.get(name) or 'none'}"
    settings = theirs if isinstance(theirs, dict) else {}
    for name in _IDENTIFYING:
        setting = settings.get(name)
        value = setting.get("value") if isinstance(setting, dict) else None
        if value != getattr(wanted, name):
            return f"with {name}={value}"
    return ""


def _same_folder(model: str, service: Mapping[str, object]) -> bool:
    folder = service.get("folder")
    expanded = os.path.expanduser(model)
    return isinstance(folder, str) and os.path.isdir(expanded) and _same_place(folder, expanded)


def _same_place(one: str, two: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(two)


def _url(info: ProcessRow) -> str | None:
    url = info.service.get("url")
    return url if isinstance(url, str) else None
