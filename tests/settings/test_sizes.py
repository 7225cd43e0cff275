import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache.settings.sizes import counted, duration, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4GiB", 4 * 2**30),
        ("512MB", 512 * 10**6),
        ("1.5 GiB", 3 * 2**29),
        (" 1048576 ", 1048576),
        ("2tib", 2**41),
        ("7 b", 7),
        ("0", 0),
        ("0.1KB", 100),
        (4e9, 4 * 10**9),
        (17, 17),
    ],
)
def test_a_size_is_parsed_exactly(text: object, count: int) -> None:
    assert parse_size(text) == count


def test_one_is_counted_without_a_plural() -> None:
    shown = [counted(count, "page") for count in (0, 1, 2, 1024)]
    assert shown == ["0 pages", "1 page", "2 pages", "1,024 pages"]


def test_a_short_duration_has_no_exponent() -> None:
    shown = [duration(seconds) for seconds in (0, 1e-7, 0.00006, 0.0003, 0.00323)]
    assert shown == ["0 s", "0 s", "0.00006 s", "0.0003 s", "0.00323 s"]


@pytest.mark.parametrize(
    "value",
    [
        *("4G", "-1", "GiB", "", "1.5", "1e9", "4 Gi B", "four", "٤GiB", "9PiBs", "99999999PiB"),
        *(-1, True, None, 1.5, float("nan"), float("inf"), b"4GiB", [4]),
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"size|unit|outside"):
        parse_size(value)


def test_sizes_are_shown_in_binary_units() -> None:
    shown = [format_size(n) for n in (0, 1023, 1024, 3 * 2**29, 10**9, 2**63)]
    assert shown == ["0 B", "1023 B", "1 KiB", "1.5 GiB", "953.67 MiB", "8192 PiB"]


@given(st.integers(0, 2**40).map(lambda n: n * 2**20))
def test_a_shown_size_can_be_set_again(count: int) -> None:
    assert parse_size(format_size(count)) == pytest.approx(count, rel=0.01)
