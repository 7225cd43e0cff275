"""`omlx-cache why` as a person sees it."""

import json

from .conftest import Cli, StartStore


def test_why_says_it_in_one_line_and_what_helps(cli_process: Cli, start_store: StartStore) -> None:
    start_store()
    result = cli_process("why", TZ="UTC")
    assert (result.code, result.err) == (0, "")
    head, words, helps = result.out.splitlines()
    assert head == "request 3 (1970-01-01 00:00, m)"
    assert words == (
        "  Request 3 restored 5,132 of 48,211 tokens (5,132 from SSD, 0.4 s). 43,079 were not: it "
        "differs from request 2 at token 5,133, here: `...Today is\\x1b[31m 2026-11-21`, there: "
        "`...Today is\\n2026-11-20`. The text after that is the same. It computed 43,079 in 31 s."
    )
    assert helps.startswith("  what helps: ")


def test_why_as_json_is_what_the_store_knows(cli: Cli, start_store: StartStore) -> None:
    start_store()
    (request,) = json.loads(cli("why", "3", "--format", "json").out)["requests"]
    assert (request["explanation"]["position"], request["number"]) == (5132, 3)
    unknown = cli("why", "99")
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err.startswith("omlx-cache: there is no request 99 among the latest")
    assert cli("why", "3", "--last", "2").code == cli("why", "0").code == 2


def test_of_several_stores_the_latest_request_counts(cli: Cli, start_store: StartStore) -> None:
    one, two = start_store(), start_store("two")
    assert len(json.loads(cli("why", "--format", "json").out)["requests"]) == 1
    told = cli("why", "3")
    told.assert_refused(2, f"omlx-cache why 3 --pid {one.pid}")
    assert f"omlx-cache why 3 --pid {two.pid}" in told.err
    assert cli("why", "3", "--pid", one.pid).code == 0
    assert cli("why", "99").code == 1
