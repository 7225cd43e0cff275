"""The settings of the remote tier, and what a store is opened with for them."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from omlx_cache.settings.machine import IN_FILE, expand, names_file, read_secret
from omlx_cache.settings.names import ConfigError
from omlx_cache.settings.values import Allowed, lower, said
from omlx_cache_storage.remote.address import FORMS, RemoteAddress, parse_address
from omlx_cache_storage.remote.engine import ExtraMissing, RemoteOptions, check_extra
from omlx_cache_storage.remote.envelope import RemoteKeys

OWN, ANY = "own", "any"
READS_LAST = 4
"""A restore waits so many times as long for bytes as a request for a lookup: pages are larger."""


def _address(value: object) -> object:
    if isinstance(value, RemoteAddress):
        return value
    url = said(value)
    return url if url == "off" else parse_address(url)


def _secret(value: object) -> object:
    secret = said(value)
    if names_file(secret.strip()):
        return f"{IN_FILE}{expand(secret.strip()[len(IN_FILE) :], Path.home())}"
    return secret if secret == "off" else SecretStr(secret)


def _kind(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else ""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
        raise ValueError("not such a text")
    return text.lower() if text.lower() in (OWN, ANY) else text


Secret = Annotated[str | SecretStr, BeforeValidator(_secret), Allowed("off, a text, or file:PATH")]


class RemoteSettings(BaseSettings):
    """Where machines share what they computed, and how."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    remote: Annotated[
        Literal["off"] | RemoteAddress,
        BeforeValidator(_address),
        # Whoever writes settings down writes no password down.
        PlainSerializer(str),
        Allowed(f"off, or {FORMS}"),
    ] = "off"
    """The URL of a remote store: machines that share it restore what one of them has computed.
    Needs the extra `remote`. No command shows a password in the URL; `remote_password` keeps it out
    of the URL. The names of all values begin with `prefix=` of the URL's query (default
    `omlx-cache`), so other programs can use the store too. In Valkey or Redis a value lives `ttl=`
    seconds (default 604800, a week; 0: until it is evicted or deleted). Object stores have
    lifecycle rules instead. See docs/remote.md."""

    remote_password: Secret = "off"
    """The store's password, instead of the one in the URL. `file:PATH` names a file that only this
    user can read, with the password in its first line. No command shows the password, and a flag
    takes only `file:PATH`."""

    remote_secret: Secret = "off"
    """A secret of at least 16 characters that authenticates each page: somebody who can write to
    the store, but lacks the secret, cannot plant a page. All machines have the same secret, or
    none. `file://` needs one. Make one with `openssl rand -hex 32`. `file:PATH` names a file that
    only this user can read, with the secret in its first line."""

    remote_encrypt: bool = False
    """Encrypt pages with a key made from the secret (AES-256-GCM) before they leave this machine,
    since keys and values reveal the prompt. All machines need the same value. The rate is about a
    gigabyte a second."""

    remote_writes: Annotated[
        Literal["all", "reused", "shared", "off", "service"], BeforeValidator(lower)
    ] = "all"
    """Which pages are sent to the store, after the request. `all` sends every page. `reused` sends
    those that a later request restored. `shared` sends the common beginnings of prompts, such as
    system prompts and tool lists. `off` sends none: this machine only reads. With `service`
    `omlx-cached` sends pages for all processes of the directory."""

    remote_lookup_seconds: float = Field(0.5, ge=0.001, le=60)
    """How long a request waits at most for the store's lookup. A restore waits four times as long
    for the next bytes. Then the rest is computed, and the tier backs off from the store."""

    remote_architecture: Annotated[
        str, BeforeValidator(_kind), Allowed(f"{OWN}, {ANY}, or a name for a kind of machine")
    ] = OWN
    """Which machines share pages, on this disk and in the store. `own`: machines whose processor or
    GPU is of the same kind, since others compute other bits. `any`: all machines with `any`. A
    name: all machines with that name. Part of every key: with another value the cache begins
    empty."""

    def architecture(self, own: str) -> str:
        """Return what stands for this machine's kind in keys; `own` is what MLX says of it."""
        return own if self.remote_architecture == OWN else self.remote_architecture

    def remote_options(self, own: str, *, has_zstd: bool = False) -> RemoteOptions | None:
        """Return what a remote tier is opened with on a machine of a kind, None with `remote=off`.
        With zstd dense pages are packed for the way. Reads the files with secrets. Raises
        ConfigError for what cannot work."""
        if self.remote == "off":
            return None
        address, given = self.remote, self._secret_of("remote_secret")
        secret = None if given is None else given.encode()
        try:
            RemoteKeys(secret, encrypts=self.remote_encrypt)
        except ValueError as error:
            raise ConfigError(f"remote_secret: {error}") from None
        if address.kind == "file" and secret is None:
            raise ConfigError(
                "remote: a directory that others can write to is shared only with a secret: set "
                "remote_secret on each machine (openssl rand -hex 32)"
            )
        try:
            check_extra(address, signs=secret is not None)
        except ExtraMissing as error:
            raise ConfigError(f"remote: {error}") from None
        kind = re.sub(r"[^A-Za-z0-9._-]+", "-", self.architecture(own)).strip("-") or "unknown"
        return RemoteOptions(
            url=str(address),
            architecture=kind,
            password=self._secret_of("remote_password"),
            secret=secret,
            encrypts=self.remote_encrypt,
            prefix=address.prefix,
            ttl_seconds=address.ttl_seconds,
            lookup_seconds=self.remote_lookup_seconds,
            read_seconds=READS_LAST * self.remote_lookup_seconds,
            packs=has_zstd,
        )

    def remote_notes(self) -> list[str]:
        given = self.model_fields_set & set(RemoteSettings.model_fields)
        return [
            f"{name} has no effect: remote is off"
            for name in sorted(given - {"remote", "remote_architecture"})
            if self.remote == "off"
        ]

    def _secret_of(self, name: str) -> str | None:
        given: SecretStr | str = getattr(self, name)
        if isinstance(given, SecretStr):
            return given.get_secret_value()
        return None if given == "off" else read_secret(Path(given.removeprefix(IN_FILE)), name)
