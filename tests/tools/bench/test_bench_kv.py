import html.parser
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kit.examples import some
from kit.output import check_output
from kit.recall.model import draw, load
from omlx_cache.tools.bench.kv_codecs import ROW_NAMES, BenchReport, CodecRow, SampleReport, measure
from omlx_cache.tools.bench.kv_data import synthetic_samples
from omlx_cache.tools.bench.kv_html import render_html
from omlx_cache.tools.bench.kv_metrics import mean_kl
from omlx_cache.tools.bench.kv_model import ModelProbe
from omlx_cache.tools.bench.kv_timing import restore_rate

LOSSLESS = {"dense", "zstd"}


@cache
def report() -> BenchReport:
    samples = synthetic_samples(2, 300, 128, mx.bfloat16)
    measured = [measure(sample.name, [sample], ROW_NAMES, 2.0) for sample in samples]
    return BenchReport("a device", 2.0, tuple(measured))


def rows(index: int) -> dict[str, CodecRow]:
    return {row.codec: row for row in report().samples[index].rows}


@pytest.mark.nightly
def test_every_codec_is_measured_and_only_lossless_ones_have_no_error() -> None:
    for sample in report().samples:
        assert [row.codec for row in sample.rows] == list(ROW_NAMES)
        for row in sample.rows:
            errors = (row.quality.key_mse, row.quality.max_error, row.quality.softmax_tv)
            assert all((error == 0) is (row.codec in LOSSLESS) for error in errors)


def test_sizes_are_those_of_the_format_against_sixteen_bits() -> None:
    found = {name: (row.bytes_per_token, row.ratio) for name, row in rows(0).items()}
    dense = 2 * 2 * 128 * 2
    bits = {"dense": 16, "affine8": 8.5, "k8v4": 6.5, "affine4": 4.5, "turbo4": 4.125}
    for name, per_element in bits.items():
        size = dense * per_element / 16
        assert found[name] == (pytest.approx(size), pytest.approx(dense / size))
    assert 1.3 < found["zstd"][1] < 1.6


def test_loud_channels_hurt_group_quantisation_more_than_turboquant() -> None:
    plain, loud = rows(0), rows(1)
    assert loud["affine4"].quality.key_mse > 2 * plain["affine4"].quality.key_mse
    assert loud["turbo4"].quality.key_mse < 1.2 * plain["turbo4"].quality.key_mse
    assert loud["turbo4"].quality.softmax_tv < loud["affine4"].quality.softmax_tv
    assert loud["affine8"].quality.softmax_tv < loud["turbo4"].quality.softmax_tv


def test_restore_rate_adds_the_time_to_read_and_to_decode() -> None:
    assert restore_rate(2.0, 1.0, None) == 2.0
    assert restore_rate(2.0, 4.0, 8.0) == pytest.approx(4.0)
    row = rows(0)["affine4"]
    assert row.decode_gbps is not None
    assert row.restore_gbps == pytest.approx(1 / (1 / (2.0 * row.ratio) + 1 / row.decode_gbps))


def test_divergence_of_equal_logits_is_zero_and_of_others_is_known() -> None:
    logits = mx.array([[0.0, 0.0], [1.0, -1.0]])
    assert mean_kl(logits, logits + 5) == pytest.approx(0.0, abs=1e-6)
    true, other = mx.log(mx.array([[0.5, 0.5]])), mx.log(mx.array([[0.9, 0.1]]))
    expected = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert mean_kl(true, other) == pytest.approx(expected, rel=1e-5)


@cache
def model_report() -> SampleReport:
    task = draw(np.random.default_rng(3), 1, 130, 32)
    tokens = np.concatenate([task.contexts[0], task.questions[0].reshape(-1)])
    probe = ModelProbe(load(mx.bfloat16), tokens.tolist())
    return measure(
        "recall",
        probe.samples(),
        ("dense", "affine8", "turbo4", "turbo2"),
        2.0,
        divergence=probe.divergence,
    )


