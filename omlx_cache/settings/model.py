"""`CacheSettings`: every setting, read from `OMLX_CACHE_*` variables and keyword arguments."""

import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    SkipValidation,
    ValidationError,
)
from pydantic import ValidationInfo as Info
from pydantic_core import PydanticCustomError
from pydantic_settings import SettingsConfigDict

from omlx_cache.codecs.identity import CodecName
from omlx_cache.control.socket_paths import check_length
from omlx_cache.settings.derived import (
    ANSWER_SECONDS,
    DERIVED,
    cold_share,
    derive,
    free_share,
)
from omlx_cache.settings.machine import AUTO, Machine, directory_trouble, expand, is_auto, probe
from omlx_cache.settings.names import (
    PREFIX,
    REMOVED,
    SETTING_NAMES,
    refuse_unknown,
    take_over,
    variable,
)
from omlx_cache.settings.remote import RemoteSettings
from omlx_cache.settings.sizes import (
    LONGEST_WAIT,
    SIZE_FORMS,
    SMALLEST_COLD_BYTES,
    SMALLEST_HOT_BYTES,
    format_size,
    parse_budget,
)
from omlx_cache.settings.values import (
    CONSEQUENCE,
    Allowed,
    OriginKind,
    SettingSource,
    config_error,
    lower,
    render,
    said,
)
from omlx_cache_storage.io_threads import within


def _derive(info: Info) -> Any:
    try:
        return derive(str(info.field_name), info.data).value
    except KeyError:
        # A value that this one is derived from has been refused; that refusal is what counts.
        raise PydanticCustomError(CONSEQUENCE, "derived from a refused value") from None


def _size(value: object, info: Info) -> Any:
    if is_auto(value):
        return _derive(info)
    return parse_budget(value, _SMALLEST.get(str(info.field_name), 0))


def _directory(value: Any, info: Info) -> Any:
    return _derive(info) if is_auto(value) else expand(value, info.data["machine"].home)


def _socket(value: Any, info: Info) -> Any:
    word = lower(value)
    if word in (AUTO, "off"):
        return word
    return check_length(expand(value, info.data["machine"].home))


def _trace(value: Any, info: Info) -> Any:
    is_off = not isinstance(value, Path) and said(value) == "off"
    return "off" if is_off else expand(value, info.data["machine"].home)


def _status(value: object) -> object:
    word = ("off", "on")[value] if isinstance(value, bool) else lower(value)
    if word in ("on", "off"):
        return word
    # `int` reads signs, spaces and underscores too.
    if not re.fullmatch(r"[0-9]{1,5}", str(word)) or not 1 <= int(str(word)) <= 65535:
        raise ValueError("neither a switch nor a port")
    return int(str(word))


def _token(value: object) -> object:
    token = said(value)
    if token == "off":
        return token
    if not 8 <= len(token) <= 256 or not all("!" <= character <= "~" for character in token):
        raise ValueError(f"a text of {len(token)} characters")
    return SecretStr(token)


Size = Annotated[int, BeforeValidator(_size), Allowed(f"{SIZE_FORMS}, or auto")]
Directory = Annotated[Path, BeforeValidator(_directory), Allowed("a directory, or auto")]
_DERIVED: Any = AUTO
_SMALLEST = {"hot_bytes": SMALLEST_HOT_BYTES, "cold_bytes": SMALLEST_COLD_BYTES}
_OF_THE_DISK = ("cold_dir", "cold_bytes", "min_free_bytes", "daily_write_bytes", "queue_bytes")


