"""The cells of a `bench-kv` report as text, and the report as JSON values."""

from __future__ import annotations

from dataclasses import asdict

from .kv_codecs import BenchReport, CodecRow

HEADERS = (
    "CODEC",
    "BYTES/TOKEN",
    "RATIO",
    "K MSE",
    "V MSE",
    "MAX ERR",
    "QK ERR",
    "SOFTMAX TV",
    "KL",
    "ENC GB/s",
    "DEC GB/s",
    "RESTORE GB/s",
)


def cells(row: CodecRow) -> tuple[str, ...]:
    """Return one row's cells in the order of HEADERS; a dash where nothing was measured."""
    found = row.quality
    return (
        row.codec,
        f"{row.bytes_per_token:.0f}",
        f"{row.ratio:.2f}",
        _error(found.key_mse),
        _error(found.value_mse),
        _error(found.max_error),
        _error(found.inner_error),
        _error(found.softmax_tv),
        _error(row.kl),
        _rate(row.encode_gbps),
        _rate(row.decode_gbps),
        _rate(row.restore_gbps),
    )


def footnote(report: BenchReport) -> str:
    """Return what the figures were measured on and what they mean, as one paragraph."""
    return (
        f"Measured on {report.device}; disk reads {report.disk_gbps:.2f} GB/s. Ratios are to KV as "
        "the model holds it. MSE is relative; QK ERR is the RMS error of query-key products over "
        "their RMS; SOFTMAX TV is the mean total variation of attention weights; KL is of "
        "next-token distributions, in nats. Rates count dense bytes; RESTORE reads from the disk, "
        "then decodes."
    )


def as_json(report: BenchReport) -> dict[str, object]:
    """Return the report as plain values, with the names of its dataclasses' fields."""
    return asdict(report)


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value else "0"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