@pytest.mark.nightly
def test_models_own_kv_and_queries_are_measured_with_their_effect_on_logits() -> None:
    found = {row.codec: row for row in model_report().rows}
    assert (model_report().layers, model_report().tokens) == (2, 260)
    assert found["dense"].kl == 0.0
    assert all(row.quality.softmax_tv is not None for row in found.values())
    kl = [found[name].kl for name in ("affine8", "turbo4", "turbo2")]
    assert 0 < kl[0] < kl[1] < kl[2]


def test_prompt_too_short_for_a_continuation_is_refused() -> None:
    with pytest.raises(ValueError, match="128"):
        ModelProbe(load(), list(range(100)))


def test_row_that_does_not_fit_is_left_out_with_a_reason() -> None:
    (sample, _) = synthetic_samples(1, 16, 80, mx.float32)
    found = measure("odd", [sample], ("dense", "affine8", "turbo4", "zstd"), 1.0)
    assert [row.codec for row in found.rows] == ["dense", "turbo4"]
    assert [line.partition(":")[0] for line in found.skipped] == ["affine8", "zstd"]


class Tags(html.parser.HTMLParser):
    """Collects start tags and whatever an attribute would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.fetched: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_html_report_is_self_contained_with_plots_that_parse() -> None:
    page = render_html(report())
    tags = Tags()
    tags.feed(page)
    assert tags.fetched == []
    assert not {"script", "link", "img", "iframe"} & set(tags.names)
    assert "url(" not in page
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 2 * len(report().samples)
    for plot in plots:
        ET.fromstring(plot)
    scatter = ET.fromstring(plots[0])
    assert len(scatter.findall("circle")) == len(ROW_NAMES) - len(LOSSLESS)
    places = [(float(c.get("cx", -1)), float(c.get("cy", -1))) for c in scatter.findall("circle")]
    assert all(70 <= x <= 560 and 20 <= y <= 260 for x, y in places)


def test_text_in_the_html_report_is_escaped() -> None:
    sample = report().samples[0]
    hostile = SampleReport(
        "<script>x</script>", 1, 1, 128, 1, "bfloat16", sample.rows, ("<b>: no",)
    )
    page = render_html(BenchReport("<i>", 1.0, (hostile,)))
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<i>" not in page


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", "bench-kv", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


SMALL = ("--tokens", "64", "--heads", "1", "--codecs", "dense,affine8", "--disk-gbps", "2")


@pytest.mark.nightly
def test_command_prints_json_and_writes_html(tmp_path: Path) -> None:
    done = command(*SMALL, "--format", "json", "--html", str(tmp_path / "report.html"))
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check_output("bench-kv", found)
    assert [s["name"] for s in found["samples"]] == ["plain", "outlier channels"]
    row = found["samples"][0]["rows"][1]
    assert (row["codec"], row["bytes_per_token"]) == ("affine8", 272.0)
    assert row["quality"]["softmax_tv"] > 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_command_prints_a_table_with_a_measured_disk(tmp_path: Path) -> None:
    done = command(*SMALL[:-2], "--disk-dir", str(tmp_path))
    assert done.returncode == 0
    assert "SOFTMAX TV" in done.stdout
    assert "disk reads" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    some(
        [
            (("--codecs", "turbo5"), "turbo5"),
            (("--dense-last", "-1"), "negative"),
            (("--disk-dir", "/nonexistent"), "nonexistent"),
            (("--prompt-file", "/nonexistent", "--disk-gbps", "2"), "nonexistent"),
        ],
        (("--codecs", "turbo5"), "turbo5"),
    ),
)
def test_command_refuses_wrong_options_in_one_line(arguments: tuple[str, ...], word: str) -> None:
    done = command(*arguments)
    assert done.returncode != 0
    assert word in done.stderr
    assert "Traceback" not in done.stderr
