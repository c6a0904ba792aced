"""Quotas as `memtide admin quota` and `memtide status` show them, and as users write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memtide._daemon.inspection import QuotaUse
from memtide._util.sizes import format_size, parse_size
from memtide.errors import UsageError

# The fields of Quota (proto/memtide/v1/quota.proto), as `memtide admin quota set` names them.
KEYS = {
    "device": "device_bytes",
    "host": "host_bytes",
    "ssd": "ssd_bytes",
    "jobs": "jobs",
    "lingering": "lingering_bytes",
    "lingering-hours": "lingering_seconds",
    "ssd-written-per-day": "ssd_written_per_day_bytes",
}
_UNLIMITED = "none"


def quota_line(quota: QuotaUse) -> str:
    """The use of a quota, by limit; empty where nothing of it is used."""
    if not quota.used["jobs"] and not quota.exceeded:
        return ""
    parts = [f"{key} {cell(quota, key)}" for key, name in KEYS.items() if name in quota.limits]
    by_default = " (by default)" if quota.is_default else ""
    return f"quota of {quota.subject}{by_default}: {', '.join(parts) or 'no limit'}"


def cell(quota: QuotaUse, key: str) -> str:
    """The use of one limit: "3 of 4"."""
    name = KEYS[key]
    if name not in quota.limits:
        return "-"
    limit = _format(key, quota.limits[name])
    if key == "lingering-hours":
        return f"at most {limit}"
    over = ", over quota" if name in quota.exceeded else ""
    return f"{_format(key, quota.used[name])} of {limit}{over}"


def limits_line(quota: Mapping[str, Any]) -> str:
    """The limits of a Quota in protobuf's JSON: "host=4.00 GiB jobs=2"."""
    texts = [
        f"{key}={_format(key, int(quota[name]))}" for key, name in KEYS.items() if name in quota
    ]
    return " ".join(texts) or "no limit"


def set_request(subject: str, settings: Iterable[str]) -> dict[str, Any]:
    """A SetQuotaRequest, in protobuf's JSON, of texts such as "host=4GiB". UsageError: one of them
    is not understood."""
    quota: dict[str, Any] = {"subject": subject}
    unlimited = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in KEYS:
            known = ", ".join(f"{known}=" for known in KEYS)
            raise UsageError(f"'{setting}' is no limit of a quota; there are {known}")
        if value == _UNLIMITED:
            unlimited.append(KEYS[key])
        else:
            quota[KEYS[key]] = _parse(key, value)
    return {"quota": quota, "unlimited": unlimited}


def _parse(key: str, value: str) -> int:
    if key == "jobs":
        if not value.isdecimal() or int(value) >= 2**32:
            raise UsageError(f"jobs={value}: not a number of jobs, or `{_UNLIMITED}`")
        return int(value)
    if key == "lingering-hours":
        try:
            hours = float(value)
        except ValueError:
            hours = -1.0
        if not 0 <= hours <= 24:
            raise UsageError(f"lingering-hours={value}: not 0 to 24 hours, or `{_UNLIMITED}`")
        return round(hours * 3600)
    return parse_size(value)


def _format(key: str, value: int) -> str:
    if key == "jobs":
        return str(value)
    return f"{value / 3600:g} h" if key == "lingering-hours" else format_size(value)