class CacheSettings(RemoteSettings):
    """What a store is granted and how it behaves. Immutable once made; makes no directory.

    Every field is a keyword argument and an `OMLX_CACHE_*` variable; the argument wins. Raises
    ConfigError, a ValueError, for a bad value and for a name that does not exist.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
    )

    machine: SkipValidation[Machine] = Field(default_factory=probe, exclude=True, repr=False)
    """What defaults are derived from: this machine, unless a test says otherwise."""

    block_size: int = Field(256, ge=16, le=4096)
    """Tokens in a block. Smaller blocks share more of two prompts; larger ones cost less
    bookkeeping. Part of every key: a cache made with another size is not found."""

    hot_bytes: Size = Field(_DERIVED)
    """Budget of the hot tier: live arrays in this process, pending pages included. 0 means no hot
    tier: memory holds pending pages only, within `queue_bytes`. A conversation is then in memory
    once while it is computed, and its next turn is read from the disk. The disk limits the length
    of a sequence, not this."""

    hot_cache_only: bool = False
    """Keep all pages in memory: no directory is made, no writer runs, an evicted page is lost.
    Settings of the cold tier are then ignored."""

    cold_dir: Directory = Field(_DERIVED)
    """The directory of the cold tier. A store makes it with mode 0700. An existing one must be this
    user's. One that others may write to gets this mode if it is empty; else nothing is stored on
    disk, and the state in `stats` says what to do. A disk without owners or modes (exFAT, some
    network mounts) must be mounted for this user with mode 0700. The directory above must exist,
    except for the default: a store waits for a disk that is not mounted yet or went away. See
    docs/operations.md. Backups that know `CACHEDIR.TAG` leave the directory out, and a store that
    makes it tells Time Machine to."""

    cold_bytes: Size = Field(_DERIVED)
    """Disk budget of the files of the cold directory, temporary ones included. A directory has one
    budget for all its processes: the value of the first process, which stays while others use the
    directory. A later process with a smaller value writes only while the directory holds less, and
    deletes nothing for it; one with a larger value changes nothing. A process that is alone sets
    its own value, unless `omlx-cache quota` has set one. A derived value limits no other process,
    and a given one replaces it. See docs/operations.md."""

    min_free_bytes: Size = Field(_DERIVED)
    """Free space that the cold tier leaves on its disk, whatever `cold_bytes` says. Unless it is 0,
    the tier also leaves some files (inodes): a hundredth of the disk's, at most 1,024."""

    write_policy: Annotated[Literal["through", "lazy"], BeforeValidator(lower)] = "through"
    """When a page is written to the disk. `through`: as soon as it is stored. `lazy`: before the
    hot tier evicts it, after a minute without requests, or five minutes after it was stored; a
    superseded page is never written. A killed process loses the pages that it has not written.
    `flush` and `close` write all of them."""

    daily_write_bytes: Size = Field(0)
    """Bytes that all processes that set this may write to `cold_dir` in 24 hours; 0 means no limit.
    Beyond the limit pages stay in memory only and count as rationed, and `flush` returns False.
    docs/operations.md computes a value from the endurance of an SSD."""

    queue_bytes: Size = Field(_DERIVED)
    """Bytes that may be pending, at most `hot_bytes` unless that is 0. Blocks that do not fit are
    stored a little later, the last ones within `commit_wait_seconds`."""

    commit_wait_seconds: float = Field(2.0, ge=0, le=LONGEST_WAIT)
    """How long a sequence's last commit may wait for the writer when neither memory nor the queue
    has room, and while the writer progresses. Then it drops the deep end and counts it. Blocks
    stored during prefill and decode never wait."""

    worth_reading: Annotated[Literal["auto", "off"], BeforeValidator(lower)] = "auto"
    """Whether a restore reads pages that take longer to read than to compute. `auto` compares the
    latest reads with the model's prefill. It computes where that is at least 1.25 times faster
    (reason `slower_than_computing`); one such restore in eight reads all the same. Before three
    reads and a prefill every page is read. `off` always reads. Pages in memory are always used."""

    prepare: Annotated[Literal["auto", "off"], BeforeValidator(lower)] = "auto"
    """Whether a server computes the beginning of a conversation's next prompt while it has no
    request. `auto`: `serve` does so after each whole answer to a request with tools or with earlier
    answers, for the latest conversation first. It computes at most 4,096 tokens after a tool call,
    else 32,768. A request waits for one chunk at most, a tenth of a second or 256 tokens, and
    restores what was computed by then. Prepared pages evict only pages that the disk has, are
    evicted first, and reach the disk once a request uses them. Nothing is prepared with a draft
    model, behind a prefix that `--kv-bits` has not packed yet, while memory is short, where the
    smallest chunk takes half a second, where the restore before it takes longer than it saves, on a
    battery, or in Low Power Mode (asked of `pmset`, not tried on a Mac). Waiting conversations are
    dropped after ten minutes, and by a deletion. After five preparations in a row without a request
    for them, one is tried in ten minutes. `off`: nothing is prepared."""

    durability: Annotated[Literal["none", "fsync", "full"], BeforeValidator(lower)] = "fsync"
    """How a file is synced before it is published. On macOS `full` also empties the drive's own
    cache (F_FULLFSYNC); elsewhere it means `fsync`. After simulated power cuts more than half of
    the flushed sequences were lost with `none`, and none with `fsync` or `full`; no level restored
    wrong bytes. With any of them flushed pages survive the end of the process (docs/reliability.md;
    `omlx-cache bench` measures the cost)."""

    codec: Annotated[CodecName, BeforeValidator(lower)] = "dense"
    """How pages are encoded in both tiers. Part of every namespace."""

    cold_codec: Annotated[Literal[CodecName, "zstd"], BeforeValidator(lower)] = "dense"
    """How pages are encoded on disk only, on top of `codec`."""

    min_quantize_tokens: int = Field(256, ge=0)
    """Sequences shorter than this many tokens stay dense whatever `codec` says."""

    snapshot_stride: int = Field(2048, ge=1)
    """Tokens between the regular restore points of models with windows or recurrent state, rounded
    to blocks by the policy."""

    trace: Annotated[
        Literal["off"] | Path, BeforeValidator(_trace), Allowed("off, or a path of a file")
    ] = "off"
    """A file that gets a line for each request, for `omlx-cache simulate`: its time, its counts of
    tokens, and digests of its blocks, salted anew by each process. It has no text and no tokens,
    mode 0600, and at most 256 MiB. See docs/reuse.md."""

    socket: Annotated[
        Literal["auto", "off"] | Path,
        BeforeValidator(_socket),
        Allowed("auto, off, or a path of at most 103 bytes"),
    ] = "auto"
    """The control socket that commands use: `auto` picks a name in the runtime directory, `off`
    opens none. With a socket or a status page the process remembers the tokens of recent prompts,
    in memory only. With neither, many miss reasons stay `absent`."""

    status: Annotated[
        Literal["on", "off"] | int,
        BeforeValidator(_status),
        Allowed("on, off, or a port from 1 to 65535"),
    ] = "off"
    """Whether a server has metrics (`/metrics`) and a status page (`/status`): `omlx-cache serve`
    at its own port, `omlx-cache run` at this port of 127.0.0.1, or with `on` at a free one that its
    log names. An application calls `store.serve_status()` instead. See docs/operations.md."""

    status_token: Annotated[
        Literal["off"] | SecretStr,
        BeforeValidator(_token),
        Allowed("off, or 8 to 256 visible ASCII characters without spaces"),
    ] = "off"
    """The token that clients of the status paths send as `Authorization: Bearer TOKEN`. With `off`
    only this machine gets answers. No command shows the token, and no flag takes it: others could
    read it in the list of processes."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(lower)
    ] = "warning"
    """The lowest level of messages that are logged. `serve` (default `info`) and `warm` show them
    on standard error; `serve --log-level` wins, and counts for other packages too. In an
    application a given value is the level of the loggers `omlx_cache` and `omlx_cache_storage`;
    handlers are the application's."""

    require: bool = False
    """Whether a server ends with an error when it cannot use this cache: it lacks a class or
    function that the cache needs, or the probe of an untested version fails. Otherwise it runs with
    its own cache, and a line of the log says so."""

    _given: dict[str, tuple[str, Any]] = PrivateAttr(default_factory=dict)
    _removed: list[str] = PrivateAttr(default_factory=list)

    def __init__(self, **arguments: Any) -> None:
        refuse_unknown(SETTING_NAMES, arguments.keys() - {"machine"}, os.environ)
        given = _collect(SETTING_NAMES, arguments, os.environ)
        removed = _collect(REMOVED, arguments, os.environ)
        known = {name: value for name, value in arguments.items() if name not in REMOVED}
        warnings = take_over(removed, given, known)
        try:
            super().__init__(**known)
        except ValidationError as error:
            raise config_error(
                error, type(self).model_fields, lambda name: given.get(name, (name, AUTO))
            ) from None
        self._given = given
        self._removed = warnings

    def sources(self) -> dict[str, SettingSource]:
        return {name: self._source(name) for name in SETTING_NAMES}

    @property
    def token(self) -> str | None:
        """The token of the status paths, None without one. Not to be shown."""
        return None if self.status_token == "off" else self.status_token.get_secret_value()

    def is_given(self, name: str) -> bool:
        return name in self._given

    def warnings(self) -> list[str]:
        return self.removals() + self.empty_budgets()

    def removals(self) -> list[str]:
        return list(self._removed)

    def notes(self) -> list[str]:
        found = [
            f"{self._given[name][0]} is ignored: hot_cache_only keeps everything in memory"
            for name in _OF_THE_DISK
            if self.hot_cache_only and self._source(name).kind in ("environment", "argument")
        ]
        found += self.warnings() + self.remote_notes()
        if self.token and self.status == "off":
            found.append("status_token opens nothing while status is off (--status of serve)")
        memory = self.machine.memory_bytes
        if self.hot_bytes > memory * 3 // 4:
            found.append(
                f"hot_bytes leaves little of the {format_size(memory)} "
                f"of {self.machine.memory_name} to the model"
            )
        return found + self.unusable_directory()

    def unusable_directory(self) -> list[str]:
        """Return why the cold directory, as it is now, will be refused. Reads the disk."""
        trouble = self.cold_dir_trouble()
        return [f"cold_dir: {trouble}, so nothing will be kept on disk"] if trouble else []

    def cold_dir_trouble(self) -> str:
        """Return why nothing can be kept in the cold directory, "" when it can, or need not."""
        if self.hot_cache_only:
            return ""
        # One that does not answer may do so later.
        return within(
            partial(directory_trouble, self.cold_dir), "omlx-cache-settings", ANSWER_SECONDS, ""
        )

    @property
    def makes_parents(self) -> bool:
        """True where a store makes the directories above the cold one too: the system's own place.
        Above every other one a disk may not be mounted."""
        return self.cold_dir == self.machine.default_cold_dir

    def empty_budgets(self) -> list[str]:
        empty = not (self.hot_bytes or self.queue_bytes)
        if self.hot_cache_only:
            return ["hot_bytes is 0 and hot_cache_only is set: nothing will be kept"] * empty
        if self.cold_bytes < SMALLEST_COLD_BYTES:
            size = format_size(self.cold_bytes)
            return [
                f"the disk of {self.cold_dir} leaves the cache no room ({size}): pages that are "
                "there are restored, and new ones written in their place only; `omlx-cache "
                "doctor` looks at it"
                if self.is_derived("cold_bytes")
                else f"cold_bytes ({size}) has no room for a file: nothing will be kept on disk"
            ]
        return ["queue_bytes and hot_bytes are 0: nothing will be kept"] * empty

    def cold_budget(self, used_bytes: int) -> int:
        """Return the cold budget of a directory that already holds `used_bytes`.

        A derived budget is a share of free disk; counting the cache's own files as free keeps it
        from shrinking at every restart. Where others fill the disk, it is as much as is stored,
        without the bytes that the disk lacks.
        """
        if self.hot_cache_only or not self.is_derived("cold_bytes"):
            return self.cold_bytes
        free = self.machine.disk(self.cold_dir).free
        lacking = max(0, self.least_free() - free)
        return max(cold_share(free, used_bytes), used_bytes - lacking)

    def least_free(self) -> int:
        if self.hot_cache_only or not self.is_derived("min_free_bytes"):
            return self.min_free_bytes
        return free_share(self.machine.disk(self.cold_dir).total)

    def is_derived(self, name: str) -> bool:
        return name in DERIVED and is_auto(self._given.get(name, (name, AUTO))[1])

    def _source(self, name: str) -> SettingSource:
        value, detail = getattr(self, name), ""
        kind: OriginKind = "default"
        if self.is_derived(name):
            kind, detail = "derived", derive(name, self.__dict__).how
        elif name in self._given:
            shown = self._given[name][0]
            kind = "environment" if shown.startswith(PREFIX) else "argument"
            detail = "" if shown == name else shown
        return SettingSource(name, value, render(name, value), kind, detail)


def _collect(
    names: Iterable[str], arguments: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, tuple[str, Any]]:
    from_environment = {
        name: (variable(name), environ[variable(name)])
        for name in names
        if variable(name) in environ
    }
    from_arguments = {name: (name, arguments[name]) for name in names if name in arguments}
    return {**from_environment, **from_arguments}
