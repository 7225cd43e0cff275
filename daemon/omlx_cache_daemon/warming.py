"""The prompts of a file, prefilled by a server, a running one or one of our own: each is a request
for a token."""

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import ProcessRow
from omlx_cache.settings.names import SOCKET_VARIABLE, variable
from omlx_cache.settings.sizes import LONGEST_WAIT
from omlx_cache_daemon.client import Client, as_answer, as_map, count_of
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.render import text
from omlx_cache_daemon.stores import running
from omlx_cache_storage.stats import Stats

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


def find_servers(
    args: argparse.Namespace, wanted: "CacheSettings"
) -> tuple[list[Server], list[str]]:
    """Return the running servers with the model of a command line and these settings, and why each
    other store that uses the directory is none; without a model any server will do. One that does
    not answer is among the others."""
    servers, others = list[Server](), list[str]()
    for store in running():
        client = store.within(_TIMEOUT_SECONDS)
        try:
            info = client.process()
            theirs = as_map(client.call("config")).get("settings") if _url(info) else None
        except (CommandError, ControlError):
            others.append(
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
            servers.append(Server(client, title, url, cold_dir))
        elif shares:
            others.append(f"{title} uses this directory, {trouble}")
    return servers, others


def _mismatch(
    info: ProcessRow, theirs: object, args: argparse.Namespace, wanted: "CacheSettings"
) -> str:
    """Return in words why a store cannot prefill the prompts, empty when it can."""
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


_UNLIMITED = ("--max-body-bytes", "1TiB", "--max-prompt-tokens", str(10**12))
_REQUEST_SECONDS = 3600.0
"""How long one prompt may be waited for, the requests before it in the server included."""

_FLUSH_SECONDS = 600.0
_FLUSH_STEP_SECONDS = 2.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


Prompt = Mapping[str, Any]
"""What is asked of a server: `messages` and `tools`, or a `prompt`, which is text."""
_BODY: Prompt = {"model": "default_model", "max_tokens": 1, "temperature": 0.0}


@dataclass(frozen=True, slots=True)
class WarmReport:
    """The result of a run. `warm_prompts` needed nothing, but a server computes a token of each.

    `stored_bytes` were written to the cold tier meanwhile; `durable` says that nothing is missing;
    `server` is the running one that did it, None without.
    """

    prompts: int
    warm_prompts: int
    computed_tokens: int
    stored_bytes: int
    cold_dir: str | None
    durable: bool
    server: str | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a file: JSON Lines when its name ends so, else one raw text.

    A line is a chat (`{"messages": [...], "tools": [...]}`, or the list alone) or a text
    (`{"prompt": "..."}`, `{"text": "..."}`, or the string alone). Raises CommandError
    for a line that is none, and OSError.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8 text: {error}") from None
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        return [{"prompt": content}] if content else []
    lines = enumerate(content.splitlines(), 1)
    return [_prompt(line, f"{path}, line {number}") for number, line in lines if line.strip()]


def _prompt(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        # Not only text that is no JSON: a number of thousands of digits, or lists without end.
        raise CommandError(f"{where}: a line is a JSON request or text: {error}") from None
    if isinstance(value, str):
        value = {"text": value}
    elif isinstance(value, list):
        value = {"messages": value}
    if isinstance(value, dict):
        text = value.get("prompt", value.get("text"))
        if isinstance(text, str) and text:
            return {"prompt": text}
        messages = value.get("messages")
        if (
            isinstance(messages, list)
            and messages
            and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages)
        ):
            if all(message["role"] == "system" for message in messages):
                # The shared part of chats with this beginning ends where a user's words begin.
                messages = [*messages, {"role": "user", "content": "x"}]
            return {"messages": messages, "tools": value.get("tools") or []}
    raise CommandError(f"{where}: neither a chat (messages) nor a text (prompt, text)")


@contextmanager
def serving(arguments: Sequence[str], settings: Mapping[str, object]) -> Iterator[int]:
    """Run `omlx-cache serve` while the block runs, which begins once it listens; yield its process
    id. Raises SystemExit when it does not start: why, it says itself on standard error."""
    given = {
        variable(name): "1" if value is True else str(value) for name, value in settings.items()
    }
    # Nothing else waits for this process, so no write needs to be dropped.
    wait = {variable("commit_wait_seconds"): str(LONGEST_WAIT), SOCKET_VARIABLE: "auto"}
    command = [sys.executable, "-m", "omlx_cache_daemon", "serve", "--port", "0", *_UNLIMITED]
    with subprocess.Popen(
        [*command, "--log-level", "ERROR", *arguments],
        env={**os.environ, **wait, **given},
        stdout=subprocess.PIPE,
    ) as server:
        try:
            if server.stdout is None or not server.stdout.readline():
                raise SystemExit(server.wait())
            yield server.pid
        finally:
            server.terminate()


def warm_through(
    server: Server,
    prompts: Sequence[Prompt],
    template: Mapping[str, object],
    progress: Callable[[int], None],
) -> WarmReport:
    """Have a server prefill prompts, one after the other, and wait until all is on its disk.

    `progress` takes how many are done. Raises CommandError when one is refused, or the server
    goes.
    """
    written = _written_bytes(server)
    usages, options = [], {"chat_template_kwargs": dict(template)} if template else {}
    for number, prompt in enumerate(prompts, 1):
        body = {**_BODY, **prompt, **(options if "messages" in prompt else {})}
        usages.append(_ask(server, body, f"prompt {number}"))
        progress(number)
    durable = _flushed(server)
    return WarmReport(
        len(prompts),
        sum(cached >= tokens - 1 for tokens, cached in usages),
        sum(tokens - cached for tokens, cached in usages),
        max(0, _written_bytes(server) - written),
        server.cold_dir,
        durable,
        server.title,
    )


def _ask(server: Server, body: Mapping[str, object], what: str) -> tuple[int, int]:
    parts = urlsplit(server.url)
    host = _EVERYWHERE.get(parts.hostname or "", parts.hostname or "")
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    connection = http.client.HTTPConnection(host, parts.port, timeout=_REQUEST_SECONDS)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(f"{what}: {server.title} at {server.url}: {error}") from error
    finally:
        connection.close()
    try:
        said = json.loads(content)
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    usage = said.get("usage")
    if answer.status != http.client.OK or not isinstance(usage, dict):
        raise CommandError(f"{what}: {server.title} answered {answer.status}: {said.get('error')}")
    details = usage.get("prompt_tokens_details")
    cached = count_of(details, "cached_tokens") if isinstance(details, dict) else 0
    return count_of(usage, "prompt_tokens"), cached


def _flushed(server: Server) -> bool:
    """Wait until the server's stored pages are on its disk; False when that fails, or takes too
    long. In steps, since each answer must come in time."""
    deadline = time.monotonic() + _FLUSH_SECONDS
    while True:
        if as_map(server.client.call("flush", timeout=_FLUSH_STEP_SECONDS)).get("durable") is True:
            return True
        if not server.client.process().pending.pages or time.monotonic() > deadline:
            return False


def _written_bytes(server: Server) -> int:
    writer = as_answer(Stats, server.client.call("stats")).writer
    return 0 if writer is None else writer.written_bytes
