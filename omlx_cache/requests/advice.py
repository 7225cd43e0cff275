"""What a person can do about a reason. Takes plain values, which may come from another process."""

from omlx_cache.requests.words import Plain, parts

_ADVICE = {
    "diverged": "keep what changes (a date, an id) at the end of the prompt, not at its head",
    "rewritten": "only what comes before the last answer can match; see docs/why.md",
    "evicted": "a larger hot_bytes or cold_bytes keeps more; `omlx-cache stats` shows both",
    "model_changed": "nothing: the cache of one model is of no use to another",
    "settings_changed": "put the setting back, or delete the old pages: `omlx-cache prune`",
    "window_not_held": "a smaller snapshot_stride keeps more restore points",
    "snapshot_missing": "a smaller snapshot_stride keeps more restore points",
    "corrupt": "the page was forgotten; check the disk if it happens again",
    "unreadable": "check the disk: `omlx-cache stats` shows the cold tier's state",
    "deadline": "allow more: deadline= of the session",
    "slower_than_computing": "nothing to do: it is read again when that is quicker, and "
    "always with worth_reading=off",
    "remote_timeout": "`omlx-cache doctor --remote` measures the way there; more "
    "remote_lookup_seconds lets requests wait longer",
    "remote_unreachable": "see that the store runs and is reached: `omlx-cache doctor --remote`",
    "remote_denied": "check remote_password, the user in the address, and its rights: "
    "`omlx-cache doctor --remote`",
    "remote_throttled": "ask it less: remote_writes=reused or shared; or give it more to work with",
    "remote_failed": "`omlx-cache doctor --remote` says what it answers",
    "remote_resting": "nothing: it is tried again by itself; `omlx-cache stats` shows why, and "
    "`omlx-cache doctor --remote` what helps",
    "remote_lost": "more memory for the store (maxmemory), or fewer pages: remote_writes=reused or "
    "shared",
    "remote_foreign": "give all machines the same remote_secret and remote_encrypt, or this one a "
    "remote_prefix of its own",
    "absent": "set prompt_history_bytes to have prompts compared",
}


def advice(explanation: Plain) -> str:
    """Return what helps, "" where nothing has to."""
    reason = str(explanation.get("reason"))
    if reason == "new_text" and parts(explanation):
        return "nothing to do: another question after the same beginning"
    if reason == "not_stored":
        return _to_store(explanation)
    return _ADVICE.get(reason, "")


def _to_store(explanation: Plain) -> str:
    other, detail = explanation.get("other"), explanation.get("detail")
    if detail == "no_room":
        return (
            "a larger hot_bytes, queue_bytes or cold_bytes: the log names which, with `no_room`; "
            "`skips` in `omlx-cache stats` counts it"
        )
    if detail:
        return "`skips` in `omlx-cache stats` counts how often that happens"
    if explanation.get("other_state") == "computing":
        return f"ask again when request {other} is done"
    return "ask again: what is computed now is stored, unless it is cut off too"
